"""Delayed messages and crashes: at whatever step the broker is cut off, each message comes once,
and none comes early."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanlog.broker.schedule import moves
from fanlog.errors import LogFailedError
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.log.disk import DiskLog
from tests.broker.schedule.scheduling import (
    SECOND_US,
    arrived,
    cancel,
    later,
    publish_later,
    record,
    tick,
)
from tests.broker.stage import BEGIN_US, no_room, stage
from tests.broker.transactions.staging import checkpoint, settle
from tests.broker.transactions.test_crashes import Steps

DURABILITIES = pytest.mark.parametrize("durability", ["os", "fsync"])
DUE_US = BEGIN_US + 10 * SECOND_US


@DURABILITIES
def test_a_crash_at_any_step_of_a_move_loses_nothing_and_repeats_nothing(
    data: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several moves, some of them while others are under way.
    monkeypatch.setattr(moves, "_MOVE_RECORDS", 3)
    everything = sorted(b"%d" % i for i in range(7))
    with stage(data, durability=durability, partitions=2) as on:
        steps = Steps(on, data)
        for i in range(7):
            later(on, f"id-{i}", b"%d" % i, DUE_US, "t" if i % 2 else "u")
        later(on, "far", b"far", DUE_US + 3600 * SECOND_US)
        settle(on)
        tick(on)
        assert not arrived(on) + arrived(on, "u")
        on.runtime.time_us = DUE_US
        on.core.schedule.tick()
        crashes = list(steps)
        on.core.schedule.tick()
        crashes += list(steps)
        on.runtime.time_us += 1_100_000
        on.core.tick()
        crashes += list(steps)
        assert sorted(arrived(on) + arrived(on, "u")) == everything
    assert len(crashes) > 10
    for copy in crashes:
        # A clock that was set back: the messages have waited long enough.
        with stage(copy, durability=durability, partitions=2, time_us=DUE_US) as on:
            settle(on)
            tick(on)
            assert sorted(arrived(on) + arrived(on, "u")) == everything
            assert len(on.core.schedule) == 1
            checkpoint(on)
        with stage(copy, durability=durability, partitions=2, time_us=DUE_US) as on:
            settle(on)
            tick(on)
            assert sorted(arrived(on) + arrived(on, "u")) == everything
            assert len(on.core.schedule) == 1


def test_a_crash_at_any_step_of_replacing_and_cancelling_brings_nothing_back(data: Path) -> None:
    with stage(data) as on:
        steps = Steps(on, data)
        later(on, "replaced", b"old", DUE_US)
        later(on, "cancelled", b"old", DUE_US)
        settle(on)
        later(on, "replaced", b"new", DUE_US + SECOND_US)
        answers = cancel(on, "cancelled")
        crashes = list(steps)
        assert answers == [True]
        answered = len(crashes)
        on.core.schedule.tick()
        crashes += list(steps)
        on.runtime.time_us = DUE_US + SECOND_US
        tick(on)
        checkpoint(on)
        crashes += list(steps)
        assert arrived(on) == [b"new"]
    for i, copy in enumerate(crashes):
        with stage(copy, time_us=DUE_US + 2 * SECOND_US) as on:
            settle(on)
            tick(on)
            values = sorted(arrived(on))
            # Before the answers, either may have happened; from then on, both have.
            assert values in ([b"new"], [b"new", b"old"], [b"old", b"old"])
            assert values == [b"new"] or i < answered
            assert len(on.core.schedule) == 0


def test_a_message_that_is_replaced_while_it_goes_out_comes_and_so_does_the_other(
    data: Path,
) -> None:
    with stage(data) as on:
        steps = Steps(on, data)
        later(on, "x", b"old", DUE_US)
        settle(on)
        on.runtime.time_us = DUE_US
        on.core.schedule.tick()
        # The other is in the log before the move has written that the first is over.
        later(on, "x", b"new", DUE_US + SECOND_US)
        crashes = list(steps)
        tick(on)
        assert arrived(on) == [b"old"]
        assert len(on.core.schedule) == 1
        on.runtime.time_us += SECOND_US
        tick(on)
        assert arrived(on) == [b"old", b"new"]
    for copy in crashes[-3:]:
        with stage(copy, time_us=DUE_US + SECOND_US) as on:
            settle(on)
            tick(on)
            assert sorted(arrived(on)) == [b"new", b"old"]


def test_what_is_going_out_can_not_be_cancelled_and_what_is_not_can(data: Path) -> None:
    with stage(data) as on:
        later(on, "x", b"x", DUE_US)
        settle(on)
        on.runtime.time_us = DUE_US
        on.core.schedule.tick()
        late = cancel(on, "x")
        settle(on)
        assert late == [False]
        assert arrived(on) == [b"x"]
        later(on, "y", b"y", DUE_US)
        settle(on)
        in_time = cancel(on, "y")
        tick(on)
        assert in_time == [True]
        assert arrived(on) == [b"x"]


def test_a_move_that_is_held_up_at_a_start_is_not_begun_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        for i in range(5):
            later(on, f"{i}", b"%d" % i, DUE_US)
        settle(on)
        on.runtime.time_us = DUE_US
        on.core.schedule.tick()
        copies = list(Steps(on, data))
    found = 0
    for copy in copies:
        with monkeypatch.context() as full, stage(copy, time_us=DUE_US - SECOND_US) as on:
            full.setattr(DiskLog, "write", no_room)
            settle(on)
            on.runtime.time_us = DUE_US
            tick(on)
            found += bool(on.core.schedule._claimed)
            full.undo()
            on.runtime.time_us += 20 * SECOND_US
            on.store.reserve.look_for_room()
            for _ in range(3):
                on.core.tick()
                tick(on)
                on.runtime.time_us += 2 * SECOND_US
            assert sorted(arrived(on)) == [b"%d" % i for i in range(5)]
            assert len(on.core.schedule) == 0
    assert found


def test_a_full_disk_delays_messages_and_loses_none(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        for i in range(5):
            later(on, f"{i}", b"%d" % i, DUE_US)
        settle(on)
        with monkeypatch.context() as full:
            full.setattr(DiskLog, "write", no_room)
            on.runtime.time_us = DUE_US
            tick(on)
            refused = cancel(on, "4")
            settle(on)
            assert len(refused) == 1
        on.store.reserve.look_for_room()
        on.runtime.time_us += 2 * SECOND_US
        on.core.tick()
        settle(on)
        tick(on)
        assert sorted(arrived(on)) == [b"%d" % i for i in range(5)]


def test_a_topic_whose_log_has_failed_holds_up_no_other(data: Path) -> None:
    with stage(data) as on:
        on.publish("broken", [b"x"])
        settle(on)
        records = [record(f"{i}", "broken" if i % 2 else "t", b"%d" % i) for i in range(6)]
        publish_later(on, records, [DUE_US] * 6)
        settle(on)
        on.core.catalog.get("broken").partitions[0].log.fail(LogFailedError("the disk is broken"))
        on.runtime.time_us = DUE_US
        tick(on)
        assert arrived(on) == [b"0", b"2", b"4"]
        assert len(on.core.schedule) == 3
        assert any("late" in problem for problem in on.core.status().problems)
    with stage(data, time_us=DUE_US) as on:
        settle(on)
        tick(on)
        assert arrived(on) == [b"0", b"2", b"4"]
        assert arrived(on, "broken") == [b"x", b"1", b"3", b"5"]


async def test_compaction_keeps_what_waits_and_brings_nothing_back(data: Path) -> None:
    with stage(data) as on:
        for i in range(300):
            later(on, f"{i}", b"%d" % i, DUE_US + (i % 3) * 3600 * SECOND_US)
        settle(on)
        for i in range(0, 300, 10):
            cancel(on, f"{i}")
        settle(on)
        on.runtime.time_us = DUE_US
        tick(on)
        checkpoint(on)
        expected = {f"{i}" for i in range(300) if i % 10 and i % 3}
        assert len(on.core.schedule) == len(expected)
        partition = on.core.catalog.get(SCHEDULED_TOPIC).partitions[0]
        before = partition.log.bytes
        for _ in range(2):
            task = asyncio.ensure_future(on.core.compactions.compact(partition.topic))
            while not task.done():
                await asyncio.sleep(0)
                on.run()
            task.result()
            # The second time also what was said of those that are over goes.
            on.runtime.time_us += 3600 * SECOND_US
        assert partition.log.bytes < before
        arrived_before = arrived(on)
    with stage(data, time_us=DUE_US) as on:
        settle(on)
        assert len(on.core.schedule) == len(expected)
        tick(on)
        assert arrived(on) == arrived_before
        on.runtime.time_us = DUE_US + 2 * 3600 * SECOND_US
        tick(on, 20)
        assert len(on.core.schedule) == 0
        came = sorted(int(value) for value in arrived(on))
        assert came == [i for i in range(300) if i % 10]


def test_messages_come_while_others_are_scheduled_and_replaced_all_the_time(data: Path) -> None:
    with stage(data) as on:
        later(on, "due", b"due", DUE_US)
        settle(on)
        on.runtime.time_us = DUE_US
        for i in range(12):
            # There is always something that is not taken in, and something that was replaced.
            later(on, "busy", b"%d" % i, DUE_US + 3600 * SECOND_US)
            on.core.schedule.tick()
            on.core.turns.end()
            on.sync_group.sync()
            on.core.turns.end()
            later(on, "other", b"%d" % i, DUE_US + 3600 * SECOND_US)
            on.run()
        found = on.core.catalog.find("t")
        assert found is not None
        assert found.partitions[0].visible_end == 1


@pytest.mark.parametrize("folder", [True, False], ids=["disk", "memory"])
def test_what_is_overdue_at_a_start_comes_however_it_lies_in_the_log(
    data: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "_MOVE_RECORDS", 50)
    with stage(data if folder else None) as on:
        for i in range(40):
            records = [record(f"{i}-{j}", "t", b"%d" % (i * 50 + j)) for j in range(50)]
            publish_later(on, records, [DUE_US + (j * 7919 + i) % 1000 for j in range(50)])
        settle(on)
        if not folder:
            on.runtime.time_us = DUE_US + SECOND_US
            tick(on, 60)
            assert sorted(map(int, arrived(on))) == list(range(2000))
            assert not len(on.core.schedule.records)
            return
    with stage(data, time_us=DUE_US + SECOND_US) as on:
        settle(on)
        tick(on, 60)
        assert sorted(map(int, arrived(on))) == list(range(2000))
        assert not len(on.core.schedule.records)


def test_a_broker_in_memory_keeps_what_its_topic_does_not_take_for_now() -> None:
    with stage(None) as on:
        on.publish("broken", [b"x"])
        settle(on)
        publish_later(on, [record("a", "broken", b"late")], [DUE_US])
        settle(on)
        log = on.core.catalog.get("broken").partitions[0].log
        log.fail(LogFailedError("broken for a while"))
        on.runtime.time_us = DUE_US
        tick(on)
        assert arrived(on, "broken") == [b"x"]
        log.failure = None
        on.runtime.time_us += 20 * SECOND_US
        tick(on)
        assert arrived(on, "broken") == [b"x", b"late"]


def test_what_is_held_up_can_be_cancelled_while_others_go_out(data: Path) -> None:
    with stage(data) as on:
        on.publish("broken", [b"x"])
        settle(on)
        publish_later(
            on, [record("late", "broken", b"late"), record("other", "t", b"other")], [DUE_US] * 2
        )
        settle(on)
        log = on.core.catalog.get("broken").partitions[0].log
        log.failure = LogFailedError("broken for a while")
        on.runtime.time_us = DUE_US
        on.core.schedule.tick()
        on.run()
        assert on.sync_group.waiting
        answers = cancel(on, "late")
        settle(on)
        assert answers == [True]
        log.failure = None
        on.runtime.time_us += 20 * SECOND_US
        tick(on)
        assert (arrived(on, "broken"), arrived(on)) == ([b"x"], [b"other"])
