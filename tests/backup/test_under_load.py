"""A backup that is taken while everything runs is one point: whatever is restored from it fits
together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec

import fanlog
from fanlog.cli.backup import pull
from fanlog.cli.verify import LEDGER, staged_of
from fanlog.client.aio import Client
from fanlog.config import Config, ListenerOptions
from fanlog.log.backup.keeping import BackupFolder, Kept
from fanlog.log.backup.restoring import restore
from fanlog.log.backup.verify import verify_data
from fanlog.log.backup.verify_backup import verify_backup
from fanlog.model import KIB
from tests.client.ways import until
from tests.quick_folders import quick_folder

PATIENCE_SECONDS = 60.0
POINTS = 3
# Seconds since 1970, as `fanlog restore` takes them from the clock.
NOW = 1_800_000_000


def small_config() -> Config:
    config = Config()
    log = msgspec.structs.replace(config.log, segment_first_bytes=4 * KIB)
    broker = msgspec.structs.replace(config.broker, transaction_memory_bytes=4 * KIB)
    listener = ListenerOptions(host="127.0.0.1", port=0, drain_seconds=1.0)
    return msgspec.structs.replace(config, log=log, broker=broker, listener=listener)


class Load:
    """Publishers, a group, a queue and transactions, all at once, and what they were promised."""

    def __init__(self, broker: Client, url: str) -> None:
        self.broker = broker
        self.url = url
        self.numbers = 0
        self.transfers = 0
        self.jobs = 0
        self.acked: set[str] = set()
        self.committed = 0
        self.stopped = False

    async def create(self) -> None:
        for name in ("accounts.a", "accounts.b", "jobs"):
            await self.broker.create_topic(name, segment_bytes=64 * KIB)
        await self.broker.create_topic("numbers", durability="fsync", segment_bytes=64 * KIB)
        await self.broker.create_topic("latest", cleanup="compact", segment_bytes=64 * KIB)
        await self.broker.create_topic(
            "short", segment_bytes=64 * KIB, retention_bytes=256 * KIB, retention_seconds=3600
        )
        await self.broker.create_topic("gone", durability="memory")

    async def publish_numbers(self) -> None:
        """Exactly once, under a name."""
        async with fanlog.connect(self.url, producer="counter") as client:
            while not self.stopped:
                await client.publish("numbers", str(self.numbers))
                self.numbers += 1

    async def transfer(self) -> None:
        """What one account loses, the other gets; every seventh transaction is a large one."""
        while not self.stopped:
            amount = 1 + self.transfers % 50
            note = "x" * (20_000 if self.transfers % 7 == 0 else 10)
            async with self.broker.transaction() as transaction:
                await transaction.publish("accounts.a", f"{-amount} {note}")
                await transaction.publish("accounts.b", f"{amount} {note}")
            self.transfers += 1

    async def read_numbers(self) -> None:
        async with self.broker.consume("numbers", group="g", reset="earliest") as member:
            async for message in member:
                if message.offset % 10 == 0:
                    await member.commit(message)
                    self.committed = message.offset + 1

    async def publish_jobs(self) -> None:
        while not self.stopped:
            await self.broker.publish("jobs", f"job-{self.jobs}")
            self.jobs += 1
            await asyncio.sleep(0)

    async def work(self) -> None:
        async with self.broker.work("jobs", queue="q", prefetch=4) as worker:
            async for job in worker:
                await job.ack()
                self.acked.add(job.text)

    async def churn(self) -> None:
        """Segments that retention drops and compaction replaces, and topics that come and go."""
        i = 0
        while not self.stopped:
            i += 1
            await self.broker.publish("short", "s" * 5000)
            await self.broker.publish("latest", "v" * 3000, key=f"k{i % 5}")
            if i % 40 == 0:
                await self.broker.compact_topic("latest")
                await self.broker.create_topic(f"brief-{i}")
                await self.broker.publish(f"brief-{i}", "b")
                await self.broker.delete_topic(f"brief-{i}")

    def writers(self) -> list[Coroutine[Any, Any, None]]:
        return [self.publish_numbers(), self.transfer(), self.publish_jobs(), self.churn()]

    def readers(self) -> list[Coroutine[Any, Any, None]]:
        return [self.read_numbers(), self.work()]


class Promised(msgspec.Struct):
    """What had been acknowledged when a point was asked for."""

    numbers: int
    transfers: int
    acked: set[str]
    jobs: int
    committed: int


@contextlib.asynccontextmanager
async def loaded(folder: Path) -> AsyncIterator[tuple[fanlog.Broker, Load]]:
    async with fanlog.Broker(folder, small_config()) as broker:
        listener = broker.listen()
        load = Load(broker, f"fanlog://127.0.0.1:{listener.port}")
        await load.create()
        writers = [asyncio.create_task(work) for work in load.writers()]
        readers = [asyncio.create_task(work) for work in load.readers()]
        try:
            yield broker, load
        finally:
            load.stopped = True
            await asyncio.gather(*writers)
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)


async def take_point(broker: Client, backup: Path) -> Kept:
    with BackupFolder(str(backup)) as folder:
        return await pull(broker, folder.add)


async def test_every_point_is_one_moment_of_all_topics_groups_queues_and_transactions() -> None:
    promised: list[Promised] = []
    with quick_folder() as folder:
        async with loaded(folder / "data") as (broker, load):
            for i in range(1, POINTS + 1):
                await until(
                    lambda i=i: (
                        load.numbers > 30 * i
                        and load.transfers > 15 * i
                        and len(load.acked) > 20 * i
                    )
                )
                promised.append(
                    Promised(
                        load.numbers, load.transfers, set(load.acked), load.jobs, load.committed
                    )
                )
                kept = await take_point(broker, folder / "backup")
                assert kept.number == i
                assert kept.point.memory_topics == 1
        assert verify_backup(str(folder / "backup")).findings == []
        for number, known in enumerate(promised, 1):
            data = folder / f"restored-{number}"
            restore(str(folder / "backup"), str(data), NOW, number)
            report = verify_data(str(data), ledger=LEDGER, staged_of=staged_of)
            assert report.findings == []
            await check(data, known)


async def check(data: Path, known: Promised) -> None:
    async with fanlog.Broker(data, small_config()) as broker:
        assert (await broker.status()).problems == ()
        assert await broker.topics("gone") == []
        # What was acknowledged before is there, once, in order.
        numbers = [int(text) for text in await texts(broker, "numbers")]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= known.numbers
        # Money neither comes nor goes.
        await until_stored(broker)
        taken = [int(text.split()[0]) for text in await texts(broker, "accounts.a")]
        given = [int(text.split()[0]) for text in await texts(broker, "accounts.b")]
        assert sorted(-amount for amount in taken) == sorted(given)
        assert len(taken) >= known.transfers
        # A group is where it committed, and never past the end.
        (place,) = (await broker.groups.describe("g")).partitions
        assert place.committed is not None
        assert known.committed <= place.committed <= len(numbers)
        # A job that was acknowledged is done; every other one comes.
        jobs = await texts(broker, "jobs")
        assert len(jobs) >= known.jobs
        left = (await broker.groups.describe("q")).partitions
        lag = sum(p.lag for p in left)
        came: list[str] = []
        async with broker.work("jobs", queue="q", prefetch=100) as worker:
            while len(came) < lag:
                job = await worker.next(PATIENCE_SECONDS)
                came.append(job.text)
                await job.ack()
        assert not set(came) & known.acked
        assert set(jobs) - set(came) >= known.acked
        assert len(came) == len(set(came))
        await check_producer(broker, len(numbers))


async def until_stored(broker: Client) -> None:
    """Large transactions that were committed at the point are stored after the start."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            taken, given = await texts(broker, "accounts.a"), await texts(broker, "accounts.b")
            if len(taken) == len(given):
                return
            await asyncio.sleep(0.01)


async def check_producer(broker: fanlog.Broker, count: int) -> None:
    """The producer goes on under its name."""
    listener = broker.listen()
    async with fanlog.connect(f"fanlog://127.0.0.1:{listener.port}", producer="counter") as client:
        receipt = await client.publish("numbers", str(count))
    assert receipt.offset == count


async def texts(broker: Client, topic: str) -> list[str]:
    (info,) = await broker.topics(topic)
    end = info.partitions[0].visible_end
    out: list[str] = []
    if end == info.partitions[0].start_offset:
        return out
    async with broker.subscribe(topic, start="earliest") as reader:
        while True:
            batch = await reader.next_batch(PATIENCE_SECONDS)
            out += [message.text for message in batch.messages]
            if batch.next_offset >= end:
                return out
