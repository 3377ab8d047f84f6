"""Housekeeping in slices: everything is looked at, whatever comes and goes between two slices."""

from __future__ import annotations

from fanlog.broker.slices import SLICE_US
from tests.broker.stage import Stage, stage

DAY_US = 24 * 3600 * 1_000_000


def begin_slowly(on: Stage) -> None:
    """Begins with housekeeping, on a machine where each look at the clock takes half a slice."""
    runtime = on.runtime
    clock = runtime.monotonic_us

    def slow_clock() -> int:
        runtime.time_us += SLICE_US // 2
        return clock()

    runtime.monotonic_us = slow_clock  # type: ignore[method-assign]
    on.core.housekeeping()


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
