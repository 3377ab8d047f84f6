"""What a primary does next: each rule of the table, and for whom it waits."""

from __future__ import annotations

from typing import Any

import pytest

from fanlog.cluster.committed_position import committed, waits_for
from fanlog.cluster.primary_decisions import decide_primary
from fanlog.cluster.records import SeenRecord, ShardRecord
from fanlog.cluster.snapshot import ClusterSnapshot
from fanlog.cluster.steps import (
    AddInSync,
    AddReplica,
    MovePrimary,
    NoChange,
    PrimaryStep,
    RemoveInSync,
    RemoveReplica,
    RepeatChange,
    StepDown,
)
from fanlog.cluster.views import AckedPositions, FollowerReport, PendingChange
from tests.cluster.views import level, node, primary, record, snapshot

ALL = ("a.1", "b.1", "c.1")
TWO = record(in_sync=("a.1", "b.1"))
SILENT = FollowerReport(incarnation="c.1", level=True, acked=AckedPositions(5, 5), acked_at=90.0)


def decide(cluster: ClusterSnapshot | None = None, **fields: Any) -> PrimaryStep:
    return decide_primary(primary(cluster or snapshot(record(), *ALL), **fields))


def reason(step: PrimaryStep) -> str:
    assert isinstance(step, StepDown | NoChange), step
    return step.reason


def changed(step: PrimaryStep) -> ShardRecord:
    assert not isinstance(step, StepDown | NoChange), step
    return step.record


def test_a_healthy_reign_changes_nothing() -> None:
    assert decide() == NoChange()


# Stepping down


def test_a_higher_epoch_ends_the_reign_wherever_it_is_heard() -> None:
    assert isinstance(decide(epoch_heard=6), StepDown)
    assert decide(epoch_heard=5) == NoChange()
    other = snapshot(record(epoch=6, primary="b.1"), *ALL, revision=11)
    base = SeenRecord(record(), 10)
    step = decide(other, base=base)
    assert isinstance(step, StepDown)
    assert "b.1" in step.reason


def test_a_record_that_went_back_ends_the_reign() -> None:
    base = SeenRecord(record(in_sync=("a.1", "b.1")), 10)
    for now in (snapshot(record(), *ALL, revision=9), snapshot(record(), *ALL), snapshot(None)):
        assert isinstance(decide(now, base=base), StepDown)


def test_an_etcd_that_is_away_demotes_nobody_and_begins_nothing() -> None:
    late = {"followers": (level("b.1"), SILENT), "waiting_since": 90.0}
    assert "etcd" in reason(decide(reachable=False, **late))
    assert isinstance(decide(reachable=False, epoch_heard=6), StepDown)


def test_another_etcd_with_the_same_record_changes_nothing() -> None:
    late = {"followers": (level("b.1"), SILENT), "waiting_since": 90.0}
    step = decide(snapshot(record(), *ALL, etcd="e2"), **late)
    assert isinstance(step, NoChange)
    assert "another etcd" in step.reason
    other = snapshot(TWO, *ALL, etcd="e2")
    assert isinstance(decide(other, base=SeenRecord(record(), 10)), StepDown)


def test_a_log_that_failed_goes_to_the_furthest_follower_or_ends_the_reign() -> None:
    further = (level("b.1", acked=AckedPositions(8, 7)), level("c.1", acked=AckedPositions(9, 7)))
    step = decide(log_fault="EIO", followers=further)
    assert step == MovePrimary("c.1", record(epoch=6, primary="c.1"))
    assert isinstance(decide(log_fault="EIO", followers=()), StepDown)
    nobody_alive = snapshot(record(), "a.1")
    assert isinstance(decide(nobody_alive, log_fault="EIO"), StepDown)


# Unknown outcomes


def test_a_swap_whose_outcome_is_unknown_is_sent_again_until_the_record_changes() -> None:
    pending = PendingChange(10, TWO)
    assert decide(pending=pending) == RepeatChange(TWO)
    # It has come back meanwhile: the outcome comes first all the same.
    assert decide(pending=pending, waiting_since=99.0) == RepeatChange(TWO)
    settled = snapshot(TWO, *ALL, revision=11)
    step = decide(settled, base=SeenRecord(record(), 10), pending=pending)
    assert step == AddInSync("c.1", record())


def test_a_primary_waits_for_both_sets_while_the_outcome_is_unknown() -> None:
    three, two = SeenRecord(record(), 10), SeenRecord(TWO, 10)
    assert waits_for(three, None) == {*ALL}
    assert waits_for(three, PendingChange(10, TWO)) == {*ALL}
    assert waits_for(two, PendingChange(10, record())) == {*ALL}
    assert waits_for(SeenRecord(TWO, 11), PendingChange(10, TWO)) == {"a.1", "b.1"}
    # It failed, because an operator changed the record: it can't succeed any more.
    assert waits_for(SeenRecord(record(), 11), PendingChange(10, TWO)) == {*ALL}


def test_committed_is_what_all_of_them_have() -> None:
    acks = {"a.1": AckedPositions(9, 4), "b.1": AckedPositions(7, 6), "c.1": AckedPositions(8, 8)}
    assert committed(acks, frozenset(ALL), 2) == AckedPositions(7, 4)
    assert committed(acks, frozenset({"a.1", "c.1"}), 2) == AckedPositions(8, 4)
    assert committed(acks, frozenset({"a.1", "d.1"}), 2) == AckedPositions(0, 0)


def test_nothing_is_committed_with_fewer_nodes_than_min_in_sync() -> None:
    acks = {"a.1": AckedPositions(9, 9), "b.1": AckedPositions(9, 9), "b.2": AckedPositions(9, 9)}
    assert committed(acks, frozenset({"a.1"}), 2) == AckedPositions(0, 0)
    assert committed(acks, frozenset({"b.1", "b.2"}), 2) == AckedPositions(0, 0)
    alone = record(in_sync=("a.1",))
    assert "nothing is committed" in reason(decide(snapshot(alone, "a.1"), followers=()))


# Joining and leaving


def test_a_level_follower_joins() -> None:
    assert decide(snapshot(TWO, *ALL)) == AddInSync("c.1", record())


@pytest.mark.parametrize(
    "not_yet",
    [
        level("c.1", level=False),
        level("c.1", acked=AckedPositions(6, 7)),
        level("c.1", acked=AckedPositions(7, 6)),
    ],
)
def test_a_follower_that_lacks_what_is_committed_does_not_join(not_yet: FollowerReport) -> None:
    assert decide(snapshot(TWO, *ALL), followers=(level("b.1"), not_yet)) == NoChange()


def test_before_the_first_commit_of_a_reign_only_who_acknowledged_something_joins() -> None:
    cluster = snapshot(TWO, *ALL)
    for acked in (AckedPositions(0, 0), AckedPositions(1, 0)):
        sent = (level("b.1", acked=AckedPositions(0, 0)), level("c.1", acked=acked))
        assert decide(cluster, followers=sent, committed=AckedPositions(0, 0)) == NoChange()
    has = (level("b.1", acked=AckedPositions(0, 0)), level("c.1", acked=AckedPositions(1, 1)))
    step = decide(cluster, followers=has, committed=AckedPositions(0, 0))
    assert step == AddInSync("c.1", record())


def test_a_new_incarnation_takes_the_place_of_the_old_one_in_one_step() -> None:
    cluster = snapshot(record(), "a.1", "b.2", "c.1")
    step = decide(cluster, followers=(level("b.2"), level("c.1")))
    assert step == AddInSync("b.2", record(in_sync=("a.1", "c.1", "b.2")))


def test_a_follower_that_holds_up_a_write_for_too_long_is_left_out() -> None:
    late = (level("b.1"), SILENT)
    assert decide(followers=late, waiting_since=97.5) == NoChange()
    assert decide(followers=late, waiting_since=96.0) == RemoveInSync("c.1", TWO)
    assert decide(followers=late) == NoChange(), "nothing waits"
    gone = (level("b.1"),)
    assert decide(followers=gone, waiting_since=96.0) == RemoveInSync("c.1", TWO)
    slow = (level("b.1"), level("c.1", acked=AckedPositions(5, 5), acked_at=98.0))
    assert decide(followers=slow, waiting_since=90.0) == NoChange(), "it gets on"


def test_the_set_never_shrinks_below_min_in_sync() -> None:
    step = decide(snapshot(TWO, *ALL), followers=(), waiting_since=90.0)
    assert "b.1 does not acknowledge" in reason(step)
    twice = record(in_sync=("b.0", "a.1", "b.1"))
    silent = decide(snapshot(twice, *ALL), followers=(), waiting_since=90.0)
    assert changed(silent).in_sync == ("a.1", "b.1"), "b.0 and b.1 are one node"


def test_of_two_silent_followers_the_dead_one_is_left_out_and_then_the_longest_silent_one() -> None:
    b, c = (
        FollowerReport(incarnation=one, level=True, acked=AckedPositions(5, 5), acked_at=at)
        for one, at in (("b.1", 92.0), ("c.1", 91.0))
    )
    late: dict[str, Any] = {"waiting_since": 90.0}
    # c is silent longer.
    assert changed(decide(followers=(b, c), **late)).in_sync == ("a.1", "b.1")
    # b has no connection.
    assert changed(decide(followers=(c,), **late)).in_sync == ("a.1", "c.1")
    # b is not alive, though its connection is not known to be lost.
    dead = snapshot(record(), "a.1", "c.1")
    assert changed(decide(dead, followers=(b, c), **late)).in_sync == ("a.1", "c.1")


def test_who_joins_makes_room_for_leaving_out_another_one() -> None:
    spare = record(in_sync=("a.1", "b.1"))
    view = {"followers": (level("c.1"),), "waiting_since": 90.0}
    assert decide(snapshot(spare, *ALL), **view) == AddInSync("c.1", record())
    assert changed(decide(snapshot(record(), *ALL), **view)).in_sync == ("a.1", "c.1")


def test_a_new_node_becomes_a_replica_while_there_are_too_few() -> None:
    few = record(replicas=("a", "b"), in_sync=("a.1", "b.1"))
    new = FollowerReport(incarnation="c.1")
    step = decide(snapshot(few, *ALL), followers=(level("b.1"), new))
    assert step == AddReplica("c", TWO)
    spare = FollowerReport(incarnation="d.1")
    assert decide(followers=(level("b.1"), level("c.1"), spare)) == NoChange()


def test_a_spare_that_is_level_does_not_join() -> None:
    assert decide(followers=(level("b.1"), level("c.1"), level("d.1"))) == NoChange()


def test_a_node_leaves_when_enough_others_are_in_sync() -> None:
    step = decide(leaving=frozenset({"c"}))
    assert step == RemoveReplica("c", record(replicas=("a", "b"), in_sync=("a.1", "b.1")))
    at_least = snapshot(TWO, *ALL)
    assert decide(at_least, leaving=frozenset({"b", "c"})) == RemoveReplica(
        "c", record(replicas=("a", "b"), in_sync=("a.1", "b.1"))
    )
    only_two = snapshot(record(replicas=("a", "b"), in_sync=("a.1", "b.1")), *ALL)
    step = decide(only_two, leaving=frozenset({"b"}), followers=(level("b.1"),))
    assert isinstance(step, NoChange)


# Handing over


def test_a_node_that_leaves_for_good_is_not_taken_in_again_while_it_still_runs() -> None:
    leaves = frozenset({"c"})
    after = changed(decide(leaving=leaves, parting=leaves))
    assert (after.replicas, after.in_sync) == (("a", "b"), ("a.1", "b.1"))
    # The request is done and removed.
    step = decide(snapshot(after, *ALL), followers=(level("b.1"), level("c.1")))
    assert step == NoChange()


def test_a_place_is_kept_for_a_node_that_drains() -> None:
    drained = changed(decide(leaving=frozenset({"c"})))
    step = decide(snapshot(drained, *ALL), followers=(level("b.1"), level("c.1")))
    assert isinstance(step, AddReplica)


def test_the_primary_moves_to_a_level_member_only() -> None:
    assert decide(move_to="c") == MovePrimary("c.1", record(epoch=6, primary="c.1"))
    assert decide(move_to="a") == NoChange()
    behind = (level("b.1"), level("c.1", level=False))
    assert "can't move" in reason(decide(move_to="c", followers=behind))
    assert isinstance(decide(snapshot(TWO, *ALL), move_to="c"), AddInSync)


def test_the_primary_does_not_move_to_a_member_that_may_be_copying_again() -> None:
    """It acknowledges nothing on a connection before its copy is whole."""
    connected_anew = (level("b.1"), level("c.1", acked=AckedPositions()))
    before_the_first_commit = AckedPositions()
    for so_far in (AckedPositions(7, 7), before_the_first_commit):
        step = decide(move_to="c", followers=connected_anew, committed=so_far)
        assert "can't move" in reason(step)


def test_a_primary_that_drains_or_leaves_hands_over_to_a_node_that_is_fit() -> None:
    cluster = snapshot(record(), "a.1", node("b.1", unfit="it drains"), "c.1")
    assert decide(cluster, unfit="it drains") == MovePrimary("c.1", record(epoch=6, primary="c.1"))
    assert isinstance(decide(leaving=frozenset({"a"})), MovePrimary)
    assert decide(snapshot(record(), "a.1"), unfit="it drains") == NoChange()
