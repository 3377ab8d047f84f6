"""Producers and a reader of one topic. Promises (docs/transactions.md, "Publishing without a
transaction"; docs/architecture.md, "Failure rules"):

- what was acknowledged is at its place, once, whatever happens;
- what was not acknowledged is there at most once;
- messages of a producer are in its order in each partition;
- what a reader has seen is not taken back, and is seen in order, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import fanlog
from fanlog.model import KIB
from tests.simulation.workload import Workload, ensure, read_all

TOPIC = "orders"
_PARTITIONS = 3
_SIZES = (0, 0, 0, 100, 3000, 20_000)


class Publishing(Workload):
    topic = TOPIC
    durability = "fsync"

    async def prepare(self, client: fanlog.Client) -> None:
        self.receipts: dict[bytes, tuple[int, int]] = {}
        self.seen: dict[int, list[tuple[int, bytes]]] = {}
        self._producers = 0
        await client.create_topic(
            self.topic,
            partitions=_PARTITIONS,
            durability=self.durability,
            segment_bytes=64 * KIB,
        )

    def begin(self) -> None:
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"producer-{number}", self._produce)
        self.actor("reader", self._read, killable=False)

    async def _produce(self) -> None:
        """A process numbers what it publishes: nobody else has its number."""
        self._producers += 1
        producer, number = self._producers, 0
        pause = self.dice.choice((0.0, 0.01, 0.1))
        async with self.connecting(linger_ms=self.dice.choice((0, 0, 5))) as client:
            while not self.over:
                burst = [
                    self._publish(client, producer, number + i)
                    for i in range(self.dice.choice((1, 1, 5)))
                ]
                number += len(burst)
                await asyncio.gather(*burst)
                await asyncio.sleep(pause * self.dice.random())

    async def _publish(self, client: fanlog.Client, producer: int, number: int) -> None:
        value = b"%d %d " % (producer, number) + bytes(self.dice.choice(_SIZES))
        partition = self.dice.randrange(_PARTITIONS)
        receipt = await client.publish(self.topic, value, partition=partition)
        if receipt.partition != partition:
            self.violated(f"{value[:20]} went to partition {receipt.partition}")
        self.receipts[value] = (receipt.partition, receipt.offset)
        self.acknowledged += 1

    async def _read(self) -> None:
        async with (
            self.connecting() as client,
            client.subscribe(self.topic, start="earliest") as reader,
        ):
            while not self.over:
                try:
                    batch = await reader.next_batch(0.5)
                except TimeoutError:
                    continue
                seen = self.seen.setdefault(batch.partition, [])
                for message in batch.messages:
                    expected = seen[-1][0] + 1 if seen else 0
                    if message.offset != expected:
                        self.violated(f"read {message!r} instead of offset {expected}")
                    seen.append((message.offset, message.value))

    async def check(self, client: fanlog.Client) -> None:
        places: dict[bytes, tuple[int, int]] = {}
        for partition, messages in (await read_all(client, self.topic)).items():
            last: dict[int, int] = {}
            for expected, message in enumerate(messages):
                ensure(message.offset == expected, f"a hole before {message!r}")
                ensure(message.value not in places, f"stored twice: {message!r}")
                places[message.value] = (partition, message.offset)
                producer, number = map(int, message.value.split(b" ")[:2])
                ensure(last.get(producer, -1) < number, f"out of order: {message!r}")
                last[producer] = number
            seen = self.seen.get(partition, [])
            stored = [(message.offset, message.value) for message in messages]
            ensure(stored[: len(seen)] == seen, f"partition {partition}: taken back from a reader")
        for value, place in self.receipts.items():
            found = places.get(value)
            ensure(found == place, f"{value[:20]!r} was acknowledged at {place}, and is at {found}")


class PublishingUnsynced(Publishing):
    """To a topic with durability os, which only replicas keep from a power cut: the same promises,
    until an operator chooses who goes on."""

    topic = "views"
    durability = "os"

    async def prepare(self, client: fanlog.Client) -> None:
        self._lost = False
        await super().prepare(client)

    def unsynced_lost(self) -> None:
        self._lost = True

    def violated(self, promise: str) -> None:
        if not self._lost:
            super().violated(promise)

    async def _produce(self) -> None:
        with self._excused():
            await super()._produce()

    async def _read(self) -> None:
        with self._excused():
            await super()._read()

    async def check(self, client: fanlog.Client) -> None:
        if not self._lost:
            await super().check(client)

    @contextmanager
    def _excused(self) -> Iterator[None]:
        """Clients may hear of what is lost."""
        try:
            yield
        except fanlog.FanlogError:
            if not self._lost:
                raise
