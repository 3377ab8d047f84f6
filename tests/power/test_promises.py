"""What a power cut must not do, one test each: a real broker, a few steps, a cut, and a look from
outside."""

from __future__ import annotations

import asyncio

import pytest

import fanlog
from fanlog.format.frames import FrameKind
from fanlog.format.messages import Position, ProducerRegistered, RegisterProducer, decode
from fanlog.model import KIB
from tests.power.machine import FuseMachine
from tests.power.steps import (
    PATIENCE_SECONDS,
    assert_well,
    cut_power,
    publish_all,
    running,
    until_killed,
    values_of,
    words,
)

# Long enough for anything that would still come.
QUIET_SECONDS = 0.5
# A group that has committed OLD offsets, and is given NEW records from 0 on, must get them all.
OLD, NEW = 100, 150
# Entries that need more than one segment of a ledger.
LEDGER_BYTES = 300 * KIB


async def settle_ledgers(client: fanlog.Client, name: str) -> None:
    """Grows a topic and makes another: what was committed before is synced, with its names."""
    await client.create_topic(f"growing-{name}")
    await client.grow_topic(f"growing-{name}", partitions=2)
    await client.create_topic(f"last-{name}", durability="fsync")


# 1: the broker's own state


async def test_committed_positions_survive_when_their_ledger_has_new_segments(
    cuts: FuseMachine,
) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", partitions=100, durability="fsync")
        name = "reader-" + "x" * 150
        written = offset = 0
        while written < LEDGER_BYTES:
            offset += 1
            places = tuple(Position("orders", partition, 0) for partition in range(100))
            await client.commit(f"{name}-{offset}", places)
            written += 100 * len(name)
        await cut_power(broker)
        for number in range(1, offset + 1):
            assert len(await client.committed(f"{name}-{number}")) == 100
        await assert_well(client)


async def test_the_names_of_producers_survive_when_their_ledger_has_new_segments(
    cuts: FuseMachine,
) -> None:
    async with running(cuts) as (broker, client):
        names = [f"{i:05}" + "n" * 200 for i in range(LEDGER_BYTES // 200)]

        async def register_all() -> list[ProducerRegistered]:
            asking = (
                client.ask(FrameKind.REGISTER_PRODUCER, RegisterProducer(name)) for name in names
            )
            return [decode(ProducerRegistered, found) for found in await asyncio.gather(*asking)]

        first = await register_all()
        await cut_power(broker)
        again = await register_all()
        assert again == [ProducerRegistered(known.id, known.epoch + 1) for known in first]
        await assert_well(client)


async def test_acked_jobs_stay_acked_when_their_ledger_has_new_segments(
    cuts: FuseMachine,
) -> None:
    queue = "q" * 200
    async with running(cuts) as (broker, client):
        await client.create_topic("jobs", partitions=4, durability="fsync")
        jobs = words(2 * LEDGER_BYTES // 200, "job")
        await publish_all(client, "jobs", jobs)
        acked = await ack_jobs(client, queue, len(jobs) // 2)
        await cut_power(broker)
        later = await ack_jobs(client, queue, len(jobs) - len(acked))
        assert sorted(acked + later) == sorted(jobs)
        await assert_well(client)


async def ack_jobs(client: fanlog.Client, queue: str, count: int) -> list[bytes]:
    """Each with an acknowledgement of its own."""
    acked: list[bytes] = []

    async def ack(job: fanlog.Job) -> None:
        await job.ack()
        acked.append(job.value)

    async with (
        client.work("jobs", queue=queue, prefetch=100, reset="earliest") as worker,
        asyncio.TaskGroup() as acking,
    ):
        for _ in range(count):
            acking.create_task(ack(await worker.next(PATIENCE_SECONDS)))
    return acked


# 2: positions in a history that is gone


async def create_unsynced(client: fanlog.Client, topic: str) -> None:
    """A topic that a power cut leaves, and whose messages it may take."""
    await client.create_topic(topic, durability="os")
    await client.alter_topic(topic, retention_seconds=1_000_000)
    await client.create_topic(f"after-{topic}", durability="fsync")


async def test_a_group_reads_what_is_new_after_the_log_lost_its_end(cuts: FuseMachine) -> None:
    gaps: list[fanlog.Gap] = []
    async with running(cuts) as (broker, client):
        await create_unsynced(client, "orders")
        await publish_all(client, "orders", words(OLD))
        async with client.consume("orders", group="g", reset="earliest", commit="manual") as member:
            for _ in range(OLD):
                await member.next(PATIENCE_SECONDS)
            await member.commit()
        await settle_ledgers(client, "g")
        await cut_power(broker)
        left = (await client.find_offsets("orders", "latest"))[0]
        new = words(NEW, "new")
        await publish_all(client, "orders", new)
        async with client.consume(
            "orders", group="g", reset="earliest", on_gap=gaps.append
        ) as member:
            found: set[bytes] = set()
            while len(found & set(new)) < len(new):
                found.add((await member.next(PATIENCE_SECONDS)).value)
        assert bool(gaps) == (left < OLD)


async def test_a_durable_name_reads_what_is_new_after_the_log_lost_its_end(
    cuts: FuseMachine,
) -> None:
    gaps: list[fanlog.Gap] = []
    async with running(cuts) as (broker, client):
        await create_unsynced(client, "orders")
        await publish_all(client, "orders", words(OLD))
        async with client.subscribe("orders", durable="d", start="earliest") as reader:
            for _ in range(OLD):
                await reader.next(PATIENCE_SECONDS)
            await reader.commit()
        await settle_ledgers(client, "d")
        await cut_power(broker)
        left = (await client.find_offsets("orders", "latest"))[0]
        new = words(NEW, "new")
        await publish_all(client, "orders", new)
        async with client.subscribe(
            "orders", durable="d", start="earliest", on_gap=gaps.append
        ) as reader:
            found: set[bytes] = set()
            while len(found & set(new)) < len(new):
                found.add((await reader.next(PATIENCE_SECONDS)).value)
        assert bool(gaps) == (left < OLD)


async def test_a_subscriber_that_resumes_reads_what_is_new_after_the_log_lost_its_end(
    cuts: FuseMachine,
) -> None:
    gaps: list[fanlog.Gap] = []
    async with running(cuts) as (broker, client), fanlog.connect(broker.url) as other:
        await create_unsynced(client, "orders")
        await publish_all(client, "orders", words(OLD))
        async with client.subscribe("orders", start="earliest", on_gap=gaps.append) as reader:
            for _ in range(OLD):
                await reader.next(PATIENCE_SECONDS)
            # Its connection comes back only after others have published.
            broker.kill()
            await asyncio.to_thread(broker.start)
            left = (await other.find_offsets("orders", "latest"))[0]
            new = words(NEW, "new")
            await publish_all(other, "orders", new)
            found: set[bytes] = set()
            while len(found & set(new)) < len(new):
                found.add((await reader.next(PATIENCE_SECONDS)).value)
        assert bool(gaps) == (left < OLD)


async def test_a_queue_hands_out_what_is_new_after_the_log_lost_its_end(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await create_unsynced(client, "jobs")
        await publish_all(client, "jobs", words(OLD))
        async with client.work("jobs", queue="q", prefetch=100, reset="earliest") as worker:
            for _ in range(OLD):
                await (await worker.next(PATIENCE_SECONDS)).ack()
        await settle_ledgers(client, "q")
        await cut_power(broker)
        new = words(NEW, "new")
        await publish_all(client, "jobs", new)
        found: set[bytes] = set()
        async with client.work("jobs", queue="q", prefetch=100) as worker:
            while len(found & set(new)) < len(new):
                job = await worker.next(PATIENCE_SECONDS)
                await job.ack()
                found.add(job.value)


# 14: names of folders


async def test_a_new_data_folder_survives(cuts: FuseMachine) -> None:
    cuts.data = cuts.root / "srv" / "fanlog" / "data"
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", durability="fsync")
        await client.publish("orders", b"one")
        await cut_power(broker)
        assert await values_of(client, "orders") == [b"one"]
        await assert_well(client)


async def test_a_transform_does_nothing_again_whose_ledger_came_last(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("in", durability="fsync")
        await client.create_topic("out", durability="fsync")
        await publish_all(client, "in", words(100))

        async def transform() -> int:
            return await client.transform(
                "in", "out", lambda message: message.value, group="g", idle_seconds=QUIET_SECONDS
            )

        done = 0
        while done < 100:
            # In one go, unless a slow machine is idle for so long.
            done += await transform()
        assert done == 100
        await cut_power(broker)
        assert await transform() == 0
        assert sorted(await values_of(client, "out")) == sorted(words(100))
        await assert_well(client)


# 15: transactions whose records have gone


async def begin_a_second(client: fanlog.Client) -> None:
    """The last checkpoint of transactions has just been: the next is a second away."""
    async with client.transaction() as tx:
        await tx.publish("other", b"x")
    await asyncio.sleep(0.3)


async def test_a_transaction_is_not_done_again_after_compaction(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("other", durability="fsync")
        await client.create_topic(
            "prices", cleanup="compact", durability="fsync", segment_bytes=64 * KIB
        )
        await begin_a_second(client)
        async with client.transaction() as tx:
            await tx.publish("prices", b"old", key="k")
        await client.publish("prices", b"new", key="k")
        for i in range(8):
            await client.publish("prices", bytes(20_000), key=f"filler-{i}")
        await client.compact_topic("prices")
        await cut_power(broker)
        # The cut may have undone the compaction, and nothing else.
        assert await values_of(client, "prices", b"k") in ([b"old", b"new"], [b"new"])
        await client.compact_topic("prices")
        assert await values_of(client, "prices", b"k") == [b"new"]
        await assert_well(client)


async def test_records_of_a_transaction_that_were_deleted_do_not_come_back(
    cuts: FuseMachine,
) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("other", durability="fsync")
        await client.create_topic("orders", durability="fsync")
        await begin_a_second(client)
        async with client.transaction() as tx:
            for word in words(10):
                await tx.publish("orders", word)
        assert await client.delete_records("orders", "latest") == {0: 10}
        await cut_power(broker)
        assert await values_of(client, "orders") == []
        assert await client.find_offsets("orders", "latest") == {0: 10}
        assert (await client.publish("orders", b"next")).offset == 10
        await assert_well(client)


# 16: topics of the same name


async def test_a_topic_created_again_has_no_positions(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", durability="fsync")
        await publish_all(client, "orders", words(100))
        async with client.consume("orders", group="g", reset="earliest", commit="manual") as member:
            for _ in range(100):
                await member.next(PATIENCE_SECONDS)
            await member.commit()
        async with client.work("orders", queue="q", prefetch=100, reset="earliest") as worker:
            for _ in range(100):
                await (await worker.next(PATIENCE_SECONDS)).ack()
        await settle_ledgers(client, "g")
        await client.delete_topic("orders")
        await client.create_topic("orders", durability="fsync")
        new = words(200, "new")
        async with fanlog.connect(broker.url) as publisher:
            await publish_all(publisher, "orders", new)
        await cut_power(broker)
        async with client.consume("orders", group="g", reset="earliest") as member:
            found = [(await member.next(PATIENCE_SECONDS)).value for _ in new]
        assert sorted(found) == sorted(new)
        jobs: list[bytes] = []
        async with client.work("orders", queue="q", prefetch=100) as worker:
            for _ in new:
                job = await worker.next(PATIENCE_SECONDS)
                await job.ack()
                jobs.append(job.value)
        assert sorted(jobs) == sorted(new)
        await assert_well(client)


# 17: producers that were fenced


async def test_a_producer_that_was_fenced_stays_fenced(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", durability="fsync")
        async with fanlog.connect(broker.url, producer="billing") as old:
            await old.publish("orders", b"old")
            async with fanlog.connect(broker.url, producer="billing") as new:
                await new.publish("orders", b"new")
                with pytest.raises(fanlog.errors.FencedError):
                    await old.publish("orders", b"too late")
                await cut_power(broker)
                with pytest.raises(fanlog.errors.FencedError):
                    await old.publish("orders", b"still too late")
                await new.publish("orders", b"newer")
        assert await values_of(client, "orders") == [b"old", b"new", b"newer"]
        await assert_well(client)


# 18: what nobody was promised


@pytest.mark.parametrize("seed", range(4))
async def test_torn_writes_that_were_never_acknowledged_are_no_damage(
    fuse: FuseMachine, seed: int
) -> None:
    fuse.mode, fuse.seed = "random", seed
    async with running(fuse) as (broker, client):
        await client.create_topic("first", durability="fsync")
        await client.create_topic("orders", durability="fsync")
        await client.publish("first", b"so that there is a journal")
        fuse.kill_at(broker, "write", "/journal/", nth=1 + seed % 2)
        values = [bytes([65 + i]) * 9_000 for i in range(20)]
        publishing = [asyncio.create_task(client.publish("orders", value)) for value in values]
        await until_killed(fuse)
        await cut_power(broker)
        await asyncio.gather(*publishing)
        assert sorted(await values_of(client, "orders")) == values
        await assert_well(client)


# 19: producers whose records were all deleted


async def test_a_publish_in_flight_is_stored_once_after_its_log_was_emptied(
    cuts: FuseMachine,
) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", durability="fsync")
        for word in words(10):
            await client.publish("orders", word)
        assert await client.delete_records("orders", "latest") == {0: 10}
        cuts.kill_at(broker, "write", "/journal/")
        publishing = asyncio.create_task(client.publish("orders", b"in flight"))
        await until_killed(cuts)
        await cut_power(broker)
        assert (await publishing).offset == 10
        assert await values_of(client, "orders") == [b"in flight"]
        await assert_well(client)


# Disks that fail


async def test_a_sync_that_fails_acknowledges_nothing(fuse: FuseMachine) -> None:
    async with running(fuse) as (broker, client):
        await client.create_topic("orders", durability="fsync")
        for word in words(10):
            await client.publish("orders", word)
        fuse.fail("fsync", "/journal/")
        with pytest.raises(fanlog.errors.LogFailedError):
            await client.publish("orders", b"lost")
        # The kernel says of the next sync that all is well.
        with pytest.raises(fanlog.errors.LogFailedError):
            await client.publish("orders", b"lost as well")
        assert (await client.status()).state == "failing"
        await cut_power(broker)
        assert await values_of(client, "orders") == words(10)
        await client.publish("orders", b"next")
        await assert_well(client)


async def test_a_disk_that_is_full_at_the_cut_keeps_what_was_acknowledged(
    fuse: FuseMachine,
) -> None:
    acknowledged: list[bytes] = []
    async with running(fuse) as (broker, client):
        await client.create_topic("orders", durability="fsync", segment_bytes=64 * KIB)
        await client.publish("orders", b"first")
        fuse.limit(fuse.tell()["used"] + 200 * KIB)

        async def publish_until_full() -> None:
            for word in words(1000):
                await client.publish("orders", word * 1000)
                acknowledged.append(word * 1000)

        with pytest.raises(fanlog.errors.DiskFullError):
            await publish_until_full()
        await cut_power(broker)
        assert await values_of(client, "orders") == [b"first", *acknowledged]
        fuse.limit(None)
        await client.publish("orders", b"there is room")
