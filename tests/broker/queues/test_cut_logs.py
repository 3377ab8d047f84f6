"""Queues over logs that lost their end in a power cut: what was done, or failed, says nothing of
the jobs that have its offsets since."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.format.messages import OutcomeKind
from tests.broker.cuts import cut_log
from tests.broker.queues.workers import Hand, hire
from tests.broker.stage import Stage, stage


def publish(on: Stage, count: int) -> None:
    """Batches of ten."""
    for _ in range(count // 10):
        on.publish("t", [b"x"] * 10)
        on.run()


def all_offsets(hand: Hand) -> list[int]:
    """Takes and acks until there is nothing left."""
    offsets: list[int] = []
    while got := hand.jobs():
        offsets += [job.offset for job in got]
        assert hand.ack(got) == []
    return offsets


@pytest.mark.parametrize("kept", [0, 40])
@pytest.mark.parametrize("new", [60, 150])
def test_jobs_that_come_to_offsets_of_lost_ones_are_new(data: Path, kept: int, new: int) -> None:
    with stage(data) as on:
        publish(on, 100)
        assert all_offsets(hire(on)) == list(range(100))
    cut_log(data, "t", kept)
    with stage(data) as on:
        publish(on, new)
    with stage(data) as on:
        assert all_offsets(hire(on)) == list(range(kept, kept + new))
    with stage(data) as on:
        assert hire(on).jobs() == []


def test_what_failed_or_was_done_out_of_order_counts_only_before_the_cut(data: Path) -> None:
    with stage(data) as on:
        publish(on, 100)
        ann = hire(on)
        jobs = ann.jobs()
        ann.ack(jobs[10:30] + jobs[60:90])
        ann.nack(jobs[35:45], delay_ms=0)
    cut_log(data, "t", 40)
    with stage(data) as on:
        publish(on, 60)
    with stage(data) as on:
        got = {job.offset: job.deliveries for job in hire(on).jobs()}
        assert sorted(got) == [*range(10), *range(30, 100)]
        assert {offset for offset, deliveries in got.items() if deliveries > 1} == set(
            range(35, 40)
        )


def test_an_ack_of_a_job_that_a_cut_took_does_not_finish_another(data: Path) -> None:
    with stage(data) as on:
        publish(on, 100)
        jobs = hire(on).jobs()
        epoch = on.core.epoch
    cut_log(data, "t", 40)
    with stage(data) as on:
        publish(on, 60)
        ann = hire(on)
        taken = ann.jobs()
        assert len(taken) == 100
        assert ann.settle(OutcomeKind.ACK, jobs[30:50], epoch=epoch) == list(range(40, 50))
        for verb in (OutcomeKind.NACK, OutcomeKind.REJECT, OutcomeKind.EXTEND):
            assert ann.settle(verb, jobs[50:52], epoch=epoch) == [50, 51]
    with stage(data) as on:
        got = hire(on).jobs()
        assert [job.offset for job in got] == [*range(30), *range(40, 100)]
        assert {job.deliveries for job in got} == {1}


def test_the_loss_is_written_down(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stage(data) as on:
        publish(on, 100)
        all_offsets(hire(on))
    cut_log(data, "t", 40)
    with stage(data) as on:
        assert "the queue q was at offset 100 of t/0" in caplog.text
        on.core.drops.write()
        on.run()
        (value,) = on.values("_fanlog.drops")
        assert value is not None
        assert b'"reset"' in value


def test_jobs_that_had_the_same_offset_have_dead_letters_of_their_own(data: Path) -> None:
    with stage(data) as on:
        publish(on, 20)
        ann = hire(on)
        ann.settle(OutcomeKind.REJECT, ann.jobs()[10:12], reason="bad")
        on.run()
    cut_log(data, "t", 10)
    with stage(data) as on:
        publish(on, 20)
        ann = hire(on)
        ann.settle(
            OutcomeKind.REJECT, [job for job in ann.jobs() if job.offset == 10], reason="bad"
        )
        on.run()
        (batch, *others) = on.fetch("dead.t", 0)
        keys = [*batch.keys, *(key for other in others for key in other.keys)]
        assert len(keys) == len(set(keys)) == 3
