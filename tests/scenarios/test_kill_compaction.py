"""`kill -9` at any moment of a compaction: every key has its last acknowledged value after it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import fanlog
from fanlog.model import KIB
from tests.scenarios.broker_process import BrokerProcess

KILLS = 5
PUBLISHERS = 4
KEYS = 25

# What a publisher knows of its keys: the last value that was acknowledged, and its offset.
Known = dict[str, tuple[bytes, int]]


async def publish_until(client: fanlog.Client, publisher: int, over: asyncio.Event) -> Known:
    """Writes its own keys again and again, each time with something that is not known yet."""
    known: Known = {}
    number = 0
    while not over.is_set():
        key = f"{publisher}-{number % KEYS}"
        value = b"%d." % number * 300
        receipt = await client.publish("prices", value, key=key)
        known[key] = (value, receipt.offset)
        number += 1
    return known


async def compact_until(client: fanlog.Client, over: asyncio.Event) -> int:
    """Asks for one run after the other; how many came to their end."""
    ended = 0
    while not over.is_set():
        try:
            await client.compact_topic("prices")
            ended += 1
        except fanlog.errors.LinkError:
            await asyncio.sleep(0.02)
    return ended


async def read_all(client: fanlog.Client) -> list[fanlog.Message]:
    (end,) = (await client.find_offsets("prices", "latest")).values()
    found: list[fanlog.Message] = []
    async with client.subscribe("prices", start="earliest") as everything:
        reached = 0
        while reached < end:
            batch = await everything.next_batch(20)
            found += batch.messages
            reached = batch.next_offset
    return found


@pytest.mark.timeout(120)
def test_every_key_has_its_last_value_after_kills_in_the_middle_of_runs(data: Path) -> None:
    dice = random.Random(8)
    broker = BrokerProcess(data)

    async def scenario() -> None:
        broker.start()
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            await client.create_topic(
                "prices", cleanup="compact", durability="fsync", segment_bytes=64 * KIB
            )
            over = asyncio.Event()
            compacting = asyncio.create_task(compact_until(client, over))
            publishing = [
                asyncio.create_task(publish_until(client, i, over)) for i in range(PUBLISHERS)
            ]
            for _ in range(KILLS):
                await asyncio.sleep(dice.uniform(0.1, 0.5))
                broker.kill()
                await asyncio.to_thread(broker.start)
            await asyncio.sleep(0.2)
            over.set()
            known: Known = {}
            for published in await asyncio.gather(*publishing):
                known |= published
            assert await compacting > 0
            before = await read_all(client)
            await client.compact_topic("prices")
            after = await read_all(client)
            status = await client.status()
        for found in (before, after):
            last = {(m.key or b"").decode(): (m.value, m.offset) for m in found}
            assert last == known
            offsets = [m.offset for m in found]
            assert offsets == sorted(set(offsets))
        assert len(after) == len(known) == PUBLISHERS * KEYS
        assert status.problems == ()

    try:
        asyncio.run(scenario())
    finally:
        broker.kill()
