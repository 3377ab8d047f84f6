"""Outcomes on their way to the broker."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.job_outcomes import JobOutcomes, OutcomeTurn
from fanlog.errors import ConnectionLostError, LeaseLostError
from fanlog.format.messages import JobOutcome, OutcomeKind

ACK, NACK = OutcomeKind.ACK, OutcomeKind.NACK
STRETCH = (1, 0, 7)


def test_all_outcomes_of_a_turn_go_out_together_and_the_shell_is_asked_once() -> None:
    asked: list[str] = []
    outcomes = JobOutcomes()
    outcomes.on_first = lambda: asked.append("later")
    outcomes.turn().ack(STRETCH, 0, 1)
    turn = outcomes.turn()
    turn.ack(STRETCH, 1, 2)
    assert asked == ["later"]
    assert outcomes.take_turn() is turn
    assert outcomes.take_turn() is None
    (settle,) = turn.settles()
    assert (settle.outcomes, settle.epoch) == ((JobOutcome(1, 0, ACK, 0, 2),), 7)
    assert outcomes.turn() is not turn
    assert asked == ["later", "later"]


def test_a_frame_is_about_jobs_of_one_epoch_and_has_so_many_outcomes() -> None:
    turn = OutcomeTurn()
    turn.ack((1, 0, 7), 0, 1)
    turn.ack((1, 0, 8), 1, 2)
    turn.say(8, JobOutcome(1, 0, NACK, 5, 6, -1))
    assert [(settle.epoch, len(settle.outcomes)) for settle in turn.settles()] == [(7, 1), (8, 2)]
    large = OutcomeTurn()
    for i in range(5000):
        large.say(7, JobOutcome(1, 0, NACK, i, i + 1, -1))
    assert [len(settle.outcomes) for settle in large.settles()] == [4096, 904]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), min_size=1))
def test_acked_jobs_are_as_few_ranges_as_possible(acks: list[tuple[int, int]]) -> None:
    turn = OutcomeTurn()
    for first, count in acks:
        turn.ack(STRETCH, first, first + count)
    (settle,) = turn.settles()
    ranges = [(outcome.first, outcome.next) for outcome in settle.outcomes]
    wanted = {offset for first, count in acks for offset in range(first, first + count)}
    assert [offset for first, next in ranges for offset in range(first, next)] == sorted(wanted)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def test_what_is_not_answered_is_known_until_it_is() -> None:
    outcomes = JobOutcomes()
    outcomes.turn().ack(STRETCH, 0, 1)
    sent = outcomes.take_turn()
    outcomes.turn().say(7, JobOutcome(1, 0, NACK, 4, 5, -1))
    assert list(outcomes.unanswered()) == [(STRETCH, 0, 1), (STRETCH, 4, 5)]
    assert sent is not None
    outcomes.finished(sent)
    assert list(outcomes.unanswered()) == [(STRETCH, 4, 5)]


def test_each_waiter_hears_once_what_became_of_its_turn() -> None:
    heard: list[Exception | None] = []
    outcomes, error = JobOutcomes(), ConnectionLostError("lost")
    turn = outcomes.turn()
    turn.waiters += [heard.append, heard.append]
    outcomes.take_turn()
    outcomes.finished(turn, error)
    outcomes.finished(turn)
    assert heard == [error, error]
    # Somebody has waited for it.
    outcomes.raise_error()


def test_the_first_error_of_outcomes_that_nobody_waits_for_is_kept() -> None:
    outcomes = JobOutcomes()
    for error in (ConnectionLostError("first"), ConnectionLostError("second")):
        turn = outcomes.turn()
        turn.watched = True
        outcomes.take_turn()
        outcomes.finished(turn, error)
    with pytest.raises(ConnectionLostError, match="first"):
        outcomes.raise_error()
    outcomes.raise_error()


def test_late_outcomes_are_counted_by_kind_and_partition() -> None:
    outcomes = JobOutcomes()
    turn = outcomes.turn()
    turn.watched = True
    turn.came_late((JobOutcome(1, 0, ACK, 2, 6), JobOutcome(1, 1, NACK, 0, 9)))
    assert turn.late(ACK, STRETCH, 0, 4) == 2
    assert turn.late(NACK, STRETCH, 0, 4) == 0
    outcomes.take_turn()
    outcomes.finished(turn)
    with pytest.raises(LeaseLostError, match="4 jobs were acked too late"):
        outcomes.raise_error()
