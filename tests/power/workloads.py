"""What a broker does while its power is cut again and again, and what has to hold afterwards.

A workload runs as tasks that never end by themselves, notes what was acknowledged, and checks it at
the end. What was in flight at a cut may be there or not, once.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import fanlog
from fanlog.format.frames import FrameKind
from fanlog.format.messages import Position, ProducerRegistered, RegisterProducer, decode
from fanlog.model import KIB
from tests.power.steps import PATIENCE_SECONDS, connecting, values_of

SEGMENT_BYTES = 64 * KIB


class Workload(abc.ABC):
    def __init__(
        self, url: str, client: fanlog.Client, dice: random.Random, over: asyncio.Event
    ) -> None:
        self.url = url
        self.client = client
        self.dice = dice
        self.over = over
        # How many acknowledgements it has got: a cut that hits nobody at work shows nothing.
        self.acknowledged = 0

    @abc.abstractmethod
    async def prepare(self) -> None:
        """Makes the topics."""

    @abc.abstractmethod
    async def work(self) -> None:
        """Until it is over."""

    @abc.abstractmethod
    async def check(self) -> None:
        """That all that was acknowledged holds."""


class Publishing(Workload):
    """Publishers to a topic: each message that was acknowledged is where it was, once."""

    topic = "orders"

    async def prepare(self) -> None:
        self.places: dict[bytes, tuple[int, int]] = {}
        await self.client.create_topic(
            self.topic, partitions=3, durability="fsync", segment_bytes=SEGMENT_BYTES
        )

    async def work(self) -> None:
        await asyncio.gather(*(self._publish(number) for number in range(4)))

    async def _publish(self, publisher: int) -> None:
        number = 0
        while not self.over.is_set():
            value = b"%d-%d " % (publisher, number) + bytes(self.dice.choice((0, 100, 9_000)))
            receipt = await self.client.publish(self.topic, value, key=str(publisher))
            self.places[value] = (receipt.partition, receipt.offset)
            self.acknowledged += 1
            number += 1

    async def check(self) -> None:
        found: list[fanlog.Message] = []
        ends = await self.client.find_offsets(self.topic, "latest")
        async with self.client.subscribe(self.topic, start="earliest") as reader:
            while len(found) < sum(ends.values()):
                found += (await reader.next_batch(PATIENCE_SECONDS)).messages
        places = {m.value: (m.partition, m.offset) for m in found}
        assert len(places) == len(found), "a message is there twice"
        lost = {v[:20]: place for v, place in self.places.items() if places.get(v) != place}
        assert lost == {}, "lost or moved"


class Pricing(Workload):
    """Keys of a compacted topic, set by publishing and by transactions, while it is compacted:
    each has its last value."""

    async def prepare(self) -> None:
        self.known: dict[str, bytes] = {}
        await self.client.create_topic(
            "prices", cleanup="compact", durability="fsync", segment_bytes=SEGMENT_BYTES
        )

    async def work(self) -> None:
        await asyncio.gather(self._compact(), *(self._set(number) for number in range(3)))

    async def _compact(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(fanlog.errors.LinkError):
                await self.client.compact_topic("prices")
            await asyncio.sleep(0.05)

    async def _set(self, publisher: int) -> None:
        number = 0
        while not self.over.is_set():
            key = f"{publisher}-{self.dice.randrange(10)}"
            value = b"%d " % number + bytes(self.dice.choice((10, 5_000)))
            if self.dice.random() < 0.3:

                async def change(
                    tx: fanlog.Transaction, key: str = key, value: bytes = value
                ) -> None:
                    await tx.publish("prices", value, key=key)

                await self.client.run_transaction(change, id=f"{key}-{number}", attempts=100)
            else:
                await self.client.publish("prices", value, key=key)
            self.known[key] = value
            self.acknowledged += 1
            number += 1

    async def check(self) -> None:
        for _ in range(2):
            found: dict[str, bytes] = {}
            for key, value in await keyed(self.client, "prices"):
                found[key.decode()] = value
            wrong = {
                key: (value[:20], found.get(key, b"")[:20])
                for key, value in self.known.items()
                if found.get(key) != value
            }
            assert wrong == {}, "not the last value: (wanted, found)"
            await self.client.compact_topic("prices")


class Transacting(Workload):
    """Transactions over two topics: each is there whole, and once."""

    async def prepare(self) -> None:
        self.done: list[bytes] = []
        for topic in ("left", "right"):
            await self.client.create_topic(topic, partitions=2, durability="fsync")

    async def work(self) -> None:
        await asyncio.gather(*(self._commit(number) for number in range(3)))

    async def _commit(self, coordinator: int) -> None:
        number = 0
        while not self.over.is_set():
            value = b"%d-%d" % (coordinator, number)
            padding = bytes(30_000 if number % 5 == 0 else 10)

            async def move(
                tx: fanlog.Transaction, value: bytes = value, padding: bytes = padding
            ) -> None:
                for topic in ("left", "right"):
                    for partition in range(2):
                        await tx.publish(topic, value + b" " + padding, partition=partition)

            await self.client.run_transaction(move, id=value.decode(), attempts=100)
            self.done.append(value)
            self.acknowledged += 1
            number += 1

    async def check(self) -> None:
        for topic in ("left", "right"):
            for partition in range(2):
                found = await values_of(self.client, topic, partition=partition)
                check_once((value.split(b" ")[0] for value in found), self.done)


class Transforming(Workload):
    """From one topic to another: each message once."""

    async def prepare(self) -> None:
        self.sent: list[bytes] = []
        self.stopped = False
        await self.client.create_topic("raw", partitions=2, durability="fsync")
        await self.client.create_topic("cooked", durability="fsync")

    async def work(self) -> None:
        moving = asyncio.create_task(self._move(None))
        while not self.over.is_set():
            value = b"%d" % len(self.sent)
            await self.client.publish("raw", value, key=value)
            self.sent.append(value)
            self.acknowledged += 1
            await asyncio.sleep(0.005)
        self.stopped = True
        await moving

    async def _move(self, idle_seconds: float | None) -> None:
        while True:
            try:
                await self.client.transform(
                    "raw",
                    "cooked",
                    lambda message: message.value,
                    group="cooks",
                    until=lambda: self.stopped and idle_seconds is None,
                    idle_seconds=idle_seconds,
                )
            except fanlog.errors.LinkError:
                await asyncio.sleep(0.05)
            else:
                return

    async def check(self) -> None:
        # After a start a group waits a while for the members it had.
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_SECONDS
        while loop.time() < end:
            await self._move(1.0)
            if (await self.client.find_offsets("cooked", "latest"))[0] >= len(self.sent):
                break
        check_once(await values_of(self.client, "cooked"), self.sent)


class Committing(Workload):
    """A durable name whose position only grows: never behind what was acknowledged."""

    async def prepare(self) -> None:
        self.offset = self.asked = 0
        await self.client.create_topic("read", durability="fsync")
        await self.client.publish_many("read", [b"x"] * 10_000)

    async def work(self) -> None:
        while not self.over.is_set():
            self.asked = self.offset + 1
            await self.client.commit("reader", (Position("read", 0, self.asked),))
            self.offset = self.asked
            self.acknowledged += 1
            await asyncio.sleep(0.002)

    async def check(self) -> None:
        (position,) = await self.client.committed("reader")
        assert self.offset <= position.offset <= self.asked


class Queueing(Workload):
    """A queue: an acked job is not handed out again, and none is lost."""

    async def prepare(self) -> None:
        self.sent: set[bytes] = set()
        self.acked: set[bytes] = set()
        await self.client.create_topic("jobs", partitions=2, durability="fsync")

    async def work(self) -> None:
        await asyncio.gather(self._publish(), self._do(idle=False))

    async def _publish(self) -> None:
        while not self.over.is_set():
            value = b"%d" % len(self.sent)
            await self.client.publish("jobs", value, key=value)
            self.sent.add(value)
            await asyncio.sleep(0.005)

    async def _do(self, *, idle: bool) -> None:
        async with self.client.work(
            "jobs",
            queue="workers",
            prefetch=4,
            visibility_seconds=1.0,
            # On a slow machine the same job is in hand at one cut after the other.
            max_deliveries=50,
            reset="earliest",
        ) as worker:
            while idle or not self.over.is_set():
                # What is lost is waited for longer than what must not come again.
                lacking = bool(self.sent - self.acked)
                try:
                    job = await worker.next((PATIENCE_SECONDS if lacking else 2.5) if idle else 0.2)
                except TimeoutError:
                    if idle:
                        return
                    continue
                assert job.value not in self.acked, f"handed out again: {job!r}"
                try:
                    await job.ack()
                except fanlog.errors.LeaseLostError:
                    continue
                self.acked.add(job.value)
                self.acknowledged += 1

    async def check(self) -> None:
        await self._do(idle=True)
        assert self.sent - self.acked == set(), "lost"


class Trimming(Workload):
    """A topic whose old records are deleted: they stay so, and the others stay."""

    async def prepare(self) -> None:
        self.values: dict[int, bytes] = {}
        self.start = self.asked = 0
        await self.client.create_topic("trimmed", durability="fsync", segment_bytes=SEGMENT_BYTES)

    async def work(self) -> None:
        number = 0
        while not self.over.is_set():
            value = b"%d " % number + bytes(self.dice.choice((10, 9_000)))
            self.values[(await self.client.publish("trimmed", value)).offset] = value
            self.acknowledged += 1
            number += 1
            if self.dice.random() < 0.1:
                self.asked = self.dice.choice((number, max(self.start, number - 5)))
                await self.client.delete_records("trimmed", {0: self.asked})
                self.start = self.asked

    async def check(self) -> None:
        start = (await self.client.find_offsets("trimmed", "earliest"))[0]
        assert self.start <= start <= max(self.asked, self.start)
        wanted = [value for offset, value in sorted(self.values.items()) if offset >= start]
        assert await values_of(self.client, "trimmed") == wanted


class Fencing(Workload):
    """A producer's name: each registration fences all before it."""

    async def prepare(self) -> None:
        self.epoch = self.id = 0

    async def work(self) -> None:
        while not self.over.is_set():
            await self.check()
            self.acknowledged += 1
            await asyncio.sleep(0.02)

    async def check(self) -> None:
        wanted = RegisterProducer("billing")
        found = decode(
            ProducerRegistered, await self.client.ask(FrameKind.REGISTER_PRODUCER, wanted)
        )
        assert self.id in (0, found.id), "the name has another id"
        assert found.epoch > self.epoch, "a registration was forgotten"
        self.id, self.epoch = found.id, found.epoch


class Renewing(Workload):
    """Topics that are deleted and made again under the same name: a group reads all of the new
    one."""

    async def prepare(self) -> None:
        self.rounds = 0

    async def work(self) -> None:
        while not self.over.is_set():
            await self.check()
            self.acknowledged += 1

    async def check(self) -> None:
        self.rounds += 1
        await retried(lambda: self.client.create_topic("temp", durability="fsync", exist_ok=True))
        values = [b"%d-%d" % (self.rounds, i) for i in range(self.dice.randint(1, 20))]
        # One for each round: what a client has in flight belongs to the topic that is gone.
        async with await connected(self.url) as client:
            for value in values:
                await client.publish("temp", value)
            async with client.consume(
                "temp", group="g", reset="earliest", commit="manual"
            ) as member:
                found: set[bytes] = set()
                while not found >= set(values):
                    found.add((await member.next(PATIENCE_SECONDS)).value)
                await member.commit()
        assert found == set(values), "records of the topic before it"
        await retried(lambda: self.client.delete_topic("temp"))


def check_once(values: Iterable[bytes], wanted: list[bytes]) -> None:
    found = Counter(values)
    lost = [value for value in wanted if value not in found]
    assert lost == [], "lost"
    assert {v: n for v, n in found.items() if n > 1} == {}, "doubled"
    assert found.keys() == set(wanted), "never acknowledged, and not repeated"


async def retried(ask: Callable[[], Awaitable[object]]) -> None:
    """A request whose answer was lost in a cut: it was done, or it is done now."""
    while True:
        try:
            await ask()
        except fanlog.errors.LinkError:
            await asyncio.sleep(0.05)
        except fanlog.errors.TopicNotFoundError:
            return
        else:
            return


async def connected(url: str) -> fanlog.Client:
    """A client of its own, as soon as there is a broker."""
    while True:
        try:
            return await connecting(url)
        except fanlog.errors.LinkError:
            await asyncio.sleep(0.05)


async def keyed(client: fanlog.Client, topic: str) -> list[tuple[bytes, bytes]]:
    (end,) = (await client.find_offsets(topic, "latest")).values()
    found: list[tuple[bytes, bytes]] = []
    reached = 0
    async with client.subscribe(topic, start="earliest") as reader:
        while reached < end:
            batch = await reader.next_batch(PATIENCE_SECONDS)
            found += [(m.key or b"", m.value) for m in batch.messages]
            reached = batch.next_offset
    return found


ALL: tuple[type[Workload], ...] = (
    Publishing,
    Pricing,
    Transacting,
    Transforming,
    Committing,
    Queueing,
    Trimming,
    Fencing,
    Renewing,
)
