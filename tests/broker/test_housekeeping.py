"""Housekeeping in slices: everything is looked at, whatever comes and goes between two slices."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.slices import SLICE_US
from fanlog.errors import FanlogError, TopicDeletedError
from tests.broker.stage import Stage, stage

DAY_US = 24 * 3600 * 1_000_000


def begin_slowly(on: Stage) -> None:
    """Begins with housekeeping, on a machine where each look at the clock takes half a slice."""
    make_slow(on)
    on.core.housekeeping()


def make_slow(on: Stage) -> None:
    runtime = on.runtime
    clock = runtime.monotonic_us

    def slow_clock() -> int:
        runtime.time_us += SLICE_US // 2
        return clock()

    runtime.monotonic_us = slow_clock  # type: ignore[method-assign]


def old_topics(on: Stage, count: int) -> None:
    """Topics whose records are past their retention."""
    for number in range(count):
        on.core.create_topic(f"t{number}", {"durability": "memory", "retention_seconds": 3600})
        on.publish(f"t{number}", [b"x"])
    on.run()
    on.runtime.time_us += DAY_US


def test_every_topic_has_its_turn() -> None:
    with stage(None) as on:
        old_topics(on, 10)
        begin_slowly(on)
        emptied = [t.name for t in on.core.catalog if not t.partitions[0].log.tail.bytes]
        assert 0 < len(emptied) < 10
        on.run()
        assert not any(topic.partitions[0].log.tail.bytes for topic in on.core.catalog)
        assert on.core.turns.tail_bytes == 0


def test_topics_come_and_go_between_two_slices() -> None:
    with stage(None) as on:
        old_topics(on, 10)
        begin_slowly(on)
        for number in range(10):
            on.core.delete_topic(f"t{number}")
        on.core.create_topic("new", {})
        on.publish("new", [b"x"])
        on.run()
        assert on.values("new") == [b"x"]
        assert [topic.name for topic in on.core.catalog] == ["new"]
        assert on.core.turns.tail_bytes == on.core.catalog.get("new").partitions[0].log.tail.bytes


def test_one_that_is_not_over_is_not_begun_again() -> None:
    with stage(None) as on:
        old_topics(on, 10)
        begin_slowly(on)
        before = len(on.runtime.due)
        on.core.housekeeping()
        assert len(on.runtime.due) == before
        on.run()
        on.runtime.time_us += DAY_US
        on.publish("t0", [b"y"])
        on.run()
        on.runtime.time_us += DAY_US
        on.core.housekeeping()
        on.run()
        assert on.values("t0") == []


PARTITIONS = 20


def alter_slowly(on: Stage) -> list[BrokerTopic | FanlogError]:
    """Shortens the retention of a topic with an old record in each of many partitions."""
    on.core.create_topic("t", {"partitions": PARTITIONS})
    for partition in range(PARTITIONS):
        on.publish("t", [b"x"], partition=partition)
    on.run()
    on.runtime.time_us += DAY_US
    make_slow(on)
    got: list[BrokerTopic | FanlogError] = []
    on.core.alter_topic("t", {"retention_seconds": 3600}, got.append)
    return got


def starts(on: Stage) -> int:
    return sum(p.log.start_offset for p in on.core.catalog.get("t").partitions)


def test_a_shorter_retention_deletes_records_of_very_many_partitions_in_slices() -> None:
    with stage() as on:
        got = alter_slowly(on)
        counts = [0, starts(on)]
        while on.runtime.due:
            assert not got
            on.runtime.due.popleft()()
            counts.append(starts(on))
        assert 0 < max(b - a for a, b in pairwise(counts)) <= 2
        assert counts[-1] == PARTITIONS
        assert got == [on.core.catalog.get("t")]
        assert on.core.turns.tail_bytes == 0


@pytest.mark.parametrize("then", ["delete", "grow", "alter"])
def test_a_topic_may_change_while_its_shorter_retention_is_applied(then: str) -> None:
    with stage() as on:
        got = alter_slowly(on)
        other: list[BrokerTopic | FanlogError] = []
        match then:
            case "delete":
                on.core.delete_topic("t")
            case "grow":
                on.core.grow_topic("t", PARTITIONS + 1, other.append)
            case _:
                on.core.alter_topic("t", {"retention_seconds": 7200}, other.append)
        on.run()
        if then == "delete":
            (fault,) = got
            assert isinstance(fault, TopicDeletedError)
        else:
            assert got == other == [on.core.catalog.get("t")]
            assert starts(on) == PARTITIONS
        assert on.core.turns.tail_bytes == 0
