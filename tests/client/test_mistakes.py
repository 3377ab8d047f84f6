"""Mistakes that are easily made, each answered by a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import ListenerOptions

FREE_PORT = fanlog.Config(listener=ListenerOptions(port=0))


@pytest.mark.parametrize("name", [None, 7, b"t"])
async def test_a_topic_name_of_the_wrong_type_is_refused_at_once(name: Any) -> None:
    async with fanlog.Broker(config=FREE_PORT) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with fanlog.connect(url) as client:
            for ask in (client.publish(name, b"x"), client.send(name, b"x")):
                with pytest.raises(errors.InvalidArgumentError, match="is a str"):
                    await ask
            with pytest.raises(errors.InvalidArgumentError, match="is a str"):
                client.subscribe(name)
            with pytest.raises(errors.InvalidArgumentError, match="is a str"):
                await client.create_topic(name)
            await client.publish("t", b"still fine")
            assert client.reconnects == 0


async def test_a_broker_that_was_not_entered_says_so() -> None:
    with pytest.raises(errors.ClosedError, match="async with"):
        await fanlog.Broker().publish("t", b"x")


async def test_a_client_that_was_not_awaited_says_so() -> None:
    connecting: Any = fanlog.connect("fanlog://127.0.0.1:1")
    with pytest.raises(AttributeError, match=r"await fanlog\.connect"):
        connecting.publish("t", b"x")


@pytest.mark.parametrize("start", [-1, 1 << 63, 10**20])
async def test_an_offset_that_none_can_be_is_refused(start: int) -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.InvalidArgumentError, match="offset"):
            broker.subscribe("t", start=start)


async def test_a_folder_of_somebody_elses_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(errors.FolderUnusableError, match="not empty"):
        async with fanlog.Broker(tmp_path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


async def test_a_pattern_where_one_topic_is_meant_is_told_so() -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.TopicNotFoundError, match="pattern"):
            await broker.describe_topic("orders.>")
