"""What a connection knows of topics: numbers and partitions, as long as it lasts."""

from __future__ import annotations

import msgspec
import pytest

from fanlog.client.core.topic_directory import TopicDirectory, codec_for, opening
from fanlog.format.codecs import Codec
from fanlog.format.messages import TopicOpened
from fanlog.model import HIDDEN_PREFIXES, TopicSettings


def answer(name: str = "t", number: int = 3, **settings: int | str) -> bytes:
    chosen = msgspec.convert(settings, TopicSettings)
    return msgspec.msgpack.encode(TopicOpened(name, number, 1, chosen))


def test_a_topic_is_kept_until_it_is_forgotten() -> None:
    directory = TopicDirectory()
    opened = directory.take(answer(partitions=2))
    assert (opened.number, opened.settings.partitions) == (3, 2)
    assert directory.maybe_kept("t") is None
    assert directory.keep(opened) is directory.maybe_kept("t") is opened
    assert directory.maybe_number("t") is None
    assert directory.take_number(answer()) == directory.maybe_number("t") == 3
    directory.forget("t")
    directory.forget("t")
    assert directory.maybe_kept("t") is directory.maybe_number("t") is None


def test_growth_counts_for_what_is_kept_and_for_answers_that_are_older() -> None:
    directory = TopicDirectory()
    directory.keep(directory.take(answer(partitions=2)))
    directory.grew(3, 5)
    kept = directory.maybe_kept("t")
    assert kept is not None
    assert kept.settings.partitions == 5
    assert directory.take(answer(partitions=2)).settings.partitions == 5
    assert directory.take(answer(partitions=8)).settings.partitions == 8
    assert directory.take(answer("other", 4, partitions=2)).settings.partitions == 2


def test_a_new_connection_begins_with_nothing() -> None:
    directory = TopicDirectory()
    directory.keep(directory.take(answer(partitions=2)))
    directory.take_number(answer())
    directory.grew(3, 5)
    directory.clear()
    assert directory.maybe_kept("t") is directory.maybe_number("t") is None
    # The number may be that of another topic.
    assert directory.take(answer(partitions=2)).settings.partitions == 2


@pytest.mark.parametrize(("name", "create"), [("orders", True), (f"{HIDDEN_PREFIXES[0]}x", False)])
def test_what_others_create_is_only_opened(name: str, create: bool) -> None:
    assert opening(name).create is create


def test_a_topic_may_ask_for_a_compression() -> None:
    directory = TopicDirectory()
    assert codec_for(directory.take(answer(compression="producer")), Codec.LZ4) is Codec.LZ4
    assert codec_for(directory.take(answer(compression="zstd")), Codec.NONE) is Codec.ZSTD
