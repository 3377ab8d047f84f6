"""`kill -9`, or a power cut, at any moment loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import random

import pytest

import fanlog
from tests.power.machine import OUTAGES, Machine

# A start on the file system that loses power is slow.
KILLS = {"kill": 20, "fuse": 8, "ext4": 8}
PUBLISHERS = 20
PARTITIONS = 3
PATIENCE_SECONDS = 60.0

# What was acknowledged, and where it is.
Places = dict[bytes, tuple[int, int]]


async def publish_until(
    client: fanlog.Client, publisher: int, acknowledged: Places, over: asyncio.Event
) -> None:
    """Publishes one message after the other, and notes those that were acknowledged."""
    number = 0
    while not over.is_set():
        value = b"%d-%d" % (publisher, number)
        receipt = await client.publish("orders", value, key=str(publisher))
        assert receipt.durability == "fsync"
        acknowledged[value] = (receipt.partition, receipt.offset)
        number += 1


async def more_acknowledged(acknowledged: Places, more: int) -> None:
    """Waits until publishers get on: a kill that hits nobody at work shows nothing."""
    enough = len(acknowledged) + more
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(acknowledged) < enough:  # noqa: ASYNC110 - of other tasks
            await asyncio.sleep(0.01)


async def read_all(client: fanlog.Client) -> list[fanlog.Message]:
    info = await client.describe_topic("orders")
    found: list[fanlog.Message] = []
    async with client.subscribe("orders", start="earliest") as everything:
        while len(found) < info.records:
            found.append(await everything.next(PATIENCE_SECONDS))
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("machine", [*OUTAGES, "ext4"], indirect=True)
def test_what_was_acknowledged_with_fsync_is_there_once_after_many_kills(
    machine: Machine,
) -> None:
    dice, kills = random.Random(20), KILLS[machine.backend]
    broker = machine.broker()

    async def scenario() -> None:
        broker.start()
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            await client.create_topic("orders", partitions=PARTITIONS, durability="fsync")
            over = asyncio.Event()
            acknowledged: Places = {}
            publishing = [
                asyncio.create_task(publish_until(client, i, acknowledged, over))
                for i in range(PUBLISHERS)
            ]
            for _ in range(kills):
                await more_acknowledged(acknowledged, 10)
                await asyncio.sleep(dice.uniform(0.0, 0.5))
                broker.kill()
                await asyncio.to_thread(broker.start)
            await more_acknowledged(acknowledged, 10)
            over.set()
            await asyncio.gather(*publishing)
            found = await read_all(client)
        places = {m.value: (m.partition, m.offset) for m in found}
        assert len(places) == len(found), "a message is there twice"
        assert acknowledged.items() <= places.items()
        for partition in range(PARTITIONS):
            offsets = [m.offset for m in found if m.partition == partition]
            assert offsets == list(range(len(offsets)))
        assert len(acknowledged) > kills * 10

    try:
        asyncio.run(scenario())
    finally:
        broker.kill()
