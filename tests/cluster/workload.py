"""Clients that work while a cluster is treated badly, and what must hold for them: nothing that was
acknowledged is lost or there twice, order is kept, and no acknowledged job comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import fanlog
from fanlog.client.aio import Connecting
from fanlog.model import KIB
from tests.cluster.processes import Patience

TOPIC, JOBS = "numbers", "jobs"
PARTITIONS = 2
PUBLISHERS = 3
# Small, so that logs have many.
SEGMENT_BYTES = 64 * KIB
GROUP, QUEUE = "followers", "workers"
PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 0.005
_FULL_SECONDS = 0.1


class Workload:
    """`run` works until `finish`, which waits for the last of it and checks. No client may see an
    error: a loss of a node is a wait for it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = asyncio.Event()
        # Where each acknowledged message is.
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        # The longest time in which no publisher was answered. May be set to 0 at any time.
        self.longest_rest_s = 0.0
        self._answered_at = 0.0
        self.jobs: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.returned: list[bytes] = []
        self.consumed: set[bytes] = set()
        self.read: list[tuple[int, int, bytes]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    def connect(self, producer: str = "") -> Connecting:
        return fanlog.connect(
            self._url,
            wait_seconds=PATIENCE_SECONDS,
            backoff_max_seconds=0.5,
            ping_seconds=1.0,
            producer=producer,
        )

    async def start(self) -> None:
        async with self.connect() as client:
            await client.create_topic(
                TOPIC, partitions=PARTITIONS, durability="os", segment_bytes=SEGMENT_BYTES
            )
            await client.create_topic(JOBS, durability="fsync", segment_bytes=SEGMENT_BYTES)
        self._tasks = [
            *(asyncio.create_task(self._publish(number)) for number in range(PUBLISHERS)),
            asyncio.create_task(self._order_jobs()),
        ]
        self._readers = [
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._consume()),
            asyncio.create_task(self._work()),
        ]

    async def _publish(self, publisher: int) -> None:
        async with self.connect(producer=f"publisher-{publisher}") as client:
            number = 0
            while not self._over.is_set():
                value = b"%d-%d" % (publisher, number)
                try:
                    receipt = await client.publish(TOPIC, value, key=str(publisher))
                except fanlog.errors.DiskFullError:
                    # Nothing was stored.
                    await asyncio.sleep(_FULL_SECONDS)
                    continue
                self.acknowledged[value] = (receipt.partition, receipt.offset)
                self._note_rest()
                number += 1
                await asyncio.sleep(_PAUSE_SECONDS)

    def _note_rest(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._answered_at:
            self.longest_rest_s = max(self.longest_rest_s, now - self._answered_at)
        self._answered_at = now

    async def _order_jobs(self) -> None:
        async with self.connect(producer="orders") as client:
            number = 0
            while not self._over.is_set():
                value = b"job-%d" % number
                try:
                    await client.publish(JOBS, value)
                except fanlog.errors.DiskFullError:
                    await asyncio.sleep(_FULL_SECONDS)
                    continue
                self.jobs.add(value)
                number += 1
                await asyncio.sleep(_PAUSE_SECONDS * 4)

    async def _follow(self) -> None:
        async with (
            self.connect() as client,
            client.subscribe(TOPIC, start="earliest") as reader,
        ):
            async for message in reader:
                self.read.append((message.partition, message.offset, message.value))

    async def _consume(self) -> None:
        async with (
            self.connect() as client,
            client.consume(TOPIC, group=GROUP, reset="earliest", commit="iterate") as member,
        ):
            async for message in member:
                self.consumed.add(message.value)

    async def _work(self) -> None:
        async with (
            self.connect() as client,
            client.work(JOBS, queue=QUEUE, visibility_seconds=5.0, max_deliveries=50) as worker,
        ):
            async for job in worker:
                if job.value in self.acked:
                    self.returned.append(job.value)
                if await self._ack(job):
                    self.acked.add(job.value)

    async def _ack(self, job: fanlog.Job) -> bool:
        """False if it came too late."""
        while True:
            try:
                await job.ack()
            except fanlog.errors.LeaseLostError:
                return False
            except fanlog.errors.DiskFullError:
                # Nothing was stored: the job is in hand.
                await asyncio.sleep(_FULL_SECONDS)
            else:
                return True

    def check_alive(self) -> None:
        """Raises what a client has raised."""
        for task in (*self._tasks, *self._readers):
            if task.done() and not task.cancelled():
                task.result()

    async def until(self, holds: Callable[[], object], what: str) -> None:
        patience = Patience(PATIENCE_SECONDS)
        while not holds():
            self.check_alive()
            assert not patience.is_over, f"{what}: {self}"
            await asyncio.sleep(0.02)

    async def more(self, count: int) -> None:
        """Waits until publishers get on."""
        enough = len(self.acknowledged) + count
        await self.until(lambda: len(self.acknowledged) >= enough, f"{count} more messages")

    async def finish(self) -> None:
        """Ends the work, waits for all of it, and checks."""
        self._over.set()
        await asyncio.gather(*self._tasks)
        expected = set(self.acknowledged)
        await self.until(lambda: expected <= {value for *_, value in self.read}, "all is read")
        await self.until(lambda: expected <= self.consumed, "the group has all")
        await self.until(lambda: self.jobs <= self.acked, "all jobs are acknowledged")
        await self.stop()
        self._check(self.read)
        assert not self.returned, f"acknowledged jobs came back: {self.returned}"

    async def stop(self) -> None:
        for task in (*self._tasks, *self._readers):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._readers, return_exceptions=True)

    async def check_node(self, url: str) -> None:
        """What one node has from the begin to the end is right, too."""
        found: list[tuple[int, int, bytes]] = []
        async with (
            fanlog.connect(url, wait_seconds=PATIENCE_SECONDS) as client,
            client.subscribe(TOPIC, start="earliest") as reader,
        ):
            while len(found) < len(self.read):
                message = await reader.next(PATIENCE_SECONDS)
                found.append((message.partition, message.offset, message.value))
        self._check(found)

    async def read_all(self, url: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
        """What one node has of a topic partition, with offsets."""
        found: list[tuple[int, bytes]] = []
        async with fanlog.connect(url, wait_seconds=PATIENCE_SECONDS) as client:
            reached = (await client.find_offsets(topic, "earliest"))[partition]
            end = (await client.find_offsets(topic, "latest"))[partition]
            if reached >= end:
                return found
            async with client.subscribe(topic, start="earliest", partitions=(partition,)) as reader:
                while reached < end:
                    batch = await reader.next_batch(PATIENCE_SECONDS)
                    found += [(message.offset, message.value) for message in batch.messages]
                    reached = batch.next_offset
        return found

    def _check(self, found: list[tuple[int, int, bytes]]) -> None:
        counts = Counter(value for *_, value in found)
        assert not [value for value, count in counts.items() if count > 1], "messages are twice"
        places = {value: (partition, offset) for partition, offset, value in found}
        assert self.acknowledged.items() <= places.items()
        for partition in range(PARTITIONS):
            offsets = [offset for p, offset, _ in found if p == partition]
            assert offsets == list(range(len(offsets)))
        for publisher in range(PUBLISHERS):
            begin = b"%d-" % publisher
            numbers = [int(v.partition(b"-")[2]) for *_, v in found if v.startswith(begin)]
            assert numbers == list(range(len(numbers)))

    def __str__(self) -> str:
        return (
            f"{len(self.acknowledged)} acknowledged, {len(self.read)} read, "
            f"{len(self.consumed)} by the group, {len(self.acked)} of {len(self.jobs)} jobs"
        )


async def while_working(url: str, disturb: Callable[[Workload], Awaitable[None]]) -> Workload:
    """Disturbs a cluster while clients work, and checks in the end."""
    workload = Workload(url)
    await workload.start()
    try:
        await workload.more(20)
        await disturb(workload)
        await workload.more(20)
        await workload.finish()
    finally:
        await workload.stop()
    return workload
