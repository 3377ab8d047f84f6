"""What a follower may show to readers: nothing before it is committed."""

from __future__ import annotations

from fanlog.cluster.committed_ends import CommittedEnds
from fanlog.format.replication import ReplicaEnd, ReplicaEvent, ReplicaPiece, Replicated


def frame(
    position: int = 0, *pieces: tuple[int, int], committed: int | tuple[int, int] = 0, beat: int = 0
) -> Replicated:
    """Pieces of topic 1: partition, and next offset."""
    written, synced = committed if isinstance(committed, tuple) else (committed, committed)
    found = [ReplicaPiece(1, partition, 0, after, b"") for partition, after in pieces]
    return Replicated(7, position, written, synced, beat, (), found)


def test_a_turn_is_committed_when_its_position_is() -> None:
    ends = CommittedEnds()
    ends.begin([])
    ends.heard(frame(1, (0, 10), (1, 5)))
    assert (ends.end_of(1, 0), ends.end_of(1, 1)) == (0, 0)
    ends.heard(frame(2, (0, 12), committed=1))
    assert (ends.end_of(1, 0), ends.end_of(1, 1)) == (10, 5)
    ends.heard(frame(2, committed=2))
    assert ends.end_of(1, 0) == 12


def test_both_committed_positions_have_to_be_there() -> None:
    ends = CommittedEnds()
    ends.begin([])
    ends.heard(frame(1, (0, 10), committed=(1, 0)))
    assert ends.end_of(1, 0) == 0
    ends.heard(frame(1, committed=(1, 1)))
    assert ends.end_of(1, 0) == 10


def test_what_was_there_when_it_connected_is_committed_when_it_is_level_for_two_heartbeats() -> (
    None
):
    ends = CommittedEnds()
    ends.begin([ReplicaEnd(1, 0, 50)])
    ends.heard(frame(9, committed=9, beat=3))
    ends.heard(frame(9, committed=9, beat=4))
    assert ends.end_of(1, 0) == 0
    ends.heard(frame(9, committed=9, beat=5))
    assert ends.end_of(1, 0) == 50


def test_a_block_read_in_an_open_turn_waits_for_that_turn() -> None:
    ends = CommittedEnds()
    ends.begin([])
    # The block has the first pieces of turn 10, which has not ended; level is said of turn 9.
    ends.heard(frame(0, (0, 60), committed=9, beat=3))
    ends.heard(frame(9, committed=9, beat=3))
    ends.heard(frame(9, committed=9, beat=4))
    assert ends.end_of(1, 0) == 0
    ends.heard(frame(10, committed=9, beat=4))
    ends.heard(frame(10, committed=9, beat=5))
    assert ends.end_of(1, 0) == 0
    ends.heard(frame(10, committed=10, beat=6))
    assert ends.end_of(1, 0) == 60


def test_a_follower_that_falls_behind_keeps_what_was_committed() -> None:
    ends = CommittedEnds()
    ends.begin([])
    ends.heard(frame(1, (0, 10), committed=1))
    ends.heard(frame(0, (0, 90), committed=40))
    assert ends.end_of(1, 0) == 10


def test_a_new_reign_keeps_what_was_committed_and_is_still_there() -> None:
    ends = CommittedEnds()
    ends.begin([])
    ends.heard(frame(5, (0, 10), (1, 10), (2, 10), committed=5))
    ends.begin([ReplicaEnd(1, 0, 30), ReplicaEnd(1, 1, 4)])
    assert [ends.end_of(1, partition) for partition in range(3)] == [10, 4, 0]
    # Positions begin anew with each reign.
    ends.heard(frame(1, committed=1, beat=1))
    assert ends.end_of(1, 0) == 10


def test_a_deleted_topic_has_no_end() -> None:
    ends = CommittedEnds()
    ends.begin([])
    ends.heard(frame(1, (0, 10), committed=1))
    ends.heard(Replicated(7, 2, 1, 1, 0, [ReplicaEvent(1, deleted=True)], ()))
    assert ends.end_of(1, 0) == 0
