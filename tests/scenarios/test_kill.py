"""`kill -9` at any moment loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import fanlog
from tests.scenarios.broker_process import BrokerProcess

KILLS = 20
PUBLISHERS = 20
PARTITIONS = 3


async def publish_until(
    client: fanlog.Client, publisher: int, over: asyncio.Event
) -> dict[bytes, tuple[int, int]]:
    """Publishes one message after the other; what was acknowledged, and where."""
    acknowledged: dict[bytes, tuple[int, int]] = {}
    number = 0
    while not over.is_set():
        value = b"%d-%d" % (publisher, number)
        receipt = await client.publish("orders", value, key=str(publisher))
        assert receipt.durability == "fsync"
        acknowledged[value] = (receipt.partition, receipt.offset)
        number += 1
    return acknowledged


async def read_all(client: fanlog.Client) -> list[fanlog.Message]:
    info = await client.describe_topic("orders")
    found: list[fanlog.Message] = []
    async with client.subscribe("orders", start="earliest") as everything:
        while len(found) < info.records:
            found.append(await everything.next(20))
    return found


@pytest.mark.timeout(240)
def test_what_was_acknowledged_with_fsync_is_there_once_after_twenty_kills(data: Path) -> None:
    dice = random.Random(20)
    broker = BrokerProcess(data)

    async def scenario() -> None:
        broker.start()
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            await client.create_topic("orders", partitions=PARTITIONS, durability="fsync")
            over = asyncio.Event()
            publishing = [
                asyncio.create_task(publish_until(client, i, over)) for i in range(PUBLISHERS)
            ]
            for _ in range(KILLS):
                await asyncio.sleep(dice.uniform(0.05, 0.6))
                broker.kill()
                await asyncio.to_thread(broker.start)
            await asyncio.sleep(0.2)
            over.set()
            acknowledged: dict[bytes, tuple[int, int]] = {}
            for published in await asyncio.gather(*publishing):
                acknowledged |= published
            found = await read_all(client)
        places = {m.value: (m.partition, m.offset) for m in found}
        assert len(places) == len(found), "a message is there twice"
        assert acknowledged.items() <= places.items()
        for partition in range(PARTITIONS):
            offsets = [m.offset for m in found if m.partition == partition]
            assert offsets == list(range(len(offsets)))
        assert len(acknowledged) > KILLS * 10

    try:
        asyncio.run(scenario())
    finally:
        broker.kill()
