"""A transformation without a broker: which messages an attempt has, and when it ends."""

from __future__ import annotations

import pytest

from fanlog.client.core.transform_core import TransformAttempt, check_target, first_wait_seconds
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import FencedError, InvalidArgumentError
from fanlog.format.batch import Batch
from fanlog.format.messages import GroupOffsets, Position
from fanlog.model import TopicPartition
from tests.client.core.stepped_client import stored_batch


class Member:
    """`times` counts how often each partition came to it."""

    def __init__(self) -> None:
        self.times: dict[TopicPartition, int] = {}

    def times_came(self, tp: TopicPartition) -> int:
        return self.times.get(tp, 1)

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets:
        return GroupOffsets("g", "a", 5, positions or ())


def message(offset: int, partition: int = 0) -> Message:
    batch = stored_batch(offset, b"x", partition=partition)
    return MessageBatch(Batch(batch.data, topic_name="t")).messages[0]


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def places(attempt: TransformAttempt) -> set[tuple[int, int]]:
    return {(position.partition, position.offset) for position in attempt.positions}


def test_results_must_not_be_read_again() -> None:
    check_target("orders", "invoices")
    for source in ("orders", "orders.>", ">"):
        target = "orders.new" if source == "orders.>" else "orders"
        with pytest.raises(InvalidArgumentError, match="without end"):
            check_target(source, target)


@pytest.mark.parametrize(
    ("now", "idle_at", "looks", "wait_seconds"),
    [
        (5.0, None, False, None),
        (5.0, None, True, 0.1),
        (5.0, 7.0, False, 2.0),
        (5.0, 7.0, True, 0.1),
        (5.0, 5.0625, True, 0.0625),
        (7.0, 7.0, True, 0.0),
        (8.0, 7.0, False, 0.0),
    ],
)
def test_the_first_message_is_waited_for_until_it_was_quiet_for_long_enough(
    now: float, idle_at: float | None, looks: bool, wait_seconds: float | None
) -> None:
    assert first_wait_seconds(now, idle_at, looks=looks) == wait_seconds


def test_an_attempt_is_full_after_so_many_messages() -> None:
    attempt = TransformAttempt(Member(), message(3), 2)
    attempt.finish(message(3))
    assert not attempt.is_full
    attempt.take(message(7, partition=1))
    attempt.finish(message(7, partition=1))
    assert attempt.is_full
    assert attempt.count == 2


def test_it_commits_the_positions_of_what_has_results_and_of_nothing_else() -> None:
    attempt = TransformAttempt(Member(), message(3), 9)
    assert places(attempt) == set()
    attempt.finish(message(3))
    attempt.take(message(4))
    attempt.finish(message(4))
    attempt.take(message(8, partition=1))
    assert places(attempt) == {(0, 5)}


def test_a_partition_waits_for_the_attempt_that_has_messages_of_it() -> None:
    attempt = TransformAttempt(Member(), message(3), 9)
    attempt.finish(message(3))
    attempt.take(message(8, partition=1))
    assert not attempt.hurry_for([tp(2)])
    assert not attempt.is_full
    assert attempt.hurry_for([tp(1)])
    assert attempt.is_full
    assert attempt.hurry_for([tp(0), tp(2)])
    # One that does not wait does not undo it.
    assert not attempt.hurry_for([tp(2)])
    assert attempt.is_full


def test_it_fails_if_a_partition_was_away_since_its_message_was_taken() -> None:
    member = Member()
    attempt = TransformAttempt(member, message(3), 9)
    attempt.finish(message(3))
    attempt.member.offsets_for_commit(attempt.positions)
    member.times[tp(0)] = 2
    with pytest.raises(FencedError):
        attempt.member.offsets_for_commit(attempt.positions)
