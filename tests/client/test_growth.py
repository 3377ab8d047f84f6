"""Topics that grow, as clients see it: what they learn, and in what order messages go out."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.publishing import Publisher
from fanlog.config import ClientOptions
from fanlog.format.batch import Batch
from fanlog.format.frames import Ack
from fanlog.format.messages import Refused, TopicOpened
from fanlog.model import PARTITIONS_MAX, TopicSettings
from tests.client.proxy import proxy_to
from tests.client.test_reconnect import running, through
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, take, until

KEYS = [f"key-{i}" for i in range(40)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


# One suite over every way


async def test_a_topic_that_was_made_again_with_more_partitions_takes_messages_for_them(
    way: Way,
) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        await client.publish("t", b"old", partition=1)
        await client.delete_topic("t")
        await client.create_topic("t", partitions=4)
        receipt = await client.publish("t", b"new", partition=3)
        assert (receipt.partition, receipt.offset) == (3, 0)
        assert (await client.publish("t", b"new", partition=1)).offset == 0
        with pytest.raises(errors.PartitionNotFoundError):
            await client.publish("t", b"new", partition=4)


async def test_a_topic_grows_under_its_publishers_and_readers(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t.a", partitions=2)
        async with (
            client.subscribe("t.>") as fitting,
            client.subscribe("t.a", durable="me") as durable,
            client.consume("t.a", group="g") as member,
        ):
            before = [await client.publish("t.a", b"old", key=key) for key in KEYS]
            info = await client.grow_topic("t.a", partitions=8)
            assert info.settings.partitions == len(info.partitions) == 8
            assert (await client.describe_topic("t.a")).settings == info.settings
            after = [await client.publish("t.a", b"new", key=key) for key in KEYS]
            assert {receipt.partition for receipt in before} == {0, 1}
            assert {receipt.partition for receipt in after} == set(range(8))
            for reader in (fitting, durable, member):
                got = await take(reader, 2 * len(KEYS))
                assert {(m.partition, m.offset) for m in got} == {
                    (r.partition, r.offset) for r in before + after
                }
                assert reader.gaps == 0
            assert len(member.partitions) == 8
            await durable.commit()
        assert {p.partition for p in await client.committed("me")} == set(range(8))


async def test_what_cant_grow_says_why(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        before = await client.describe_topic("t")
        assert await client.grow_topic("t", partitions=2) == before
        with pytest.raises(errors.InvalidArgumentError, match="can only grow"):
            await client.grow_topic("t", partitions=1)
        with pytest.raises(errors.InvalidArgumentError, match=f"{PARTITIONS_MAX}"):
            await client.grow_topic("t", partitions=PARTITIONS_MAX + 1)
        with pytest.raises(errors.InvalidArgumentError, match="wrong"):
            await client.grow_topic("t", partitions="many")
        with pytest.raises(errors.TopicNotFoundError):
            await client.grow_topic("nowhere", partitions=2)
        with pytest.raises(errors.InvalidNameError):
            await client.grow_topic("_fanlog.cursors", partitions=2)
        await client.create_topic("k", cleanup="compact")
        with pytest.raises(errors.InvalidArgumentError, match="compacted"):
            await client.grow_topic("k", partitions=2)


async def test_a_transaction_that_begins_after_it_uses_the_new_partitions(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        async with client.transaction() as tx:
            await tx.publish("t", b"old", key="a")
            await client.grow_topic("t", partitions=8)
            await tx.publish("t", b"chosen", partition=7)
        async with client.transaction() as tx:
            for key in KEYS:
                await tx.publish("t", b"new", key=key)
        info = await client.describe_topic("t")
        assert info.records == 2 + len(KEYS)
        assert all(part.visible_end for part in info.partitions)


async def test_workers_get_the_jobs_of_new_partitions(data: Path) -> None:
    async with Way("networked", data).open() as client:
        await client.create_topic("jobs")
        async with client.work("jobs", queue="q", prefetch=10) as worker:
            await client.grow_topic("jobs", partitions=3)
            for partition in range(3):
                await client.publish("jobs", b"%d" % partition, partition=partition)
            done = set()
            for _ in range(3):
                job = await worker.next(PATIENCE_SECONDS)
                done.add((job.message.partition, job.message.value))
                await job.ack()
            assert done == {(0, b"0"), (1, b"1"), (2, b"2")}


# Other clients


async def test_a_client_that_is_connected_learns_that_another_has_grown_a_topic(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        fanlog.connect(broker.url) as publisher,
        fanlog.connect(broker.url) as operator,
    ):
        await publisher.publish("t", b"x", key="a")
        await operator.grow_topic("t", partitions=4)
        await operator.grow_topic("t", partitions=6)
        used: set[int] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while used != set(range(6)):
                receipts = [await publisher.publish("t", b"x", key=key) for key in KEYS]
                used = {receipt.partition for receipt in receipts}


async def test_a_partition_that_a_client_has_not_heard_of_is_asked_for(data: Path) -> None:
    async with running(data) as broker, proxy_to(broker.port) as proxy, through(proxy) as client:
        await client.publish("t", b"x")
        with pytest.raises(errors.PartitionNotFoundError, match="one partition, 0"):
            await client.publish("t", b"x", partition=1)
        assert broker.node is not None
        # As if the frame that tells of it had not arrived yet.
        broker.node.core.openers.clear()
        broker.node.core.grow_topic("t", 3, lambda _: None)
        assert (await client.publish("t", b"x", partition=1)).partition == 1
        await client.send("t", b"x", partition=2)
        await client.flush()
        assert broker.node.core.describe("t").records == 3


async def test_a_client_that_was_cut_off_meanwhile_comes_back_to_the_new_count(
    data: Path,
) -> None:
    async with running(data) as broker, proxy_to(broker.port) as proxy, through(proxy) as client:
        await client.create_topic("t")
        async with client.subscribe("t") as reader:
            await client.publish("t", b"0", key="k")
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not client.connected)
            waiting = [asyncio.ensure_future(client.publish("t", b"1", key=k)) for k in KEYS]
            await asyncio.sleep(0)
            assert broker.node is not None
            broker.node.core.grow_topic("t", 4, lambda _: None)
            proxy.refusing = False
            receipts = await asyncio.gather(*waiting)
            assert {receipt.partition for receipt in receipts} == {0}
            later = [await client.publish("t", b"2", key=key) for key in KEYS]
            assert {receipt.partition for receipt in later} == set(range(4))
            got = await take(reader, 1 + 2 * len(KEYS))
            assert sorted(m.value or b"" for m in got) == [b"0"] + [b"1"] * 40 + [b"2"] * 40


@pytest.mark.parametrize("seed", range(3))
async def test_keys_keep_their_order_through_growth_and_cuts(data: Path, seed: int) -> None:
    """What a key has published later is never stored earlier, in whichever partition."""
    async with running(data) as broker, proxy_to(broker.port, seed=seed) as proxy:
        async with (
            fanlog.connect(broker.url) as calm,
            through(proxy, batch_records=3, batches_in_flight=4) as client,
        ):
            await client.create_topic("t", durability="fsync" if seed % 2 else "os")
            await client.publish("t", b"0", key=KEYS[0])
            proxy.cut_after = (3000, 20_000)
            proxy.cut()
            for i in range(1, 1500):
                await client.send("t", b"%d" % i, key=KEYS[i % len(KEYS)])
                if i % 300 == 0:
                    await calm.grow_topic("t", partitions=1 + i // 300 * 2)
                if i % 20 == 0:
                    await asyncio.sleep(0.001)
            await client.flush()
            assert client.reconnects > 1
            proxy.cut_after = None
            info = await calm.describe_topic("t")
            assert info.records == 1500
            assert sum(part.visible_end > 0 for part in info.partitions) > 1
            async with calm.subscribe("t", start="earliest") as history:
                got = await take(history, 1500)
        by_key: dict[bytes | None, list[fanlog.Message]] = defaultdict(list)
        for message in sorted(got, key=lambda message: int(message.value or b"")):
            by_key[message.key].append(message)
        for messages in by_key.values():
            times = [message.timestamp for message in messages]
            assert times == sorted(times)


# Without a socket


class Wire:
    """Where batches go; the test answers them."""

    ready = True

    def __init__(self) -> None:
        self.sent: list[Batch] = []

    def write(self, data: bytes) -> None:
        self.sent.append(Batch(data))


class Outgoing:
    """A publisher without a linger, whose batches wait for the test's answers."""

    def __init__(self, partitions: int = 2) -> None:
        self.wire = Wire()
        self.publisher = Publisher(self.wire, ClientOptions(batch_records=1), self._open)
        self._partitions = partitions
        self.topic: TopicOutbox

    async def _open(self, name: str) -> TopicOpened:
        return TopicOpened(name, 5, 1, TopicSettings(partitions=self._partitions))

    async def open(self) -> Outgoing:
        self.topic = await self.publisher.topic("t")
        return self

    def put(self, value: bytes, key: str = "k", partition: int | None = None) -> None:
        self.publisher.put(self.topic, value, key, partition=partition)

    def take(self) -> list[Batch]:
        sent, self.wire.sent = self.wire.sent, []
        return sent

    def ack(self, *batches: Batch) -> None:
        headers = [batch.header for batch in batches]
        self.publisher.acked([Ack(5, h.partition, 1, 0, h.first_sequence, 0, 0) for h in headers])

    def refuse(self, batch: Batch, code: str, expected: int) -> None:
        header = batch.header
        self.publisher.refused(
            Refused(5, header.partition, header.first_sequence, expected, code, "no")
        )


def values(batches: list[Batch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.values]


async def test_what_is_put_after_the_growth_waits_for_the_answers_of_what_was_before() -> None:
    out = await Outgoing().open()
    for i in range(4):
        out.put(b"old %d" % i, KEYS[i])
    old = out.take()
    out.publisher.grew(5, 8)
    for i in range(4):
        out.put(b"new %d" % i, KEYS[i])
    out.put(b"chosen", partition=7)
    for batch in old:
        assert out.take() == []
        out.ack(batch)
    assert sorted(values(out.take()), key=bytes) == [b"chosen", *(b"new %d" % i for i in range(4))]  # type: ignore[arg-type]


async def test_a_batch_that_comes_back_goes_out_again_before_what_is_newer() -> None:
    out = await Outgoing().open()
    out.put(b"1", partition=0)
    out.put(b"2", partition=0)
    first, second = out.take()
    out.publisher.grew(5, 4)
    out.put(b"3", partition=3)
    out.refuse(first, "overloaded", 0)
    assert out.take() == []
    out.refuse(second, "out_of_sequence", 0)
    (again,) = out.take()
    assert (again.values, again.header.first_sequence) == ([b"2"], 0)
    out.ack(again)
    newer = out.take()
    assert values(newer) == [b"3"]
    out.ack(*newer)
    with pytest.raises(errors.OverloadedError):
        await out.publisher.flush()


async def test_a_topic_that_grows_twice_uses_the_last_count_once_the_first_is_settled() -> None:
    out = await Outgoing(1).open()
    out.put(b"one", partition=0)
    out.publisher.grew(5, 2)
    for key in KEYS:
        out.put(b"two", key)
    out.publisher.grew(5, 40)
    for key in KEYS:
        out.put(b"two", key)
    one = out.take()
    assert values(one) == [b"one"]
    out.ack(*one)
    for key in KEYS:
        out.put(b"three", key)
    second: list[Batch] = []
    while batches := out.take():
        assert {batch.values[0] for batch in batches} == {b"two"}
        second += batches
        out.ack(*batches[: len(batches) if len(second) < 2 * len(KEYS) else 0])
    assert len(second) == 2 * len(KEYS)
    assert {batch.header.partition for batch in second} == {0, 1}
    out.ack(*second)
    third = out.take()
    assert {batch.values[0] for batch in third} == {b"three"}
    assert len({batch.header.partition for batch in third}) > 10


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_broker_answers_nothing_overtakes_its_key(seed: int) -> None:
    """A broker at random: it takes batches, or refuses them for a moment, in any order of its
    partitions. What it has stored of a key must be in the order in which it was put."""
    chance = random.Random(seed)
    out = await Outgoing(1).open()
    stored: dict[bytes | None, list[int]] = defaultdict(list)
    expected: dict[int, int] = defaultdict(int)
    waiting: list[Batch] = []
    partitions = 1
    for i in range(400):
        out.put(b"%d" % i, chance.choice(KEYS[:5]))
        if chance.random() < 0.03:
            partitions += chance.randint(1, 3)
            out.publisher.grew(5, partitions)
        while chance.random() < 0.6 or (i == 399 and (waiting or out.wire.sent)):
            waiting += out.take()
            if not waiting:
                break
            place = chance.choice(waiting).header.partition
            batch = next(batch for batch in waiting if batch.header.partition == place)
            waiting.remove(batch)
            if batch.header.first_sequence != expected[place]:
                out.refuse(batch, "out_of_sequence", expected[place])
            elif chance.random() < 0.1:
                out.refuse(batch, "overloaded", expected[place])
            else:
                expected[place] += 1
                stored[batch.keys[0]].append(int(batch.values[0] or b""))
                out.ack(batch)
    assert out.publisher.buffered_bytes == 0
    assert sum(map(len, stored.values())) > 200
    assert len(expected) > 3
    for sequence in stored.values():
        assert sequence == sorted(sequence)
