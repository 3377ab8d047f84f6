"""`kill -9`, or a power cut, at any moment of a compaction: every key has its last acknowledged
value after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

import fanlog
from fanlog.model import KIB
from tests.power.machine import OUTAGES, Machine

KILLS = 5
PUBLISHERS = 4
KEYS = 25
PATIENCE_SECONDS = 60.0

# What publishers know of their keys: the last value that was acknowledged, and its offset.
Known = dict[str, tuple[bytes, int]]


async def publish_until(
    client: fanlog.Client, publisher: int, known: Known, over: asyncio.Event
) -> None:
    """Writes its own keys again and again, each time with something that is not known yet."""
    number = 0
    while not over.is_set():
        key = f"{publisher}-{number % KEYS}"
        value = b"%d." % number * 300
        receipt = await client.publish("prices", value, key=key)
        known[key] = (value, receipt.offset)
        number += 1


async def compact_until(client: fanlog.Client, ended: list[float], over: asyncio.Event) -> None:
    """Asks for one run after the other; when each came to its end."""
    while not over.is_set():
        try:
            await client.compact_topic("prices")
            ended.append(asyncio.get_running_loop().time())
        except fanlog.errors.LinkError:
            await asyncio.sleep(0.02)


async def wait_until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done():  # noqa: ASYNC110 - it is of other tasks
            await asyncio.sleep(0.01)


async def read_all(client: fanlog.Client) -> list[fanlog.Message]:
    (end,) = (await client.find_offsets("prices", "latest")).values()
    found: list[fanlog.Message] = []
    async with client.subscribe("prices", start="earliest") as everything:
        reached = 0
        while reached < end:
            batch = await everything.next_batch(PATIENCE_SECONDS)
            found += batch.messages
            reached = batch.next_offset
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("machine", OUTAGES, indirect=True)
def test_every_key_has_its_last_value_after_kills_in_the_middle_of_runs(machine: Machine) -> None:
    dice = random.Random(8)
    broker = machine.broker()

    async def scenario() -> None:
        broker.start()
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            await client.create_topic(
                "prices", cleanup="compact", durability="fsync", segment_bytes=64 * KIB
            )
            over = asyncio.Event()
            known: Known = {}
            ended: list[float] = []
            working = [
                asyncio.create_task(compact_until(client, ended, over)),
                *(
                    asyncio.create_task(publish_until(client, i, known, over))
                    for i in range(PUBLISHERS)
                ),
            ]
            for _ in range(KILLS):
                # Each kill hits a broker that has come to work again, and whose runs do end.
                runs, end = len(ended), max((offset for _, offset in known.values()), default=-1)
                await wait_until(lambda runs=runs: len(ended) > runs)
                await wait_until(lambda end=end: any(o > end for _, o in known.values()))
                await asyncio.sleep(dice.uniform(0.0, 0.4))
                broker.kill()
                await asyncio.to_thread(broker.start)
            await wait_until(lambda: len(known) == PUBLISHERS * KEYS)
            over.set()
            await asyncio.gather(*working)
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
