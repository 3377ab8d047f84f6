"""A worker that is killed costs its clients a reconnect, and nothing else."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import fanlog
from fanlog.errors import FanlogError
from tests.workers.stage import PATIENCE_SECONDS, Served, clients, served

KILLS = 4
PUBLISHERS = 6
PARTITIONS = 3
QUEUE = "shipping"
GROUP = "billing"

# What was acknowledged, and where it is.
Stored = dict[bytes, tuple[int, int]]


class Work:
    """Publishers, a group, a queue and subscribers, over all workers."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.stored: Stored = {}
        # What each subscriber got, in its order.
        self.read: list[list[bytes]] = [[], [], []]
        self.handled: set[bytes] = set()
        # Jobs whose ack was answered, and those that came after that.
        self.acked: set[bytes] = set()
        self.returned: list[bytes] = []

    async def publish(self, client: fanlog.Client, publisher: int) -> None:
        number = 0
        while not self.over.is_set():
            value = b"%d-%d" % (publisher, number)
            receipt = await client.publish("orders", value, key=str(publisher))
            self.stored[value] = (receipt.partition, receipt.offset)
            number += 1

    async def subscribe(self, client: fanlog.Client, index: int) -> None:
        async with client.subscribe("orders", start="earliest") as messages:
            async for message in messages:
                self.read[index].append(bytes(message.value))

    async def consume(self, client: fanlog.Client) -> None:
        async with client.consume("orders", group=GROUP, reset="earliest") as messages:
            async for message in messages:
                self.handled.add(bytes(message.value))
                try:
                    await messages.commit(message)
                except FanlogError:
                    continue  # Its partition moved while it was handled: it comes again.

    async def take(self, client: fanlog.Client) -> None:
        async with client.work("orders", queue=QUEUE, reset="earliest") as jobs:
            async for job in jobs:
                value = bytes(job.value)
                if value in self.acked:
                    self.returned.append(value)
                try:
                    await job.ack()
                except FanlogError:
                    continue  # Another worker has it by now.
                self.acked.add(value)

    def is_done(self) -> bool:
        expected = set(self.stored)
        return (
            all(expected <= set(read) for read in self.read)
            and expected <= self.handled
            and expected <= self.acked
        )


async def _more_stored(work: Work, more: int) -> None:
    enough = len(work.stored) + more
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(work.stored) < enough:  # noqa: ASYNC110 - of other tasks
            await asyncio.sleep(0.01)


async def _kill_workers(broker: Served, work: Work) -> None:
    dice = random.Random(16)
    for kill in range(KILLS):
        await _more_stored(work, 30)
        broker.kill_worker(dice.randrange(2))
        await _more_stored(work, 30)
        await broker.until_back(kill + 1)


@pytest.mark.timeout(600)
async def test_nothing_is_lost_repeated_or_reordered_when_workers_are_killed(
    tmp_path: Path,
) -> None:
    work = Work()
    with served(tmp_path) as broker:
        async with clients(broker.url, PUBLISHERS + 7) as connected:
            await connected[0].create_topic("orders", partitions=PARTITIONS, durability="fsync")
            publishing = [
                asyncio.create_task(work.publish(connected[i], i)) for i in range(PUBLISHERS)
            ]
            rest = connected[PUBLISHERS:]
            reading = [
                *(asyncio.create_task(work.subscribe(rest[i], i)) for i in range(3)),
                *(asyncio.create_task(work.consume(client)) for client in rest[3:5]),
                *(asyncio.create_task(work.take(client)) for client in rest[5:7]),
            ]
            await _kill_workers(broker, work)
            work.over.set()
            await asyncio.gather(*publishing)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not work.is_done():
                    assert not any(task.done() for task in reading)
                    await asyncio.sleep(0.05)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            records = (await connected[0].describe_topic("orders")).records
        assert "Worker" in broker.log.read_text()
    assert records == len(work.stored), "a message is there twice, or one nobody knows"
    assert not work.returned, "an acked job came again"
    for read in work.read:
        assert len(read) == len(set(read)), "a reader got a message twice"
        for publisher in range(PUBLISHERS):
            mine = [int(v.partition(b"-")[2]) for v in read if v.startswith(b"%d-" % publisher)]
            assert mine == sorted(mine)
