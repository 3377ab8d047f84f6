"""When a job that failed comes again: the queue's back-off, however it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.broker.queues.retries import retry_delay_us
from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import OutcomeKind
from fanlog.model import QueueSettings
from tests.broker.queues.workers import Hand, described, hire, later
from tests.broker.stage import Stage, stage

GROWING: dict[str, Any] = {
    "retry_delay_seconds": 10.0,
    "retry_factor": 3.0,
    "retry_max_seconds": 60.0,
}


def comes_after(on: Stage, hand: Hand, seconds: float) -> int:
    """That a job comes after so long, and not before; how often it was delivered then."""
    assert hand.jobs() == []
    later(on, seconds - 0.001)
    assert hand.jobs() == []
    later(on, 0.001)
    (job,) = hand.jobs()
    assert job.offset == 0
    return job.deliveries


def test_each_nack_waits_longer_up_to_the_longest() -> None:
    with stage() as on:
        on.publish("t", [b"1"])
        ann = hire(on, max_deliveries=10, **GROWING)
        (job,) = ann.jobs()
        for deliveries, seconds in enumerate((10, 30, 60, 60), 2):
            ann.nack([job])
            assert comes_after(on, ann, seconds) == deliveries


def test_a_lease_that_runs_out_waits_as_long_as_a_nack_would() -> None:
    with stage() as on:
        on.publish("t", [b"1"])
        ann = hire(on, visibility_seconds=5, max_deliveries=10, **GROWING)
        assert len(ann.jobs()) == 1
        later(on, 5)
        assert comes_after(on, ann, 10) == 2
        later(on, 5)
        assert comes_after(on, ann, 30) == 3


def test_a_dead_workers_job_waits_and_that_of_one_that_left_does_not() -> None:
    with stage() as on:
        on.publish("t", [b"1"])
        ann = hire(on, "ann", visibility_seconds=5, **GROWING)
        assert len(ann.jobs()) == 1
        on.core.queues.lost(ann.subscription)
        bob = hire(on, "bob")
        later(on, 5)
        assert comes_after(on, bob, 10) == 2
        on.core.queues.leave(bob.subscription)
        eve = hire(on, "eve")
        assert [job.deliveries for job in eve.jobs()] == [2]


def test_a_delay_that_the_worker_says_is_what_counts() -> None:
    with stage() as on:
        on.publish("t", [b"1"])
        ann = hire(on, **GROWING)
        ann.nack(ann.jobs(), delay_ms=1000)
        assert comes_after(on, ann, 1) == 2


def test_the_rule_and_the_waits_survive_a_restart(data: Path) -> None:
    with stage(data) as on:
        on.publish("t", [b"1"])
        ann = hire(on, max_deliveries=10, **GROWING)
        ann.nack(ann.jobs())
        time_us = on.runtime.time_us
    with stage(data, time_us=time_us) as on:
        ann = hire(on)
        assert comes_after(on, ann, 10) == 2
        ann.settle(OutcomeKind.NACK, ann_again(ann))
        assert comes_after(on, ann, 30) == 3
        rule = described(on).queue
        assert rule is not None
        assert (rule.retry_factor, rule.retry_max_seconds) == (3, 60)


def ann_again(hand: Hand) -> list[Any]:
    """The job that the last lease was of."""
    lease = hand.leases[-1]
    return hand._jobs(lease)


def test_a_worker_that_comes_changes_the_rule_for_all() -> None:
    with stage() as on:
        on.publish("t", [b"1"])
        ann = hire(on, "ann", **GROWING)
        job = ann.jobs()
        hire(on, "bob", prefetch=1, retry_delay_seconds=2, retry_factor=1)
        ann.nack(job)
        later(on, 1.9)
        assert described(on).partitions[0].retrying == 1
        later(on, 0.1)
        assert described(on).partitions[0].retrying == 0


def test_a_report_says_how_many_wait_and_when_the_first_is_due() -> None:
    with stage() as on:
        on.publish("t", [b"1", b"2", b"3"])
        ann = hire(on, **GROWING)
        first, second, third = ann.jobs()
        ann.nack([first])
        later(on, 4)
        ann.nack([second])
        ann.ack([third])
        (partition,) = described(on).partitions
        assert (partition.retrying, partition.next_retry_seconds) == (2, 6)
        later(on, 100)
        ann.ack(ann.jobs())
        (partition,) = described(on).partitions
        assert (partition.retrying, partition.next_retry_seconds) == (0, None)


def test_a_rule_that_makes_no_sense_is_refused() -> None:
    with stage() as on:
        on.publish("t", [b"1"])
        wrong: dict[str, Any] = {"retry_factor": 0.5, "retry_jitter": 2, "retry_max_seconds": -1}
        for name, value in wrong.items():
            with pytest.raises(InvalidArgumentError, match=f"{name} can't be"):
                hire(on, **{name: value})


rules = st.builds(
    QueueSettings,
    retry_delay_seconds=st.floats(0, 86_400),
    retry_factor=st.floats(1, 100),
    retry_max_seconds=st.floats(0, 86_400),
    retry_jitter=st.floats(0, 1),
)


@given(rules, st.integers(1, 10_000), st.integers(0, 1 << 62))
def test_a_wait_is_never_shorter_than_the_backoff_without_its_jitter(
    rule: QueueSettings, failures: int, offset: int
) -> None:
    exponent = min(failures - 1, 64)
    whole = min(rule.retry_delay_seconds * rule.retry_factor**exponent, rule.retry_max_seconds)
    delay_us = retry_delay_us(rule, failures, (1, 0, offset))
    assert whole * (1 - rule.retry_jitter) * 1e6 - 1 <= delay_us <= whole * 1e6 + 1
    assert delay_us == retry_delay_us(rule, failures, (1, 0, offset))


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    rule = QueueSettings(retry_delay_seconds=100, retry_jitter=0.5)
    delays = {retry_delay_us(rule, 1, (1, 0, offset)) for offset in range(1000)}
    assert len(delays) > 990
    assert min(delays) < 51e6
    assert max(delays) > 99e6


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.01, 20),
    st.floats(1, 4),
    st.floats(0, 1),
    st.lists(st.tuples(st.booleans(), st.floats(0, 15)), min_size=1, max_size=12),
)
def test_no_job_goes_out_before_its_backoff_less_the_jitter(
    first: float, factor: float, jitter: float, steps: list[tuple[bool, float]]
) -> None:
    """Whether a job is nacked or its time runs out, by the clock that is handed in."""
    with stage() as on:
        on.publish("t", [b"1"])
        ann = hire(
            on,
            visibility_seconds=5,
            max_deliveries=1000,
            retry_delay_seconds=first,
            retry_factor=factor,
            retry_max_seconds=30,
            retry_jitter=jitter,
        )
        jobs, failures, failed_us, taken_us = ann.jobs(), 0, 0, on.runtime.time_us
        for nacks, wait in steps:
            if jobs and nacks:
                ann.nack(jobs)
                jobs, failures, failed_us = [], failures + 1, on.runtime.time_us
            later(on, wait)
            now_us = on.runtime.time_us
            if jobs and now_us - taken_us >= 5_000_000:
                jobs, failures, failed_us = [], failures + 1, now_us
            came = ann.jobs()
            if came:
                assert came[0].deliveries == failures + 1
                whole = min(first * factor ** (failures - 1), 30)
                assert now_us - failed_us >= whole * (1 - jitter) * 1e6 - 1
                jobs, taken_us = came, now_us
