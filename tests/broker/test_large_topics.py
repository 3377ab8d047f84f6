"""Topics with very many partitions: they change in small steps, and what happens in between breaks
no promise."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from fanlog.broker.lifecycle import growth
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.queues import queues as queues_module
from fanlog.errors import FanlogError, TopicDeletedError
from fanlog.log import store
from tests.broker.many_partitions import (
    A_STEP,
    A_TURN,
    PARTITIONS,
    STEPS_A_SLICE,
    filled,
    shorten_slices,
)
from tests.broker.queues.workers import hire
from tests.broker.stage import Stage, stage, succeeded


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are small, too."""
    shorten_slices(monkeypatch)
    monkeypatch.setattr(queues_module, "_MET_A_STEP", A_STEP)


def turn(on: Stage) -> None:
    if on.runtime.due:
        on.runtime.due.popleft()()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_deleted_topic_closes_a_few_files_at_a_turn(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        counts = [open_files()]
        got: list[FanlogError | None] = []
        on.core.delete_topic("t", got.append)
        counts.append(open_files())
        while on.runtime.due:
            turn(on)
            counts.append(open_files())
        assert counts[0] - counts[-1] == PARTITIONS
        assert max(before - later for before, later in pairwise(counts)) <= STEPS_A_SLICE
        assert got == [None]
    with stage(data) as on:
        assert on.core.catalog.find("t") is None


def test_all_logs_of_a_deleted_topic_refuse_at_once(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        topic = on.core.catalog.get("t")
        on.core.delete_topic("t", succeeded)
        for partition in topic.partitions:
            assert isinstance(partition.log.failure, TopicDeletedError)


def test_a_name_is_free_while_its_last_topic_closes_its_files(data: Path) -> None:
    before = open_files()
    with stage(data) as on:
        filled(on)
        on.core.delete_topic("t", succeeded)
        number = filled(on).number
        on.run()
    assert open_files() <= before
    with stage(data) as on:
        assert on.core.catalog.get("t").number == number
        assert on.values("t", PARTITIONS - 1) == [b"%d" % (PARTITIONS - 1)]


def test_a_broker_that_stops_while_a_topic_closes_its_files_deletes_it(data: Path) -> None:
    before = open_files()
    with stage(data) as on:
        filled(on)
        on.core.delete_topic("t", succeeded)
    assert open_files() <= before
    with stage(data) as on:
        assert on.core.catalog.find("t") is None


def test_a_queue_forgets_a_few_partitions_of_a_deleted_topic_at_a_turn(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        filled(on)
        hire(on)
        written: list[int] = []
        ledger = on.core.queues._ledger
        monkeypatch.setattr(ledger, "write_or_owe", lambda some: written.append(len(some)))
        on.core.delete_topic("t", succeeded)
        sums = [sum(written)]
        while on.runtime.due:
            turn(on)
            sums.append(sum(written))
        assert sums[-1] == PARTITIONS
        assert max(later - before for before, later in pairwise(sums)) <= A_TURN


def test_a_queue_keeps_its_place_in_a_new_topic_of_the_name(data: Path) -> None:
    """What the queue still has to write about the old one must not be about the new one."""
    with stage(data) as on:
        filled(on)
        ann = hire(on, prefetch=1000)
        on.core.delete_topic("t", succeeded)
        turn(on)
        filled(on)
        on.run()
        ann.jobs()
        ann.ack([job for job in ann.jobs() if job.partition < 2])
        assert on.core.queues.find("q") is not None
        on.core.queues.leave(ann.subscription)
        bob = hire(on, "bob", prefetch=1000)
        bob.ack(bob.jobs())
    with stage(data) as on:
        queue = on.core.queues.find("q")
        assert queue is not None
        assert [part.jobs.floor for part in queue.partitions.values()] == [1] * PARTITIONS


def test_a_crash_while_the_logs_of_a_new_topic_are_made_leaves_nothing(data: Path) -> None:
    with stage(data) as on:
        steps = on.core.prepare_topic("t", {"partitions": PARTITIONS})
        on.core.slices.in_slices(steps)
        turn(on)
    with stage(data) as on:
        assert on.core.catalog.find("t") is None
        assert os.listdir(data / "topics") == []


def test_a_crash_while_the_logs_of_a_growth_are_made_leaves_the_old_number(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_LOGS_AT_ONCE", 4)
    monkeypatch.setattr(store, "_LOGS_A_STEP", A_STEP)
    got: list[BrokerTopic | FanlogError] = []
    with stage(data) as on:
        on.core.create_topic("t", {"partitions": 2})
        on.core.grow_topic("t", PARTITIONS, got.append)
        turn(on)
        assert not got
        assert len(on.core.catalog.get("t").partitions) == 2
    with stage(data) as on:
        assert len(on.core.catalog.get("t").partitions) == 2
        on.core.grow_topic("t", PARTITIONS, got.append)
        on.run()
        assert got == [on.core.catalog.get("t")]
    with stage(data) as on:
        assert len(on.core.catalog.get("t").partitions) == PARTITIONS
