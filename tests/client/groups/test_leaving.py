"""What comes in while a member is on its way out."""

from __future__ import annotations

import asyncio
from collections import Counter

import fanlog

PATIENCE_SECONDS = 40


async def test_what_is_wanted_back_of_a_member_that_leaves_is_told_once() -> None:
    told: Counter[tuple[str, int]] = Counter()
    leaving, may_go = asyncio.Event(), asyncio.Event()

    async def on_revoke(places: tuple[tuple[str, int], ...]) -> None:
        told.update(places)
        leaving.set()
        await may_go.wait()

    async with fanlog.Broker() as broker, asyncio.timeout(PATIENCE_SECONDS):
        await broker.create_topic("t", partitions=4)
        first = broker.consume("t", group="g", on_revoke=on_revoke)
        await first.start()
        while len(first.partitions) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        closing = asyncio.create_task(first.close())
        await leaving.wait()
        # The group wants half of it for this one, before the first has left.
        async with broker.consume("t", group="g") as second:
            while (await broker.groups.describe("g")).state != "rebalancing":  # noqa: ASYNC110
                await asyncio.sleep(0)
            may_go.set()
            await closing
            while len(second.partitions) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert told == {("t", partition): 1 for partition in range(4)}
