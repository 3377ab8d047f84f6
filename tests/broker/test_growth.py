"""Topics that grow: who is told what, who begins where, and what a crash leaves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fanlog.broker.lifecycle import growth
from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.config import BrokerOptions
from fanlog.errors import (
    DiskFullError,
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    LogFailedError,
    PartitionNotFoundError,
    TopicDeletedError,
    TopicNotFoundError,
)
from fanlog.format.messages import (
    Joined,
    PartitionOffset,
    Position,
    RegisterProducer,
    Subscribe,
)
from fanlog.log import store
from fanlog.model import GROUP_PREFIX, PARTITIONS_MAX, Start
from tests.broker.deletions import delete_records
from tests.broker.queues.workers import hire
from tests.broker.stage import Peer, Publisher, Stage, no_room, stage, succeeded


class Hearer:
    """Who has topics open."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []

    def grew(self, number: int, partitions: int) -> None:
        self.heard.append((number, partitions))


def values(peer: Peer) -> list[tuple[int, bytes | None]]:
    return [(b.header.partition, value) for b in peer.batches for value in b.values]


def publish(on: Stage, topic: str, *partitions: int) -> None:
    """A message to each of these partitions, which says where it went."""
    for partition in partitions:
        on.publish(topic, [b"to %d" % partition], partition=partition)
    on.run()


def test_a_topic_grows_and_says_so() -> None:
    with stage() as on:
        on.core.create_topic("t", {"partitions": 2})
        hearer = Hearer()
        on.core.openers[hearer] = None
        topic = on.grow("t", 5)
        info = on.core.describe("t")
        assert info.settings.partitions == len(info.partitions) == 5
        assert [(p.partition, p.start_offset, p.visible_end) for p in info.partitions] == [
            (i, 0, 0) for i in range(5)
        ]
        assert hearer.heard == [(topic.number, 5)]
        publish(on, "t", 0, 4)
        assert on.values("t", 4) == [b"to 4"]


def test_as_many_partitions_as_there_are_change_nothing() -> None:
    with stage() as on:
        on.core.create_topic("t", {"partitions": 2})
        hearer = Hearer()
        on.core.openers[hearer] = None
        before = on.core.describe("t")
        on.grow("t", 2)
        assert on.core.describe("t") == before
        assert hearer.heard == []


@pytest.mark.parametrize("partitions", [1, 0, -1, PARTITIONS_MAX + 1])
def test_a_topic_does_not_shrink_or_pass_the_limit(partitions: int) -> None:
    with stage() as on:
        on.core.create_topic("t", {"partitions": 2})
        before = on.core.describe("t")
        with pytest.raises(InvalidArgumentError, match=r"can only grow|can't be"):
            on.grow("t", partitions)
        assert on.core.describe("t") == before


def test_a_compacted_topic_does_not_grow(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {"cleanup": "compact"})
        with pytest.raises(InvalidArgumentError, match="compacted, and can't grow"):
            on.grow("t", 2)
        assert len(on.core.describe("t").partitions) == 1


def test_neither_the_brokers_own_topics_grow_nor_those_that_are_not_there(data: Path) -> None:
    with stage(data) as on:
        on.publish("t", [b"a"])
        on.run()
        on.core.commit_positions("me", [Position("t", 0, 1)])
        with pytest.raises(InvalidNameError):
            on.grow("_fanlog.cursors", 2)
        assert len(on.core.describe("_fanlog.cursors").partitions) == 1
        with pytest.raises(TopicNotFoundError):
            on.grow("nowhere", 2)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_new_count_and_what_is_published_outlive_a_restart(data: Path, durability: str) -> None:
    with stage(data, durability=durability) as on:
        on.core.create_topic("t", {})
        publish(on, "t", 0)
        on.sync_group.sync()
        on.grow("t", 3)
        publish(on, "t", 2)
        on.sync_group.sync()
        on.run()
    with stage(data) as on:
        assert on.core.describe("t").settings.partitions == 3
        assert [on.values("t", i) for i in range(3)] == [[b"to 0"], [], [b"to 2"]]


# Readers


async def test_readers_get_the_new_partitions_from_their_first_record() -> None:
    with stage() as on:
        on.core.create_topic("t.a", {})
        publish(on, "t.a", 0)
        named = await on.subscribe("t.a", start=Start("latest"))
        fitting = await on.subscribe("t.*", start=Start("latest"))
        number = on.grow("t.a", 3).number
        publish(on, "t.a", 0, 1, 2)
        expected = Joined(
            number, "t.a", on.core.epoch, (PartitionOffset(1, 0), PartitionOffset(2, 0))
        )
        for peer in (named, fitting):
            assert peer.joins[1:] == [expected]
            assert sorted(values(peer)) == [(0, b"to 0"), (1, b"to 1"), (2, b"to 2")]
            assert peer.gaps == []
        assert [p.readers for p in on.core.describe("t.a").partitions] == [2, 2, 2]


async def test_a_reader_of_chosen_partitions_keeps_to_them() -> None:
    with stage() as on:
        on.core.create_topic("t", {"partitions": 2})
        chosen = await on.subscribe("t", partitions=(1,))
        on.grow("t", 3)
        publish(on, "t", 0, 1, 2)
        assert len(chosen.joins) == 1
        assert values(chosen) == [(1, b"to 1")]


async def test_a_reader_that_is_blocked_gets_the_new_partitions_when_it_can() -> None:
    with stage() as on:
        on.core.create_topic("t", {})
        slow = await on.subscribe("t")
        slow.room = 10
        publish(on, "t", 0)
        on.grow("t", 2)
        publish(on, "t", 1, 0)
        slow.drain(on.core)
        on.run()
        assert sorted(values(slow)) == [(0, b"to 0"), (0, b"to 0"), (1, b"to 1")]


class CutOff(Peer):
    """A reader whose connection, with all that it has, is closed as it is told something."""

    def __init__(self, on: Stage) -> None:
        super().__init__()
        self._on = on
        self.mine: list[BrokerSubscription] = []

    def joined(self, joined: Joined) -> None:
        super().joined(joined)
        for subscription in self.mine:
            self._on.core.subscriptions.remove(subscription)


async def test_a_reader_that_is_cut_off_as_it_is_told_leaves_nothing_behind() -> None:
    with stage() as on:
        on.core.create_topic("t", {})
        peer = CutOff(on)
        for key in (1, 2):
            added = await on.core.subscriptions.add(key, Subscribe(target="t"), peer, peer)
            peer.mine.append(added[0])
            on.core.subscriptions.start(added[0])
        on.grow("t", 2)
        assert len(peer.joins) == 1
        assert [part.readers for part in on.core.describe("t").partitions] == [0, 0]


async def test_a_topic_that_grows_while_a_reader_looks_for_its_place_is_read_whole(
    data: Path,
) -> None:
    with stage(data) as on:
        on.core.create_topic("t.a", {})
        publish(on, "t.a", 0)
        # The place of a time is looked up in a thread.
        start = Start("time", on.runtime.time_us + 1)
        subscribing = asyncio.ensure_future(on.subscribe("t.>", start=start))
        await asyncio.sleep(0)
        on.grow("t.a", 2)
        publish(on, "t.a", 1)
        while not subscribing.done():
            on.run()
            await asyncio.sleep(0)
        reader = subscribing.result()
        publish(on, "t.a", 1, 0)
        (joined,) = reader.joins
        assert [(s.partition, s.offset) for s in joined.starts] == [(0, 1), (1, 0)]
        assert sorted(values(reader)) == [(0, b"to 0"), (1, b"to 1"), (1, b"to 1")]


async def test_a_durable_name_that_is_away_leaves_nothing_of_new_partitions_out(
    data: Path,
) -> None:
    with stage(data) as on:
        publish(on, "t", 0)
        on.core.commit_positions("me", [Position("t", 0, 1, on.core.epoch)])
        on.run()
        on.grow("t", 2)
        publish(on, "t", 1)
    with stage(data) as on:
        publish(on, "t", 1)
        peer = await on.subscribe("t", durable="me", start=Start("latest"))
        on.run()
        assert values(peer) == [(1, b"to 1"), (1, b"to 1")]
        unknown = await on.subscribe("t", durable="new", start=Start("latest"))
        assert values(unknown) == []


def test_places_are_durable_before_the_new_count_is(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {"partitions": 1})
        hire(on, reset="latest")
        on.core.durable.commit_positions([("me", (Position("t", 0, 0, on.core.epoch),))])
        on.run()
        got: list[object] = []
        on.core.grow_topic("t", 2, got.append)
        assert got == []
        assert len(on.core.describe("t").partitions) == 1
        # Somebody comes while the first places are written.
        on.core.durable.commit_positions([("later", (Position("t", 0, 0, on.core.epoch),))])
        on.sync_group.sync()
        on.runtime.run()
        assert got == []
        assert on.core.durable.is_pending("later", "t", 1)
        on.sync_group.sync()
        on.runtime.run()
        assert on.core.durable.position("later", "t", 1) is not None
        assert got == [on.core.catalog.get("t")]
        assert len(on.core.describe("t").partitions) == 2


@pytest.mark.parametrize("end", ["sync", "topic"])
def test_what_comes_between_ends_a_growth(data: Path, end: str) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {"partitions": 1})
        on.core.durable.commit_positions([("me", (Position("t", 0, 0, on.core.epoch),))])
        on.run()
        got: list[object] = []
        on.core.grow_topic("t", 2, got.append)
        if end == "topic":
            on.core.delete_topic("t")
            on.sync_group.sync()
            on.runtime.run()
        else:
            on.fail_sync()
            assert len(on.core.describe("t").partitions) == 1
        (fault,) = got
        assert isinstance(fault, TopicDeletedError if end == "topic" else LogFailedError)


async def test_names_that_never_committed_in_the_topic_get_no_position(data: Path) -> None:
    with stage(data) as on:
        publish(on, "t", 0)
        publish(on, "u", 0)
        on.core.commit_positions("me", [Position("u", 0, 1, on.core.epoch)])
        on.run()
        on.grow("t", 2)
        assert [p.topic for p in on.core.durable.positions("me")] == ["u"]


async def test_growing_keeps_to_the_limit_of_positions() -> None:
    with stage(options=BrokerOptions(durable_positions_max=4)) as on:
        publish(on, "t", 0)
        for name in ("a", "b"):
            on.core.commit_positions(name, [Position("t", 0, 1, on.core.epoch)])
        with pytest.raises(LimitError, match="durable_positions_max"):
            on.grow("t", 3)
        assert len(on.core.describe("t").partitions) == 1
        on.grow("t", 2)
        assert on.core.durable.count == 4


# Very many positions

NAMES = 12
A_WRITE = 8


@pytest.fixture
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_STARTS_A_WRITE", A_WRITE)


def followed(on: Stage, *, queue: bool = False) -> list[str]:
    """A topic of one partition in which many groups have a position."""
    on.core.create_topic("t", {"partitions": 1})
    names = [f"{GROUP_PREFIX}g{number:02}" for number in range(NAMES)]
    start = (Position("t", 0, 0, on.core.epoch),)
    on.core.durable.commit_positions([(name, start) for name in names])
    if queue:
        hire(on, reset="latest")
    on.run()
    return names


def starts(on: Stage, name: str) -> list[int]:
    return sorted(p.partition for p in on.core.durable.positions(name))


def grow_until(on: Stage, partitions: int, between: Callable[[], object]) -> list[object]:
    """Grows the topic, and calls `between` after each sync that is not the last; the answer."""
    got: list[object] = []
    on.core.grow_topic("t", partitions, got.append)
    while not got:
        on.sync_group.sync()
        on.runtime.run()
        if not got:
            between()
    return got


@pytest.mark.usefixtures("small_writes")
@pytest.mark.parametrize("partitions", [4, 30])
def test_positions_of_very_many_groups_are_written_some_at_a_time(
    data: Path, partitions: int
) -> None:
    with stage(data) as on:
        names = followed(on)
        counts = [on.core.durable.count]
        look = lambda: counts.append(on.core.durable.count)  # noqa: E731
        assert grow_until(on, partitions, look) == [on.core.catalog.get("t")]
        counts.append(on.core.durable.count)
        steps = [after - before for before, after in pairwise(counts)]
        assert 0 < max(steps) <= A_WRITE
        assert sum(steps) == NAMES * (partitions - 1)
        assert all(starts(on, name) == list(range(partitions)) for name in names)


@pytest.mark.usefixtures("small_writes")
def test_positions_in_memory_are_taken_in_some_at_a_turn() -> None:
    with stage() as on:
        followed(on)
        got: list[object] = []
        on.core.grow_topic("t", 30, got.append)
        counts = [NAMES, on.core.durable.count]
        while on.runtime.due:
            on.runtime.due.popleft()()
            counts.append(on.core.durable.count)
        assert got
        assert 0 < max(after - before for before, after in pairwise(counts)) <= A_WRITE
        assert counts[-1] == NAMES * 30


@pytest.mark.usefixtures("small_writes")
def test_jobs_of_a_queue_begin_with_the_first_record_of_each_of_very_many_partitions(
    data: Path,
) -> None:
    with stage(data) as on:
        followed(on, queue=True)
        assert grow_until(on, 30, lambda: None)
        publish(on, "t", 29)
    with stage(data) as on:
        assert on.core.queues.every()[0].partitions[on.core.catalog.get("t").number, 29]


@pytest.mark.usefixtures("small_writes")
async def test_a_group_that_is_deleted_while_its_topic_grows_stays_deleted(data: Path) -> None:
    with stage(data) as on:
        first, *_, last = followed(on)
        waiting = [first, last]

        def delete_one() -> None:
            if waiting:
                on.core.groups.delete(waiting.pop(0).removeprefix(GROUP_PREFIX), succeeded)

        assert grow_until(on, 30, delete_one) == [on.core.catalog.get("t")]
        assert starts(on, first) == starts(on, last) == []
        assert on.core.durable.count == (NAMES - 2) * 30
    with stage(data) as on:
        assert on.core.durable.count == (NAMES - 2) * 30


@pytest.mark.usefixtures("small_writes")
def test_a_topic_that_grows_twice_at_once_loses_no_position(data: Path) -> None:
    with stage(data) as on:
        names = followed(on)
        other: list[object] = []

        def commit() -> None:
            """The smaller growth ends first, and then somebody commits in its partitions."""
            topic = on.core.catalog.get("t")
            if len(topic.partitions) == 3 and not topic.partitions[2].visible_end:
                on.publish("t", [b"a"], partition=2)
                on.core.turns.end()
                at = (Position("t", 2, 1, on.core.epoch),)
                on.core.durable.commit_positions([(name, at) for name in names])

        got: list[object] = []
        on.core.grow_topic("t", 30, got.append)
        on.core.grow_topic("t", 3, other.append)
        while not (got and other):
            on.sync_group.sync()
            on.runtime.run()
            commit()
        topic = on.core.catalog.get("t")
        assert got == other == [topic]
        assert len(topic.partitions) == 30
        found = [on.core.durable.position(name, "t", 2) for name in names]
        assert [position and position.offset for position in found] == [1] * NAMES


@pytest.mark.usefixtures("small_writes")
def test_a_group_that_comes_while_a_topic_grows_leaves_nothing_out(data: Path) -> None:
    with stage(data) as on:
        followed(on)
        coming = iter(["x", "y"])

        def come() -> None:
            name = next(coming, "")
            if name:
                at = (Position("t", 0, 0, on.core.epoch),)
                on.core.durable.commit_positions([(name, at)])

        assert grow_until(on, 30, come) == [on.core.catalog.get("t")]
        assert starts(on, "x") == starts(on, "y") == list(range(30))


@pytest.mark.usefixtures("small_writes")
def test_a_topic_that_is_deleted_while_positions_are_written_ends_its_growth(data: Path) -> None:
    with stage(data) as on:
        followed(on)

        def delete() -> None:
            if on.core.catalog.find("t") is not None:
                on.core.delete_topic("t")

        (fault,) = grow_until(on, 30, delete)
        assert isinstance(fault, TopicDeletedError)
        on.settle()
        assert on.core.durable.count == 0


@pytest.mark.usefixtures("small_writes")
def test_a_growth_whose_later_positions_find_no_room_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        followed(on)

        def refuse(*_: object) -> None:
            raise DiskFullError("no room")

        (fault,) = grow_until(
            on, 30, lambda: monkeypatch.setattr(on.core.durable, "commit_positions", refuse)
        )
        assert isinstance(fault, DiskFullError)
        assert len(on.core.catalog.get("t").partitions) == 1


# Publishers


def test_numbered_and_named_producers_go_on_in_new_partitions(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {})
        named = on.core.producers.register(RegisterProducer("billing"))
        by = Publisher(named.id)
        on.publish("t", [b"a"], by, epoch=named.epoch)
        on.grow("t", 2)
        on.publish("t", [b"b"], by, epoch=named.epoch, partition=1)
        on.publish("t", [b"b"], by, epoch=named.epoch, partition=1)
        on.run()
        assert [(a.partition, a.base_offset, a.duplicate) for a in by.acks] == [
            (0, 0, 0),
            (1, 0, 0),
            (1, 0, 1),
        ]
    with stage(data) as on:
        newer = on.core.producers.register(RegisterProducer("billing"))
        on.run()
        assert newer.epoch == named.epoch + 1
        on.publish("t", [b"c"], by, epoch=named.epoch, partition=1, sequence=1)
        on.run()
        assert [error.code for _, _, error in by.refusals] == ["fenced"]


def test_what_is_taken_before_the_growth_is_handed_on_before_it() -> None:
    with stage() as on:
        on.core.create_topic("t", {})
        by = on.publish("t", [b"a"])
        on.grow("t", 2)
        assert [ack.base_offset for ack in by.acks] == [0]


# What is kept, and crashes


def test_retention_and_deletion_cover_new_partitions(data: Path) -> None:
    with stage(data, retention_seconds=10) as on:
        on.core.create_topic("t", {})
        on.grow("t", 2)
        publish(on, "t", 1)
        on.runtime.time_us += 3600 * 1_000_000
        on.core.housekeeping()
        publish(on, "t", 1)
        assert on.core.describe("t").partitions[1].start_offset == 1
        delete_records(on.core, "t", {1: 2})
        assert on.core.describe("t").partitions[1].start_offset == 2
        number = on.core.catalog.get("t").number
        on.core.delete_topic("t")
        with pytest.raises(PartitionNotFoundError):
            on.core.catalog.partition(number, 1)


def test_a_full_disk_leaves_the_topic_as_it_was(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        publish(on, "t", 0)
        hearer = Hearer()
        on.core.openers[hearer] = None
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", no_room)
            with pytest.raises(DiskFullError):
                on.grow("t", 2)
        assert len(on.core.describe("t").partitions) == 1
        assert hearer.heard == []
        on.grow("t", 2)
        assert hearer.heard != []


class _Died(BaseException):
    """As a crash: nobody goes on after it."""


@pytest.mark.parametrize("after_saving", [False, True])
async def test_a_crash_in_the_middle_leaves_the_old_count_or_the_new_one(
    data: Path, monkeypatch: pytest.MonkeyPatch, after_saving: bool
) -> None:
    save_topic = store.save_topic

    def die(*given: object) -> None:
        if after_saving:
            save_topic(*given)  # type: ignore[arg-type]
        raise _Died

    with stage(data) as on:
        publish(on, "t", 0)
        on.core.commit_positions("me", [Position("t", 0, 1, on.core.epoch)])
        on.run()
        with monkeypatch.context() as dying:
            dying.setattr(store, "save_topic", die)
            with pytest.raises(_Died):
                on.grow("t", 3)
    with stage(data) as on:
        count = 3 if after_saving else 1
        assert on.core.describe("t").settings.partitions == count
        assert len(on.core.describe("t").partitions) == count
        on.grow("t", 3)
        publish(on, "t", 2)
        peer = await on.subscribe("t", durable="me", start=Start("latest"))
        assert values(peer) == [(2, b"to 2")]
