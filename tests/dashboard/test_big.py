"""The program for big brokers, with a small one: it fills a broker, and visits every page."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.dashboard.big import big_pages, lateness, run, show
from tests.dashboard.big_state import (
    DEAD,
    Size,
    connect_client,
    connected,
    fill,
    in_rooms,
    serving,
)

SMALL = Size(topics=600, groups=200, connections=150, dead_letters=2500, rooms=6)


def say_nothing(what: str, done: int, total: int) -> None:
    del what, done, total


async def test_a_broker_is_filled(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        async with await connect_client(broker) as client:
            await fill(client, SMALL, say_nothing)
            assert len(await client.topics("shop.>")) == SMALL.topics
            assert len(await client.groups.list()) == SMALL.groups + 1
            assert (await client.describe_topic(DEAD)).records == SMALL.dead_letters
            with connected(broker, SMALL.connections, say_nothing):
                async with in_rooms(broker, SMALL.rooms):
                    assert (await client.status()).connections >= SMALL.connections


@pytest.mark.timeout(600)
async def test_every_page_of_a_large_broker_becomes_usable(tmp_path: Path) -> None:
    found = await run(SMALL, tmp_path, say_nothing)
    assert [one.path for one in found] == big_pages()
    assert [one for one in found if one.usable_s is None or one.faults] == []
    console = Console(record=True, width=160)
    show(console, found)
    assert "/topics" in console.export_text()


def test_the_lateness_of_a_loop_is_what_came_since() -> None:
    before = {0.001: 10.0, 0.005: 10.0, 0.01: 10.0, float("inf"): 10.0}
    after = {0.001: 12.0, 0.005: 13.0, 0.01: 15.0, float("inf"): 15.0}
    assert lateness(before, after) == (2, 10.0)
    assert lateness(before, before) == (0, 1.0)
