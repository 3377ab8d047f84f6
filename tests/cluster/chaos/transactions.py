"""Transactions while a cluster is treated badly: each is there whole, and once. Every fifth is too
large for the memory that the nodes allow it."""

from __future__ import annotations

import asyncio
from collections import Counter

import fanlog
from tests.cluster.workload import SEGMENT_BYTES, Workload

TOPICS = ("left", "right")
PARTITIONS = 2
LARGE_BYTES = 30_000
# What a node keeps of a transaction in memory: the large ones go through files.
MEMORY_BYTES = 20_000
_COORDINATORS = 2
_PAUSE_SECONDS = 0.05
_ATTEMPTS = 1000


class Transactions:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.committed: list[bytes] = []
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        async with self._workload.connect() as client:
            for topic in TOPICS:
                await client.create_topic(
                    topic,
                    partitions=PARTITIONS,
                    durability="fsync",
                    segment_bytes=SEGMENT_BYTES,
                )
        self._tasks = [asyncio.create_task(self._commit(one)) for one in range(_COORDINATORS)]

    async def _commit(self, coordinator: int) -> None:
        async with self._workload.connect() as client:
            number = 0
            while not self._over.is_set():
                value = b"%d-%d" % (coordinator, number)
                padding = bytes(LARGE_BYTES if number % 5 == 0 else 10)

                async def move(
                    tx: fanlog.Transaction, value: bytes = value, padding: bytes = padding
                ) -> None:
                    for topic in TOPICS:
                        for partition in range(PARTITIONS):
                            await tx.publish(topic, value + b" " + padding, partition=partition)

                try:
                    await client.run_transaction(move, id=value.decode(), attempts=_ATTEMPTS)
                except fanlog.errors.DiskFullError:
                    # It has taken no effect; the same id may be used again.
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                self.committed.append(value)
                number += 1
                await asyncio.sleep(_PAUSE_SECONDS)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return self._tasks

    async def finish(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def check(self, url: str) -> None:
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                found = [
                    value.split(b" ")[0]
                    for _, value in await self._workload.read_all(url, topic, partition)
                ]
                twice = [value for value, count in Counter(found).items() if count > 1]
                assert not twice, f"transactions are there twice in {topic}/{partition}: {twice}"
                wrong = set(self.committed) ^ set(found)
                assert not wrong, f"lost or torn transactions in {topic}/{partition}: {wrong}"

    def __str__(self) -> str:
        return f"{len(self.committed)} transactions"
