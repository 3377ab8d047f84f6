"""Channel names as topic names, and back; Redis's globs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.names import check_public_name
from fanlog.format.channels import maybe_channel_of, topic_of
from fanlog.format.globs import Glob

ODD = st.lists(st.sampled_from([*"%*>.-~/_fanlog4A2é\x00\x85"])).map("".join).map(str.encode)
CHANNELS = st.one_of(st.binary(max_size=40), ODD)


@given(CHANNELS, st.booleans())
def test_every_channel_has_a_topic_of_its_own_and_is_found_by_it(
    channel: bytes, shard: bool
) -> None:
    topic = check_public_name(topic_of(channel, shard=shard))
    assert maybe_channel_of(topic) == (channel, shard)


@pytest.mark.parametrize("name", ["orders", "news.sport", "chat:1", "50%", "é", "a b"])
def test_a_name_that_may_be_both_is_both(name: str) -> None:
    assert topic_of(name.encode()) == name
    assert maybe_channel_of(name) == (name.encode(), False)


@pytest.mark.parametrize(
    ("channel", "topic"),
    [
        (b"", "%-"),
        (b"news.*", "news.%2A"),
        (b">", "%3E"),
        (b"news*", "news%2A"),
        (b"a>b.c**", "a%3Eb.c%2A%2A"),
        (b"\xff\x00", "%FF%00"),
        (b"%41", "%2541"),
        (b"%-", "%25-"),
        (b"_fanlog.cursors", "%5Ffanlog.cursors"),
    ],
)
def test_what_a_topic_can_not_be_called_is_written_otherwise(channel: bytes, topic: str) -> None:
    assert topic_of(channel) == topic


def test_very_long_channels_have_topics_too() -> None:
    first, second = topic_of(b"x" * 300), topic_of(b"x" * 301)
    assert first != second
    assert check_public_name(first).startswith("%~")
    assert maybe_channel_of(first) is None
    assert topic_of(b"\xff" * 200).startswith("%~")


@pytest.mark.parametrize("topic", ["_fanlog.cursors", "x%41", "%2a", "%~abc", "%41"])
def test_a_topic_that_no_channel_is_written_as_is_nobodys(topic: str) -> None:
    found = maybe_channel_of(topic)
    assert found is None or topic_of(*found[:1]) == topic


def redis_matches(pattern: bytes, name: bytes) -> bool:  # noqa: PLR0912 - as Redis has it
    """Redis's stringmatchlen, step by step."""
    while pattern and name:
        head = pattern[:1]
        if head == b"*":
            while pattern[1:2] == b"*":
                pattern = pattern[1:]
            if len(pattern) == 1:
                return True
            return any(redis_matches(pattern[1:], name[i:]) for i in range(len(name) + 1))
        if head == b"[":
            at = 1
            negated = pattern[at : at + 1] == b"^"
            at += negated
            found = False
            while True:
                if pattern[at : at + 1] == b"\\" and len(pattern) - at >= 2:
                    at += 1
                    found |= pattern[at] == name[0]
                elif pattern[at : at + 1] == b"]":
                    break
                elif at >= len(pattern):
                    at -= 1
                    break
                elif len(pattern) - at >= 3 and pattern[at + 1 : at + 2] == b"-":
                    low, high = sorted((pattern[at], pattern[at + 2]))
                    at += 2
                    found |= low <= name[0] <= high
                else:
                    found |= pattern[at] == name[0]
                at += 1
            if found == negated:
                return False
            pattern, name = pattern[at:], name[1:]
        elif head == b"?":
            name = name[1:]
        else:
            if head == b"\\" and len(pattern) >= 2:
                pattern = pattern[1:]
            if pattern[:1] != name[:1]:
                return False
            name = name[1:]
        pattern = pattern[1:]
        if not name:
            pattern = pattern.lstrip(b"*")
            break
    return not pattern and not name


LETTERS = st.lists(st.sampled_from([*"ab-]["])).map("".join).map(str.encode)
PATTERNS = st.lists(st.sampled_from([*"ab*?[]^-\\"]), max_size=12).map("".join).map(str.encode)


@given(PATTERNS, LETTERS)
def test_a_glob_matches_what_redis_matches(pattern: bytes, name: bytes) -> None:
    assert Glob(pattern).matches(name) == redis_matches(pattern, name)


def test_no_glob_is_slow() -> None:
    assert not Glob(b"a*" * 50 + b"b").matches(b"a" * 20_000)
    assert Glob(b"*a" * 50 + b"*").matches(b"a" * 20_000)
