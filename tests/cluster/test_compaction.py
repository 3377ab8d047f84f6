"""Compaction with replicas: a follower compacts after its primary, a deleted key never returns, and
a retry is recognised on every node, also where its batch is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fanlog.cluster.reign import Reign
from fanlog.format.replication import Follow, ReplicaEvent, ReplicaPiece, Replicated
from fanlog.log import small_files
from fanlog.log.partition import PartitionLog
from fanlog.log.producers import encode_producers
from fanlog.model import KIB
from tests.broker.stage import HandRuntime, Publisher, Stage, stage
from tests.broker.test_compaction import compacted, put
from tests.cluster.copying_follower import CopyingFollower, last_values, records
from tests.cluster.three_nodes import ThreeNodes, three_nodes, until

EPOCH = 7
COMPACT: dict[str, Any] = {
    "durability": "os",
    "cleanup": "compact",
    "compact_after_bytes": 1,
    "segment_bytes": 64 * KIB,
    "tail_bytes": 4 * KIB,
    "retention_seconds": 0,
}


@contextmanager
def primary(folder: Path, **settings: Any) -> Iterator[tuple[Stage, Reign]]:
    reign = Reign(HandRuntime(), "c", EPOCH, "a.1", ("a.1",))
    with stage(folder, replicas=reign, adopt=reign, **(COMPACT | settings)) as on:
        reign.runtime = on.runtime
        yield on, reign


@contextmanager
def reigning(folder: Path, epoch: int) -> Iterator[tuple[Stage, Reign]]:
    """The primary of a later epoch, over a copy."""
    reign = Reign(HandRuntime(), "c", epoch, "d.1", ("d.1",))
    with stage(folder, replicas=reign, adopt=reign) as on:
        reign.runtime = on.runtime
        yield on, reign


def connect(reign: Reign, on: Stage, follower: CopyingFollower, node: str = "b") -> None:
    follower.topics.clear()
    _, link = reign.follow(Follow("c", node, f"{node}.1", EPOCH), follower)
    follower.link = link
    link.begin()
    on.run()


def level(reign: Reign, on: Stage, follower: CopyingFollower) -> None:
    """Follows, and copies everything."""
    connect(reign, on, follower)
    follower.answer_topics()
    work(reign, on, follower)


def work(reign: Reign, on: Stage, follower: CopyingFollower) -> None:
    """Both do what is due, with a heartbeat that says what is committed."""
    for _ in range(5):
        on.settle()
        follower.runtime.run()
        follower.applied(reign.epoch)
        reign.tick()
    on.settle()
    follower.runtime.run()


def primary_log(on: Stage, name: str = "t") -> PartitionLog:
    return on.core.catalog.get(name).partitions[0].log


def fill(on: Stage, rounds: int = 100, keys: int = 5) -> None:
    for i in range(rounds):
        put(on, "t", *((b"k%d" % k, b"%d." % i * 100) for k in range(keys)))


def check_same(on: Stage, follower: CopyingFollower) -> None:
    mine, theirs = primary_log(on), follower.log("t")
    assert theirs.end_offset == mine.end_offset
    assert last_values(theirs) == last_values(mine)


async def test_a_follower_compacts_after_its_primary(tmp_path: Path) -> None:
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a") as (on, reign):
        await asyncio.to_thread(level, reign, on, follower)
        for _ in range(5):
            fill(on)
            await compacted(on, "t")
            work(reign, on, follower)
            check_same(on, follower)
            theirs = follower.log("t")
            assert len(records(theirs)) == len(records(primary_log(on))) == 5
            assert theirs.bytes < 64 * KIB
            assert theirs.compacted_until == primary_log(on).compacted_until
        assert follower.log("t").compacted_us == primary_log(on).compacted_us
    follower.replica.close()


async def test_a_follower_waits_until_what_takes_a_record_s_place_is_committed(
    tmp_path: Path,
) -> None:
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a") as (on, reign):
        await asyncio.to_thread(level, reign, on, follower)
        fill(on)
        on.settle()
        reign.set_needed({"a.1", "c.1"}, 1)
        fill(on)
        await compacted(on, "t")
        reign.tick()
        on.settle()
        follower.runtime.run()
        assert follower.log("t").compacted_until == 0
        assert len(records(follower.log("t"))) == 1000
        reign.set_needed({"a.1"}, 1)
        work(reign, on, follower)
        assert follower.log("t").compacted_until == 1000
        check_same(on, follower)
    follower.replica.close()


async def test_what_a_primary_has_compacted_while_a_follower_was_away_is_compacted_there(
    tmp_path: Path,
) -> None:
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a") as (on, reign):
        await asyncio.to_thread(level, reign, on, follower)
        fill(on)
        work(reign, on, follower)
        assert follower.link is not None
        follower.link.gone()
        await compacted(on, "t")
        on.settle()
        assert len(records(follower.log("t"))) == 500
        await asyncio.to_thread(level, reign, on, follower)
        work(reign, on, follower)
        assert len(records(follower.log("t"))) == 5
        check_same(on, follower)
    follower.replica.close()


async def test_a_deleted_key_does_not_return_while_a_follower_copies(tmp_path: Path) -> None:
    """It has had the value; the tombstone goes away before it comes there."""
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a", tombstone_seconds=0) as (on, reign):
        put(on, "t", (b"deleted", b"x" * 100))
        fill(on, 1500)
        on.settle()
        connect(reign, on, follower)
        await asyncio.to_thread(follower.answer_topics)
        # A part of the log, with the value.
        while not follower.frames or not any(f.pieces for f in follower.frames):
            on.runtime.due.popleft()()
        held, on.runtime.due = on.runtime.due, type(on.runtime.due)()
        put(on, "t", (b"deleted", None))
        fill(on)
        on.settle()
        on.runtime.time_us += 10_000_000
        await compacted(on, "t")
        assert b"deleted" in {key for key, _ in records(primary_log(on)).values()}
        on.runtime.due += held
        work(reign, on, follower)
        check_same(on, follower)
        assert b"deleted" not in last_values(follower.log("t"))
        # Now that it has it, it may go.
        fill(on)
        await compacted(on, "t")
        work(reign, on, follower)
        for log in (primary_log(on), follower.log("t")):
            assert b"deleted" not in {key for key, _ in records(log).values()}
    follower.replica.close()


async def test_a_tombstone_that_a_follower_has_not_had_makes_it_copy_anew(tmp_path: Path) -> None:
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a", tombstone_seconds=0) as (on, reign):
        put(on, "t", (b"deleted", b"x"))
        await asyncio.to_thread(level, reign, on, follower)
        assert follower.link is not None
        follower.link.gone()
        put(on, "t", (b"deleted", None))
        fill(on)
        on.runtime.time_us += 10_000_000
        await compacted(on, "t")
        assert b"deleted" not in {key for key, _ in records(primary_log(on)).values()}
        await asyncio.to_thread(level, reign, on, follower)
        assert follower.incomplete
        check_same(on, follower)
    follower.replica.close()


async def test_a_copy_of_a_compacted_log_is_one_before_it_compacts_by_itself(
    tmp_path: Path,
) -> None:
    """It becomes the primary before that. Who follows it may have had a value and no tombstone."""
    behind = CopyingFollower(tmp_path / "c", EPOCH)
    copy = CopyingFollower(tmp_path / "d", EPOCH)
    with primary(tmp_path / "a", tombstone_seconds=0) as (on, reign):
        put(on, "t", (b"deleted", b"x"))
        await asyncio.to_thread(level, reign, on, behind)
        assert behind.link is not None
        behind.link.gone()
        put(on, "t", (b"deleted", None))
        fill(on)
        on.runtime.time_us += 10_000_000
        await compacted(on, "t")
        assert b"deleted" not in {key for key, _ in records(primary_log(on)).values()}
        connect(reign, on, copy)
        await asyncio.to_thread(copy.answer_topics)
        on.run()
        check_same(on, copy)
        until = primary_log(on).compacted_until
    assert 0 < copy.log("t").compacted_until <= until
    copy.replica.close(clean=False)
    behind.epoch = EPOCH + 1
    later = Reign(HandRuntime(), "c", EPOCH + 1, "d.1", ("d.1",))
    with stage(tmp_path / "d", replicas=later, adopt=later) as on:
        later.runtime = on.runtime
        connect(later, on, behind)
        await asyncio.to_thread(behind.answer_topics)
        on.run()
        assert behind.incomplete
        check_same(on, behind)
    behind.replica.close()


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_retry_of_a_batch_that_was_compacted_away_is_recognised_after_a_failover(
    tmp_path: Path, crashes: bool
) -> None:
    producer = Publisher(77)
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a") as (on, reign):
        put(on, "t", (b"k0", b"first"), (b"k1", b"first"), by=producer)
        fill(on)
        await compacted(on, "t")
        assert 0 not in records(primary_log(on))
        if crashes:
            # It has copied everything, and not heard of the producers.
            connect(reign, on, follower)
            await asyncio.to_thread(follower.answer_topics)
            follower.link = None
            while on.runtime.due and not follower.log("t").end_offset:
                on.runtime.due.popleft()()
            for link in list(reign._links.values()):  # pyright: ignore[reportPrivateUsage]
                link.gone()
            on.run()
            follower.replica.close(clean=False)
            follower = CopyingFollower(tmp_path / "b", EPOCH, complete=False)
        await asyncio.to_thread(level, reign, on, follower)
        work(reign, on, follower)
        check_same(on, follower)
        follower.replica.close(clean=not crashes)
    later = Reign(HandRuntime(), "c", EPOCH + 1, "b.1", ("b.1",))
    with stage(tmp_path / "b", replicas=later, adopt=later) as on:
        later.runtime = on.runtime
        end = primary_log(on).end_offset
        again = Publisher(77)
        put(on, "t", (b"k0", b"first"), (b"k1", b"first"), by=again)
        on.settle()
        assert not again.refusals
        assert primary_log(on).end_offset == end
        assert [(ack.base_offset, ack.duplicate) for ack in again.acks] == [(0, 1)]
        assert b"first" not in last_values(primary_log(on)).values()


@pytest.mark.parametrize("primary_dies", [False, True])
async def test_a_retry_is_recognised_after_a_copy_was_interrupted_before_it_had_the_producers(
    tmp_path: Path, primary_dies: bool
) -> None:
    """The copy was whole before. Compaction takes away what the follower lacks, while it copies.
    The next primary has not compacted yet."""
    producer = Publisher(77)
    follower, heir = (CopyingFollower(tmp_path / node, EPOCH) for node in "bc")
    with primary(tmp_path / "a") as (on, reign):
        fill(on, 1)
        await asyncio.to_thread(level, reign, on, follower)
        assert follower.link is not None
        follower.link.gone()
        fill(on, 1500)
        on.settle()
        connect(reign, on, follower)
        await asyncio.to_thread(follower.answer_topics)
        while follower.log("t").end_offset < 10:
            on.runtime.due.popleft()()
        held, on.runtime.due = on.runtime.due, type(on.runtime.due)()
        put(on, "t", (b"k0", b"first"), by=producer)
        fill(on)
        on.settle()
        (ack,) = producer.acks
        connect(reign, on, heir, node="c")
        await asyncio.to_thread(heir.answer_topics)
        on.run()
        await compacted(on, "t")
        assert ack.base_offset not in records(primary_log(on))
        on.runtime.due += held
        while follower.log("t").end_offset < primary_log(on).end_offset:
            on.runtime.due.popleft()()
        # It has all records, and has not heard of the producers.
        follower.link.gone()
        on.run()
        check_same(on, follower)
        follower.replica.close(clean=False)
        follower = CopyingFollower(tmp_path / "b", EPOCH, complete=not follower.incomplete)
        if not primary_dies:
            await asyncio.to_thread(level, reign, on, follower)
    heir.replica.close()
    if primary_dies:
        with reigning(tmp_path / "c", EPOCH + 1) as (on, reign):
            assert ack.base_offset in records(primary_log(on))
            follower.epoch = EPOCH + 1
            await asyncio.to_thread(level, reign, on, follower)
            check_same(on, follower)
    follower.replica.close()
    with reigning(tmp_path / "b", EPOCH + 2) as (on, _):
        again = Publisher(77)
        put(on, "t", (b"k0", b"first"), by=again)
        on.settle()
        assert [(one.base_offset, one.duplicate) for one in again.acks] == [(ack.base_offset, 1)]


async def test_a_copy_gets_its_producers_right_behind_records_that_nobody_has(
    tmp_path: Path,
) -> None:
    """Its last records are lost on all nodes. It would begin anew for ever otherwise."""
    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a") as (on, reign):
        put(on, "t", (b"k", b"v"), by=Publisher(77))
        await asyncio.to_thread(level, reign, on, follower)
        owner = primary_log(on).owner
        producers = encode_producers(9, primary_log(on).producer_histories())
    follower.replica.begin(EPOCH)
    gap = ReplicaPiece(*owner, 9, 9, b"")
    follower.replica.apply(Replicated(EPOCH, 0, 0, 0, 0, (), [gap]))
    event = ReplicaEvent(owner.topic, partition=owner.partition, producers=producers)
    follower.replica.apply(Replicated(EPOCH, 0, 0, 0, 0, [event], ()))
    follower.runtime.run()
    assert follower.log("t").end_offset == 9
    assert [history.producer_id for history in follower.log("t").producer_histories()] == [77]
    follower.replica.close()


async def test_lost_records_in_a_row_are_one_hole_in_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut hundreds of segments may be gone, and each hole is synced. The simulation
    found a follower that was silent so long that it never joined."""
    left_out: list[int] = []
    leave_out = PartitionLog.leave_out

    def count(log: PartitionLog, until: int) -> None:
        left_out.append(until)
        leave_out(log, until)

    follower = CopyingFollower(tmp_path / "b", EPOCH)
    with primary(tmp_path / "a") as (on, _):
        fill(on, rounds=400)
    files = sorted((tmp_path / "a").glob("topics/*-t/0/*.log"))
    assert len(files) > 5
    for file in files[1:-1]:
        file.write_bytes(b"")
    with reigning(tmp_path / "a", EPOCH) as (on, reign):
        log = primary_log(on)
        saved: list[str] = []
        save = small_files.save

        def note(path: str, *given: Any, **options: Any) -> None:
            saved.append(path)
            save(path, *given, **options)

        monkeypatch.setattr(small_files, "save", note)
        log.look_for_damage()
        assert len(saved) == 1
        assert len(log.damaged) == len(files) - 2
        monkeypatch.setattr(PartitionLog, "leave_out", count)
        await asyncio.to_thread(level, reign, on, follower)
        (hole,) = follower.log("t").damaged
        assert (hole.first, hole.next) == (log.damaged[0].first, log.damaged[-1].next)
        assert left_out == [hole.next]
        assert log.lost_until == 0
    follower.replica.close()


def test_nothing_goes_before_a_reign_is_opened(tmp_path: Path) -> None:
    """The record that takes another one's place may be what the in-sync set does not have yet."""
    with primary(tmp_path / "a") as (on, _):
        fill(on)
    with reigning(tmp_path / "a", EPOCH + 1) as (on, _):
        on.core.opening = "Some replicas have not confirmed it yet."
        on.core.housekeeping()
        on.settle()
        assert len(records(primary_log(on))) == 500
        on.core.opening = ""
        on.core.housekeeping()
        on.settle()
        assert len(records(primary_log(on))) < 500


async def test_a_follower_has_no_hole_when_a_primary_dies_before_it_has_told_of_a_deletion(
    tmp_path: Path,
) -> None:
    """It was copying what is deleted. The next primary has not heard of that."""
    follower, heir = (CopyingFollower(tmp_path / node, EPOCH) for node in "bc")
    with primary(tmp_path / "a", cleanup="delete") as (on, reign):
        fill(on, 1500)
        on.settle()
        connect(reign, on, heir, node="c")
        await asyncio.to_thread(heir.answer_topics)
        on.run()
        connect(reign, on, follower)
        await asyncio.to_thread(follower.answer_topics)
        while not follower.log("t").end_offset:
            on.runtime.due.popleft()()
        # The turn does not end any more.
        on.core.turns._scheduled = True  # pyright: ignore[reportPrivateUsage]
        primary_log(on).delete_before(7000)
        assert follower.log("t").end_offset < 7000
        while follower.log("t").end_offset <= 7000:
            on.runtime.due.popleft()()
        assert follower.link is not None
        assert heir.link is not None
        follower.link.gone()
        heir.link.gone()
    heir.replica.close()
    with reigning(tmp_path / "c", EPOCH + 1) as (on, reign):
        assert primary_log(on).start_offset == 0
        follower.epoch = EPOCH + 1
        await asyncio.to_thread(level, reign, on, follower)
        check_same(on, follower)
        assert records(follower.log("t")).keys() == records(primary_log(on)).keys()
    follower.replica.close()


async def test_three_nodes_compact_alike_and_keep_it_over_a_failover(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        async with await cluster.connect(first) as client:
            await client.create_topic("t", tombstone_seconds=0, **COMPACT)
            for i in range(60):
                for k in range(4):
                    await client.publish("t", b"%d." % i * 800, key=f"k{k}")
            await client.publish("t", None, key="k3")
            await client.compact_topic("t")
            await until(lambda: all(len(found) == 3 for found in _copies(cluster)))
            await until(lambda: all(_size(tmp_path / node) < 200 * KIB for node in "abc"))
            assert len({tuple(sorted(found.items())) for found in _copies(cluster)}) == 1
        await cluster.nodes.pop(first).stop(hand_over=False)
        await until(cluster.primary)
        async with await cluster.connect(cluster.primary()) as client:
            await client.publish("t", b"last", key="k0")
            await client.compact_topic("t")
        await cluster.start(first)
        await cluster.whole()
        await until(lambda: len({tuple(sorted(f.items())) for f in _copies(cluster)}) == 1)
        assert _copies(cluster)[0].keys() == {b"k0", b"k1", b"k2"}
        assert _copies(cluster)[0][b"k0"] == b"last"


def _copies(cluster: ThreeNodes) -> list[dict[bytes, bytes]]:
    """The last values of each node's copy."""
    found: list[dict[bytes, bytes]] = []
    for node in cluster.nodes.values():
        if node.primary is not None:
            log = node.primary.node.core.catalog.get("t").partitions[0].log
        else:
            assert node.follower is not None
            store = node.follower.replica._store  # pyright: ignore[reportPrivateUsage]
            log = next(topic for topic in store.topics if topic.name == "t").logs[0]
        found.append(last_values(log))
    return found


def _size(folder: Path) -> int:
    """Bytes of the topic's segments."""
    return sum(path.stat().st_size for path in folder.glob("topics/*-t/0/*.log"))
