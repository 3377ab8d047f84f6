"""Somebody sets the wall clock, forward or back, while the broker runs or while it is stopped.
Durations go on as if nothing had happened, and what is stored does not expire at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.config import BrokerOptions
from fanlog.errors import TransactionNotFoundError
from fanlog.format.messages import ProducerRegistered, RegisterProducer
from tests.broker.groups.members import Member
from tests.broker.groups.members import later as group_later
from tests.broker.queues.workers import hire, later
from tests.broker.stage import BEGIN_US, Stage, stage
from tests.broker.transactions.staging import Staging, checkpoint, settle

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
YEAR_US = 365 * 24 * HOUR_US
JUMPS_US = [-YEAR_US, -HOUR_US, HOUR_US, 10 * YEAR_US]

both_ways = pytest.mark.parametrize("jump_us", JUMPS_US)


# Groups


@both_ways
def test_the_session_of_a_lost_member_ends_in_its_time(jump_us: int) -> None:
    with stage() as on:
        on.core.create_topic("t", {"partitions": 2})
        lost, other = Member(on, "lost").join(), Member(on, "other").join()
        lost.lose()
        on.runtime.wall_shift_us = jump_us
        group_later(on, 9.9)
        assert len(other.partitions) == 1
        group_later(on, 0.2)
        assert other.partitions == [0, 1]


@both_ways
def test_a_partition_is_taken_by_force_in_its_time(jump_us: int) -> None:
    with stage() as on:
        on.core.create_topic("t", {"partitions": 2})
        slow = Member(on, "slow", slow=True).join()
        other = Member(on, "other").join()
        on.runtime.wall_shift_us = jump_us
        group_later(on, 29.9)
        assert other.partitions == [] == slow.lost_places
        group_later(on, 0.2)
        assert len(other.partitions) == 1 == len(slow.lost_places)


@both_ways
def test_the_wait_for_members_of_before_a_start_ends_in_its_time(data: Path, jump_us: int) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {"partitions": 2})
        Member(on, "a").join().commit(0)
    with stage(data) as on:
        other = Member(on, "b").join()
        on.runtime.wall_shift_us = jump_us
        group_later(on, 1.9)
        assert other.partitions == []
        group_later(on, 0.2)
        assert other.partitions == [0, 1]


def test_the_younger_of_two_members_of_one_name_wins_after_the_clock_was_set_back(
    data: Path,
) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {})
        on.publish("t", [b"x"])
        on.run()
        on.sync_group.sync()
        older = Member(on, "a").join(static=True)
        older.lose()
        on.runtime.wall_shift_us = -HOUR_US
        group_later(on, 11)
        younger = Member(on, "a").join(static=True)
        assert younger.epoch > older.epoch
    with stage(data, time_us=BEGIN_US - YEAR_US) as on:
        youngest = Member(on, "a").join(static=True)
        assert youngest.epoch > older.epoch


# Queues


@both_ways
def test_a_lease_runs_out_in_its_time(jump_us: int) -> None:
    with stage() as on:
        on.publish("t", [b"x"])
        on.run()
        ann = hire(on, "ann", prefetch=1, visibility_seconds=30, reset="earliest")
        assert ann.offsets_taken() == [0]
        bob = hire(on, "bob", prefetch=1)
        on.runtime.wall_shift_us = jump_us
        later(on, 29.9)
        assert bob.jobs() == []
        later(on, 0.2)
        assert bob.offsets_taken() + ann.offsets_taken() == [0]


@both_ways
def test_a_failed_job_comes_again_in_its_time(jump_us: int) -> None:
    with stage() as on:
        on.publish("t", [b"x"])
        on.run()
        ann = hire(on, reset="earliest")
        ann.nack(ann.jobs(), delay_ms=5000)
        on.runtime.wall_shift_us = jump_us
        later(on, 4.9)
        assert ann.jobs() == []
        later(on, 0.2)
        assert ann.offsets_taken() == [0]


@pytest.mark.parametrize("passed_seconds", [-3600, 0, 20])
def test_a_failed_job_waits_no_longer_than_its_delay_after_a_restart(
    data: Path, passed_seconds: int
) -> None:
    """As the wall clock says what has passed; one that was set back makes it wait all of it."""
    with stage(data, durability="os") as on:
        on.publish("t", [b"x"])
        on.run()
        ann = hire(on, reset="earliest")
        ann.nack(ann.jobs(), delay_ms=60_000)
    with stage(data, durability="os", time_us=BEGIN_US + passed_seconds * SECOND_US) as on:
        ann = hire(on)
        left_seconds = 60 - max(0, passed_seconds)
        later(on, left_seconds - 0.1)
        assert ann.jobs() == []
        later(on, 0.2)
        assert ann.offsets_taken() == [0]


def test_what_is_left_of_a_delay_outlives_a_snapshot_and_two_restarts(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.broker.state.ledger._SNAPSHOT_AFTER_RECORDS", 2)
    with stage(data, durability="os") as on:
        on.publish("t", [b"x"])
        on.run()
        ann = hire(on, reset="earliest")
        ann.nack(ann.jobs(), delay_ms=60_000)
        on.runtime.wall_shift_us = YEAR_US
        later(on, 30)
        for delay_seconds in range(10):
            hire(on, f"bob{delay_seconds}", queue="other", retry_delay_seconds=delay_seconds)
    for _ in range(2):
        with stage(data, durability="os", time_us=BEGIN_US + YEAR_US + 30 * SECOND_US) as on:
            ann = hire(on)
            later(on, 29.9)
            assert ann.jobs() == []
    with stage(data, durability="os", time_us=BEGIN_US + YEAR_US + 61 * SECOND_US) as on:
        assert hire(on).offsets_taken() == [0]


# Transactions


@both_ways
def test_an_open_transaction_runs_out_of_time_in_its_time(jump_us: int) -> None:
    with stage() as on:
        staging = Staging(on, timeout_seconds=10)
        on.runtime.wall_shift_us = jump_us
        later(on, 9)
        staging.stage("a", b"x")
        later(on, 12)
        with pytest.raises(TransactionNotFoundError):
            staging.stage("a", b"x")


@both_ways
def test_checkpoints_of_transactions_go_on(data: Path, jump_us: int) -> None:
    with stage(data) as on:
        Staging(on, "one").commit()
        settle(on)
        checkpoint(on)
        on.runtime.wall_shift_us = jump_us
        staging = Staging(on, "two")
        staging.stage("a", b"x")
        staging.commit()
        settle(on)
        checkpoint(on)
        partition = on.core.catalog.get("a").partitions[0]
        assert not partition.producers


def committed(on: Stage, id: str = "one") -> bool:
    return Staging(on, id).begun.committed


@both_ways
def test_ids_of_transactions_are_remembered_for_their_time(data: Path, jump_us: int) -> None:
    options = BrokerOptions(transaction_ids_seconds=7200)
    with stage(data, options=options) as on:
        Staging(on, "one").commit()
        settle(on)
        checkpoint(on)
        on.runtime.wall_shift_us = jump_us
        checkpoint(on)
        later(on, 7000)
        assert committed(on)
        later(on, 300)
        assert not committed(on)


@both_ways
def test_after_a_start_ids_of_transactions_are_remembered_for_an_hour(
    data: Path, jump_us: int
) -> None:
    options = BrokerOptions(transaction_ids_seconds=7200)
    with stage(data, options=options) as on:
        Staging(on, "one").commit()
        settle(on)
        checkpoint(on)
    with stage(data, options=options, time_us=BEGIN_US + jump_us) as on:
        later(on, 3500)
        assert committed(on)
        later(on, 7300)
        assert not committed(on)


# Producers' names


def register(on: Stage, known: ProducerRegistered | None = None) -> ProducerRegistered:
    id, epoch = (0, 0) if known is None else (known.id, known.epoch)
    registered = on.core.producers.register(RegisterProducer("name", id, epoch))
    on.run()
    return registered


@both_ways
def test_names_of_producers_are_remembered_for_their_time(data: Path, jump_us: int) -> None:
    options = BrokerOptions(producer_idle_seconds=7200)
    with stage(data, options=options) as on:
        known = register(on)
        on.runtime.wall_shift_us = jump_us
        later(on, 7100)
        on.core.housekeeping()
        known = register(on)
        assert known.epoch == 2
        later(on, 7300)
        on.core.housekeeping()
        assert register(on).id != known.id


# Retention


def aged_log(on: Stage) -> None:
    """A memory topic that keeps its records for a day, with records of an hour ago."""
    on.core.create_topic("t", {"retention_seconds": 24 * 3600})
    on.publish("t", [b"x"])
    on.run()
    on.runtime.time_us += HOUR_US
    on.core.housekeeping()


def test_a_clock_that_jumps_forward_deletes_nothing_for_an_hour() -> None:
    with stage() as on:
        aged_log(on)
        on.runtime.wall_shift_us = 10 * YEAR_US
        for _ in range(59):
            on.runtime.time_us += 60 * SECOND_US
            on.core.housekeeping()
        assert on.values("t") == [b"x"]
        on.runtime.time_us += 120 * SECOND_US
        on.core.housekeeping()
        assert on.values("t") == []


def test_a_jump_that_is_taken_back_within_the_hour_deletes_nothing() -> None:
    with stage() as on:
        aged_log(on)
        on.runtime.wall_shift_us = 10 * YEAR_US
        on.core.housekeeping()
        on.runtime.time_us += HOUR_US // 2
        on.core.housekeeping()
        on.runtime.wall_shift_us = 0
        on.core.housekeeping()
        for _ in range(21):
            on.runtime.time_us += HOUR_US
            on.core.housekeeping()
        assert on.values("t") == [b"x"]
        on.runtime.time_us += 2 * HOUR_US
        on.core.housekeeping()
        assert on.values("t") == []


def test_a_start_in_a_wrong_year_deletes_nothing_for_an_hour(data: Path) -> None:
    settings = {"durability": "os", "retention_seconds": 24 * 3600}
    with stage(data) as on:
        on.core.create_topic("t", settings)
        on.publish("t", [b"x"])
        on.run()
    with stage(data, time_us=BEGIN_US + 10 * YEAR_US) as on:
        on.core.housekeeping()
        on.runtime.time_us += HOUR_US - SECOND_US
        on.core.housekeeping()
        assert on.values("t") == [b"x"]
        on.runtime.time_us += 2 * SECOND_US
        on.core.housekeeping()
        assert on.values("t") == []


def test_what_a_clock_in_the_future_has_stamped_stays_in_order_and_is_found() -> None:
    with stage() as on:
        on.core.create_topic("t", {"retention_seconds": 24 * 3600})
        log = on.core.catalog.get("t").partitions[0].log
        for shift_us in (0, YEAR_US, 0):
            on.runtime.wall_shift_us = shift_us
            on.runtime.time_us += SECOND_US
            on.publish("t", [b"x"])
            on.run()
        assert log.offset_at(BEGIN_US) == 0
        assert log.offset_at(BEGIN_US + HOUR_US) == 1
        for _ in range(50):
            on.runtime.time_us += HOUR_US
            on.core.housekeeping()
        # They are kept until their own time is a day ago, not for ever; the rest goes.
        assert log.start_offset == 1
        on.runtime.time_us += YEAR_US
        on.core.housekeeping()
        assert log.start_offset == 3
