"""What a node does next that is not primary: each rule of the table, and the cases between them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fanlog.cluster.follower_decisions import decide_follower
from fanlog.cluster.records import SeenRecord
from fanlog.cluster.snapshot import Absences, ClusterSnapshot
from fanlog.cluster.steps import (
    CreateRecord,
    FollowerStep,
    FollowPrimary,
    NewCluster,
    OpenReign,
    Promote,
    StopNode,
    Wait,
)
from fanlog.cluster.views import Folder
from tests.cluster.views import follower, known, node, record, snapshot

GONE = {"a.1": 90.0}
ALL = ("a.1", "b.1", "c.1")
EMPTY = ClusterSnapshot(etcd="e1")


def decide(cluster: ClusterSnapshot, me: str = "b.1", **fields: Any) -> FollowerStep:
    return decide_follower(follower(cluster, me, **fields))


def stopped(step: FollowerStep) -> str:
    assert isinstance(step, StopNode), step
    return step.sentence


def waiting(step: FollowerStep) -> str:
    assert isinstance(step, Wait), step
    return step.reason


def promoted(step: FollowerStep) -> tuple[int, str, tuple[str, ...]]:
    assert isinstance(step, Promote), step
    return step.record.epoch, step.record.primary, step.record.in_sync


def test_a_live_primary_is_followed() -> None:
    assert decide(snapshot(record(), *ALL)) == FollowPrimary(node("a.1"), 5)


@pytest.mark.parametrize("folder", [Folder.EMPTY, Folder.WHOLE, Folder.COPYING, Folder.CUTTING])
def test_any_copy_of_this_cluster_follows(folder: Folder) -> None:
    step = decide(snapshot(record(), "a.1"), "d.1", folder=folder, known=known(node="d"))
    assert isinstance(step, FollowPrimary)


# A new cluster


def test_the_first_node_draws_an_id_then_creates_the_record() -> None:
    new = {"folder": Folder.EMPTY, "known": known(cluster="", node="", etcd="")}
    assert decide(EMPTY, **new) == NewCluster()
    step = decide(snapshot(None, "b.1"), **new)
    assert isinstance(step, CreateRecord)
    assert step.record == record(epoch=1, primary="b.1", in_sync=("b.1",), replicas=("b",))


def test_a_single_nodes_folder_begins_a_cluster_only_when_told_so() -> None:
    single = {"folder": Folder.UNMARKED, "known": known(cluster="", node="", etcd="")}
    assert "single node" in stopped(decide(EMPTY, **single))
    step = decide(snapshot(None, "b.1"), **single, adopt=True, folder_epoch=41)
    assert isinstance(step, CreateRecord)
    assert step.record.epoch == 42


def test_a_single_nodes_folder_does_not_join_a_cluster() -> None:
    single = {"folder": Folder.UNMARKED, "known": known(cluster="", node="", etcd="")}
    assert "empty folder" in stopped(decide(snapshot(record(), *ALL), **single, adopt=True))


@pytest.mark.parametrize("folder", [Folder.EMPTY, Folder.ADOPTING])
def test_whoever_the_first_record_names_opens_its_reign_and_nobody_else_does(
    folder: Folder,
) -> None:
    begun = record(epoch=1, primary="b.1", in_sync=("b.1",), replicas=("b",))
    mine = known(last_reign=0)
    assert decide(snapshot(begun, "b.1"), folder=folder, known=mine) == OpenReign(1)
    others = record(epoch=1, primary="a.1", in_sync=("a.1",), replicas=("a",))
    assert not isinstance(decide(snapshot(others, "b.1"), folder=folder, known=mine), OpenReign)
    # Once more than one has a part in it, the state of the folder has to say that it is whole.
    grown = record(epoch=1, primary="b.1", in_sync=("b.1", "a.1"))
    assert not isinstance(decide(snapshot(grown, "b.1"), folder=folder, known=mine), OpenReign)


def test_a_single_nodes_folder_that_came_second_is_kept() -> None:
    others = record(epoch=1, primary="a.1", in_sync=("a.1",), replicas=("a",))
    mine = {"folder": Folder.ADOPTING, "known": known(last_reign=0), "adopt": True}
    assert "empty folder" in stopped(decide(snapshot(others, *ALL), **mine))


@pytest.mark.parametrize("folder", [Folder.COPYING, Folder.CUTTING])
def test_a_copy_that_is_not_whole_begins_no_cluster(folder: Folder) -> None:
    assert "not whole" in stopped(decide(snapshot(None), folder=folder, known=known()))


# Folders of others, and an etcd that has gone back


def test_a_folder_of_another_node_or_cluster_is_refused() -> None:
    cluster = snapshot(record(), *ALL)
    assert "node 'c'" in stopped(decide(cluster, known=known(node="c")))
    assert "cluster dead" in stopped(decide(cluster, known=known(cluster="dead")))
    assert "etcd has none" in stopped(decide(EMPTY))


def test_a_record_that_went_back_stops_the_node() -> None:
    old = snapshot(record(), *ALL, revision=9)
    newer = SeenRecord(record(in_sync=("a.1", "b.1")), 10)
    assert "gone back" in stopped(decide(old, known=known(seen=newer)))
    same_revision = snapshot(record(), *ALL, revision=10)
    assert "gone back" in stopped(decide(same_revision, known=known(seen=newer)))
    lower_epoch = snapshot(record(epoch=4), *ALL, revision=11)
    assert "gone back" in stopped(decide(lower_epoch, known=known(seen=newer)))
    gone = snapshot(None, *ALL)
    assert "no record" in stopped(decide(gone, known=known(seen=newer)))


def test_another_etcd_with_another_record_stops_the_node() -> None:
    seen = SeenRecord(record(epoch=4), 10)
    assert "another etcd" in stopped(
        decide(snapshot(record(), *ALL, revision=99, etcd="e2"), known=known(seen=seen))
    )


def test_another_etcd_with_the_same_record_lets_a_node_follow_but_promotes_nobody() -> None:
    seen = SeenRecord(record(), 10)
    here = snapshot(record(), *ALL, etcd="e2")
    assert isinstance(decide(here, known=known(seen=seen)), FollowPrimary)
    alone = snapshot(record(), "b.1", "c.1", etcd="e2")
    step = decide(alone, known=known(seen=seen), missing_since=GONE)
    assert isinstance(step, Wait)
    assert step.needs_operator
    restarted = decide(here, "a.1", known=known(seen=seen, node="a", last_reign=5))
    assert isinstance(restarted, Wait)


def test_a_reign_that_an_operator_began_is_taken_from_a_restored_etcd() -> None:
    forced = record(epoch=8, forced_epoch=8, primary="c.1", in_sync=("c.1",))
    seen = SeenRecord(record(epoch=7), 50)
    for etcd in ("e1", "e2"):
        step = decide(snapshot(forced, "b.1", "c.1", revision=9, etcd=etcd), known=known(seen=seen))
        assert step == FollowPrimary(node("c.1"), 8)
    # Later records of that history carry it along; one of a forced reign long ago does not count.
    later = replace(forced, epoch=9, primary="b.1", in_sync=("b.1", "c.1"))
    step = decide(snapshot(later, "b.1", revision=12), "d.1", known=known(seen=seen, node="d"))
    assert step == FollowPrimary(node("b.1"), 9)
    long_ago = replace(forced, epoch=9, forced_epoch=6)
    old = snapshot(long_ago, *ALL, revision=9)
    assert "gone back" in stopped(
        decide(old, known=known(seen=SeenRecord(record(epoch=7, forced_epoch=6), 50)))
    )


def test_a_node_that_saw_a_forced_epoch_before_its_reign_is_not_of_that_cluster() -> None:
    """Two reigns had the epochs 6 and 7: what each wrote would look like the same."""
    forced = record(epoch=8, forced_epoch=6, primary="c.1", in_sync=("c.1",))
    seen = SeenRecord(record(epoch=7), 10)
    step = decide(snapshot(forced, *ALL, revision=90), known=known(seen=seen))
    assert "without this node" in stopped(step)


# Taking over


def test_a_follower_waits_for_the_grace_before_it_takes_over() -> None:
    cluster = snapshot(record(), "b.1", "c.1")
    step = decide(cluster, missing_since={"a.1": 99.5})
    assert isinstance(step, Wait)
    assert step.seconds == pytest.approx(0.5)
    assert isinstance(decide(cluster), Wait), "it has only just been missed"
    assert promoted(decide(cluster, missing_since=GONE)) == (6, "b.1", ("b.1", "c.1"))


def test_a_primary_that_was_started_again_without_its_place_is_not_waited_for() -> None:
    cluster = snapshot(record(), "a.2", "b.1", "c.1")
    assert promoted(decide(cluster)) == (6, "b.1", ("b.1", "c.1"))


def test_a_new_reign_never_begins_with_fewer_than_min_in_sync() -> None:
    missing = {"a.1": 90.0, "c.1": 20.0}
    alone = snapshot(record(), "b.1")
    # The one that has been missing for the shortest time is the likeliest to return.
    assert promoted(decide(alone, missing_since=missing)) == (6, "b.1", ("a.1", "b.1"))
    three = snapshot(record(min_in_sync=3), "b.1")
    assert promoted(decide(three, missing_since=missing)) == (6, "b.1", ALL)
    replaced = snapshot(record(), "a.2", "b.1")
    assert promoted(decide(replaced, missing_since=missing)) == (6, "b.1", ("b.1", "c.1"))
    # Two incarnations of one node are one node.
    twice = snapshot(record(in_sync=("a.1", "b.0", "b.1")), "b.1")
    assert promoted(decide(twice, missing_since=missing)) == (6, "b.1", ("a.1", "b.1"))


@pytest.mark.parametrize("folder", [Folder.EMPTY, Folder.COPYING, Folder.CUTTING])
def test_a_copy_that_is_not_whole_never_takes_over(folder: Folder) -> None:
    cluster = snapshot(record(), "b.1", "c.1")
    assert "not whole" in waiting(decide(cluster, folder=folder, missing_since=GONE))


def test_an_incarnation_outside_the_in_sync_set_never_takes_over() -> None:
    cluster = snapshot(record(in_sync=("a.1", "c.1")), "b.1", "c.1")
    assert "c.1 may become primary" in waiting(decide(cluster, missing_since=GONE))
    again = snapshot(record(), "b.2", "c.1")
    assert "in-sync set" in waiting(decide(again, "b.2", missing_since=GONE))


def test_when_nobody_may_take_over_the_operator_is_named() -> None:
    rebooted = snapshot(record(), "a.2", "b.2", "c.2")
    step = decide(rebooted, "b.2")
    assert isinstance(step, Wait)
    assert step.needs_operator
    assert "start a.1, b.1, c.1 again" in step.reason


def test_nobody_takes_over_while_a_live_node_has_seen_a_newer_record() -> None:
    cluster = snapshot(record(), "b.1", node("c.1", revision=11))
    assert "Node c has seen" in waiting(decide(cluster, missing_since=GONE))


def test_nobody_takes_over_who_has_heard_of_a_later_reign() -> None:
    cluster = snapshot(record(), "b.1")
    assert "reign of epoch 6" in waiting(decide(cluster, epoch_heard=6, missing_since=GONE))


def test_a_node_that_drains_leaves_it_to_another_one_if_there_is_one() -> None:
    cluster = snapshot(record(), node("b.1", unfit="it drains"), "c.1")
    assert "c.1 may take over" in waiting(decide(cluster, unfit="it drains", missing_since=GONE))
    alone = snapshot(record(), node("b.1", unfit="it drains"), node("c.1", unfit="full"))
    assert promoted(decide(alone, unfit="it drains", missing_since=GONE))[1] == "b.1"


# Named as primary


def test_a_node_that_is_named_opens_the_reign_once() -> None:
    moved = snapshot(record(epoch=6, primary="b.1"), *ALL)
    assert decide(moved, known=known(last_reign=3)) == OpenReign(6)
    # After a restart it begins a reign of its own: an epoch is never resumed.
    restarted = decide(snapshot(record(), "a.1", "b.1"), "a.1", known=known(node="a", last_reign=5))
    assert promoted(restarted) == (6, "a.1", ("a.1", "b.1"))


def test_a_node_that_is_named_opens_no_reign_with_half_a_copy() -> None:
    moved = snapshot(record(epoch=6, primary="b.1"), "b.1")
    assert isinstance(decide(moved, folder=Folder.CUTTING), Wait)


def test_a_node_that_is_named_with_half_a_copy_names_another_one() -> None:
    """The others wait for it, as it is alive."""
    moved = record(epoch=6, primary="b.1")
    step = decide(snapshot(moved, "b.1", "c.1"), folder=Folder.COPYING)
    assert promoted(step) == (7, "c.1", ("b.1", "c.1"))
    nobody = snapshot(moved, "b.1", node("c.1", unfit="its copy is not whole", copying=True))
    assert isinstance(decide(nobody, folder=Folder.COPYING), Wait)
    newer = snapshot(moved, "b.1", node("c.1", revision=11))
    assert "has seen a newer" in waiting(decide(newer, folder=Folder.COPYING))


def test_a_restarted_primary_that_is_unfit_names_another_one() -> None:
    cluster = snapshot(record(), "a.1", "c.1")
    step = decide(cluster, "a.1", known=known(node="a", last_reign=5), unfit="its disk is full")
    assert promoted(step) == (6, "c.1", ("a.1", "c.1"))


def test_a_named_node_without_room_lets_another_one_reign() -> None:
    moved = snapshot(record(epoch=6, primary="b.1"), *ALL)
    step = decide(moved, known=known(last_reign=3), unfit="its disk is full")
    assert promoted(step)[0] == 7
    assert promoted(step)[1] != "b.1"
    alone = snapshot(record(epoch=6, primary="b.1"), "b.1")
    assert decide(alone, known=known(last_reign=3), unfit="its disk is full") == OpenReign(6)


def test_the_new_epoch_is_above_all_that_the_folder_had() -> None:
    cluster = snapshot(record(), "b.1", "c.1")
    assert promoted(decide(cluster, folder_epoch=8, missing_since=GONE))[0] == 9


# Absences


def test_an_absence_counts_from_when_it_was_first_seen() -> None:
    absences = Absences()
    assert absences.observe(snapshot(record(), *ALL), 1.0) == {}
    assert absences.observe(snapshot(record(), "b.1"), 2.0) == {"a.1": 2.0, "c.1": 2.0}
    assert absences.observe(snapshot(record(), "b.1", "c.1"), 3.0) == {"a.1": 2.0}
    assert absences.observe(snapshot(record(), "b.1"), 4.0) == {"a.1": 2.0, "c.1": 4.0}
    absences.forget()
    assert absences.observe(snapshot(record(), "b.1"), 5.0) == {"a.1": 5.0, "c.1": 5.0}
