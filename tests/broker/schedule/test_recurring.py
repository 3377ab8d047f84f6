"""Schedules: each run once, over crashes, with clocks that change and clocks that somebody sets."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from fanlog.broker.schedule.recurring import checked_repeat, next_run_us
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, InvalidArgumentError, LimitError, MessageTooLargeError
from fanlog.format.messages import AddSchedule
from fanlog.format.schedules import RUN_PREFIX, Repeat
from fanlog.model import ScheduleInfo
from tests.broker.schedule.scheduling import SECOND_US, arrived, cancel, tick
from tests.broker.stage import Stage, stage
from tests.broker.transactions.staging import checkpoint, settle
from tests.broker.transactions.test_crashes import Steps

MINUTE_US = 60 * SECOND_US
# A Monday, 07:00 in Berlin.
MONDAY_US = int(dt.datetime(2026, 3, 2, 6, tzinfo=dt.UTC).timestamp()) * SECOND_US


def add(on: Stage, name: str = "s", topic: str = "t", **given: object) -> ScheduleInfo:
    answers: list[ScheduleInfo | FanlogError] = []
    wanted = {"value": b"run", **given}
    on.core.schedule.add(AddSchedule(name=name, topic=topic, **wanted), answers.append)  # type: ignore[arg-type]
    settle(on)
    (answer,) = answers
    if isinstance(answer, FanlogError):
        raise answer
    return answer


def remove(on: Stage, name: str = "s") -> bool | FanlogError:
    answers: list[bool | FanlogError] = []
    on.core.schedule.remove(name, answers.append)
    tick(on)
    (answer,) = answers
    return answer


def due_times(on: Stage) -> list[str]:
    """When the runs that have come were due."""
    found = on.core.catalog.find("t")
    if found is None:
        return []
    offset, dues = 0, list[str]()
    while offset < found.partitions[0].visible_end:
        for batch in on.fetch("t", offset):
            for i in range(len(batch)):
                dues.append(batch.columns.headers(i)["fanlog-due"].decode())
            offset = batch.next_offset
    return dues


def only(on: Stage) -> ScheduleInfo:
    (info,) = on.core.schedule.recurring.page("").schedules
    return info


def runs(repeat: Repeat, after: dt.datetime, count: int) -> list[str]:
    due_us, found = round(after.timestamp() * SECOND_US), list[str]()
    for _ in range(count):
        following = next_run_us(repeat, due_us, due_us)
        assert following is not None
        due_us = following
        zone = ZoneInfo(repeat.timezone)
        found.append(dt.datetime.fromtimestamp(due_us / 1e6, tz=zone).isoformat())
    return found


def test_a_time_of_day_is_kept_when_clocks_change() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    daily = Repeat(cron="30 2 * * *", timezone="Europe/Berlin")
    assert runs(daily, dt.datetime(2026, 3, 28, 0, tzinfo=berlin), 3) == [
        "2026-03-28T02:30:00+01:00",
        # There is no 02:30: it runs when that would have been.
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert runs(daily, dt.datetime(2026, 10, 24, 12, tzinfo=berlin), 3) == [
        # 02:30 comes twice, and it runs once.
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
        "2026-10-27T02:30:00+01:00",
    ]
    weekdays = Repeat(cron="0 8 * * 1-5", timezone="Europe/Berlin")
    assert runs(weekdays, dt.datetime(2026, 3, 27, 9, tzinfo=berlin), 2) == [
        "2026-03-30T08:00:00+02:00",
        "2026-03-31T08:00:00+02:00",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "cron or every_seconds"),
        ({"cron": "* * * * *", "every_seconds": 5.0}, "cron or every_seconds"),
        ({"cron": "* * *"}, "not a cron expression"),
        ({"cron": "61 * * * *"}, "not a cron expression: Bad minute"),
        ({"cron": "0 8 * * *", "timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"cron": "0 8 * * *", "timezone": "../../etc/passwd"}, "no time zone"),
        ({"cron": "0 8 * * *", "missed": "all"}, "'once' or 'skip'"),
        ({"every_seconds": 0.01}, "once a second at most"),
        ({"cron": "0 0 30 2 *"}, "not a cron expression"),
    ],
)
def test_what_is_no_schedule_is_refused_with_what_to_do(
    given: dict[str, object], said: str
) -> None:
    wanted = AddSchedule(name="s", topic="t", value=b"x", **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=said):
        checked_repeat(wanted)


def test_a_schedule_runs_at_its_times_and_says_when(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        info = add(on, cron="0 8 * * 1-5", timezone="Europe/Berlin", key=b"k", headers={"a": b"b"})
        assert info.next_run.isoformat() == "2026-03-02T07:00:00+00:00"
        assert info.last_run is None
        tick(on)
        assert arrived(on) == []
        for _ in range(7):
            on.runtime.time_us = only(on).next_us
            tick(on)
        assert arrived(on) == [b"run"] * 7
        assert due_times(on)[4:6] == ["2026-03-06T07:00:00+00:00", "2026-03-09T07:00:00+00:00"]
        (batch, *_) = on.fetch("t", 0)
        assert batch.columns.headers(0)["fanlog-schedule"] == b"s"
        assert batch.columns.headers(0)["a"] == b"b"
        assert batch.keys == [b"k"]
        last = only(on).last_run
        assert last is not None
        assert last.isoformat() == "2026-03-10T07:00:00+00:00"


@pytest.mark.parametrize(("missed", "made_up"), [("once", 1), ("skip", 0)])
def test_runs_that_were_missed_while_the_broker_was_down(
    data: Path, missed: str, made_up: int
) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        add(on, every_seconds=600.0, missed=missed)
        on.runtime.time_us += 600 * SECOND_US
        tick(on)
        assert len(arrived(on)) == 1
    with stage(data, time_us=MONDAY_US + 3650 * SECOND_US) as on:
        settle(on)
        tick(on)
        assert len(arrived(on)) == 1 + made_up
        # The others keep to the clock that they were begun with.
        assert only(on).next_us == MONDAY_US + 4200 * SECOND_US
        on.runtime.time_us = MONDAY_US + 4200 * SECOND_US
        tick(on)
        assert len(arrived(on)) == 2 + made_up


def test_a_crash_at_any_step_runs_nothing_twice_and_forgets_nothing(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        steps = Steps(on, data)
        add(on, every_seconds=60.0)
        on.runtime.time_us += MINUTE_US
        on.core.schedule.tick()
        crashes = list(steps)
        checkpoint(on)
        crashes += list(steps)
        assert arrived(on) == [b"run"]
    for copy in crashes:
        with stage(copy, time_us=MONDAY_US + MINUTE_US + SECOND_US) as on:
            settle(on)
            tick(on)
            assert arrived(on) == [b"run"]
            assert only(on).next_us == MONDAY_US + 2 * MINUTE_US
            on.runtime.time_us = MONDAY_US + 2 * MINUTE_US
            tick(on)
            assert arrived(on) == [b"run", b"run"]


def test_a_clock_that_is_set_back_repeats_no_run(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        add(on, cron="*/10 * * * *")
        on.runtime.time_us += 10 * MINUTE_US
        tick(on)
        on.runtime.wall_shift_us = -8 * MINUTE_US
        on.runtime.time_us += 8 * MINUTE_US
        tick(on)
        assert due_times(on) == ["2026-03-02T06:10:00+00:00"]
        on.runtime.time_us += 10 * MINUTE_US
        tick(on)
        assert due_times(on)[1:] == ["2026-03-02T06:20:00+00:00"]


def test_a_schedule_is_changed_under_its_name_and_one_that_is_the_same_stays(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        first = add(on, every_seconds=60.0)
        on.runtime.time_us += 30 * SECOND_US
        assert add(on, every_seconds=60.0) == first
        changed = add(on, every_seconds=60.0, value=b"other")
        assert changed.next_us == MONDAY_US + 90 * SECOND_US
        assert len(on.core.schedule) == 1
    with stage(data, time_us=MONDAY_US + 90 * SECOND_US) as on:
        settle(on)
        tick(on)
        assert arrived(on) == [b"other"]


def test_a_schedule_is_removed_and_stays_so(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        add(on, every_seconds=60.0)
        assert remove(on) is True
        assert remove(on) is False
        on.runtime.time_us += MINUTE_US
        tick(on)
        assert arrived(on) == []
    with stage(data, time_us=MONDAY_US + MINUTE_US) as on:
        settle(on)
        tick(on)
        assert arrived(on) == []
        assert not on.core.schedule.recurring.page("").schedules


def test_a_schedule_that_is_changed_while_a_run_goes_out_goes_on_as_changed(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        add(on, every_seconds=60.0)
        on.runtime.time_us += MINUTE_US
        on.core.schedule.tick()
        answers: list[ScheduleInfo | FanlogError] = []
        wanted = AddSchedule(name="s", topic="t", value=b"new", every_seconds=60.0)
        on.core.schedule.add(wanted, answers.append)
        assert answers == []
        tick(on)
        (info,) = answers
        assert isinstance(info, ScheduleInfo)
        assert len(on.core.schedule) == 1
        on.runtime.time_us += MINUTE_US
        tick(on)
        assert arrived(on) == [b"run", b"new"]


def test_there_are_limits_to_schedules_and_to_their_messages(data: Path) -> None:
    with stage(data, options=BrokerOptions(schedules_max=2), message_bytes_max=100) as on:
        add(on, "a", every_seconds=60.0)
        add(on, "b", every_seconds=60.0)
        with pytest.raises(LimitError, match="schedules_max"):
            add(on, "c", every_seconds=60.0)
        add(on, "a", every_seconds=61.0)
        with pytest.raises(MessageTooLargeError):
            add(on, "a", every_seconds=60.0, value=b"x" * 200)
        with pytest.raises(InvalidArgumentError, match="name"):
            add(on, "", every_seconds=60.0)
        assert len(on.core.schedule.recurring.page("").schedules) == 2


def test_a_broker_in_memory_has_schedules_too() -> None:
    with stage(None, time_us=MONDAY_US) as on:
        add(on, every_seconds=60.0)
        for _ in range(3):
            on.runtime.time_us += MINUTE_US
            tick(on)
        assert arrived(on) == [b"run"] * 3


def test_changes_of_a_schedule_that_come_at_once_are_made_in_turn(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        add(on, every_seconds=60)
        answers: list[object] = []
        wanted = AddSchedule(name="s", topic="t", value=b"other", every_seconds=30)
        on.core.schedule.add(wanted, lambda got: answers.append(type(got)))
        on.core.schedule.remove("s", answers.append)
        on.core.schedule.remove("s", answers.append)
        on.core.schedule.add(wanted, lambda got: answers.append(type(got)))
        tick(on)
        assert answers == [ScheduleInfo, True, False, ScheduleInfo]
        assert len(on.core.schedule) == 1
        on.runtime.time_us += 30 * SECOND_US
        tick(on)
        assert arrived(on) == [b"other"]
        assert remove(on)
        assert not on.core.schedule.recurring.page("").schedules
    with stage(data, time_us=MONDAY_US + 3600 * SECOND_US) as on:
        settle(on)
        tick(on)
        assert arrived(on) == [b"other"]


def test_a_run_of_a_schedule_is_not_cancelled_as_a_message_is(data: Path) -> None:
    with stage(data, time_us=MONDAY_US) as on:
        add(on, every_seconds=60)
        (answer,) = cancel(on, RUN_PREFIX + "s")
        settle(on)
        assert isinstance(answer, InvalidArgumentError)
        on.runtime.time_us += MINUTE_US
        tick(on)
        assert arrived(on) == [b"run"]
        assert remove(on)
