"""What a node does next that is not primary: follow, take over, wait, or stop.

Law: one pure function from a view to a step. Its rules are a table, read from the top: the first
one that answers decides. Safety never rests on a time: times only say when to try.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fanlog.cluster.records import SeenRecord, ShardRecord, nodes_of
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
from fanlog.cluster.trust import Distrust, Hold, trust
from fanlog.cluster.views import Folder, FollowerView

_RECHECK_SECONDS = 0.25


def decide_follower(view: FollowerView) -> FollowerStep:
    """The next step of a node that is not primary."""
    for rule in _FOLLOWER_RULES:
        step = rule(view)
        if step is not None:
            return step
    raise AssertionError("the last rule always answers")


def _foreign_folder(view: FollowerView) -> FollowerStep | None:
    known, cluster = view.known, view.cluster
    if known.node and known.node != view.node:
        return StopNode(
            f"This data folder belongs to node {known.node!r}, not {view.node!r}. Start it with "
            "its own id, or begin with an empty folder."
        )
    if known.cluster and known.cluster != cluster.id:
        return StopNode(
            f"This data folder belongs to cluster {known.cluster}; etcd has "
            f"{cluster.id or 'none'}. Check the name of the cluster and the addresses of etcd."
        )
    return None


def _untrusted(view: FollowerView) -> FollowerStep | None:
    match trust(view.known.seen, view.known.etcd, view.cluster.record, view.cluster.etcd):
        case Distrust(sentence):
            return StopNode(sentence)
        case _:
            return None


def _no_record(view: FollowerView) -> FollowerStep | None:
    """The cluster is new: this node begins it, or another one did so first."""
    if view.cluster.record is not None:
        return None
    if view.folder in (Folder.COPYING, Folder.CUTTING):
        return StopNode(
            "etcd has no record of this cluster, and this node's copy is not whole. Start the node "
            "that has all data first."
        )
    if view.folder is Folder.UNMARKED and not view.adopt:
        return StopNode(
            "This data folder belongs to a single node. Make it the first of a cluster (docs/"
            "cluster.md), or begin with an empty folder."
        )
    if not view.cluster.id:
        return NewCluster()
    me, rules = view.incarnation, view.rules
    return CreateRecord(
        ShardRecord(
            epoch=view.folder_epoch + 1,
            primary=me,
            in_sync=(me,),
            replicas=(view.node,),
            min_in_sync=rules.min_in_sync,
            replicas_wanted=rules.replicas,
        )
    )


def _single_nodes_folder(view: FollowerView) -> FollowerStep | None:
    """Its data must never be replaced by that of a cluster that began without it."""
    if view.folder not in (Folder.UNMARKED, Folder.ADOPTING) or _has_begun_cluster(view):
        return None
    return StopNode(
        "This data folder has data that is not of this cluster, which has begun already. Begin "
        "with an empty folder."
    )


def _primary_alive(view: FollowerView) -> FollowerStep | None:
    record = _record(view).record
    primary = view.cluster.node(record.primary)
    if primary is None or record.primary == view.incarnation:
        return None
    return FollowPrimary(primary, record.epoch)


def _other_etcd(view: FollowerView) -> FollowerStep | None:
    match trust(view.known.seen, view.known.etcd, view.cluster.record, view.cluster.etcd):
        case Hold(reason):
            return Wait(reason, needs_operator=True)
        case _:
            return None


def _not_promotable(view: FollowerView) -> FollowerStep | None:
    """Only a whole copy of an incarnation in the in-sync set may become primary."""
    record = _record(view).record
    whole = view.folder is Folder.WHOLE or _has_begun_cluster(view)
    if whole and view.incarnation in record.in_sync:
        return None
    if record.primary == view.incarnation and (other := _fittest_other(view)) is not None:
        # Nobody else would take over: this node, which the record names, is alive.
        return _newer_record_elsewhere(view) or Promote(_promoted(view, other))
    reason = "its incarnation is not in the in-sync set" if whole else "its copy is not whole"
    able = [
        one
        for one in record.in_sync
        if one != view.incarnation and view.cluster.node(one) is not None
    ]
    if able:
        return Wait(f"{', '.join(able)} may become primary; this node may not: {reason}.")
    return Wait(
        f"No node that may become primary is alive: start {', '.join(record.in_sync)} again "
        "without rebooting its machine, or promote another node by hand, knowing what may be "
        f"lost. This node may not become primary by itself: {reason}.",
        needs_operator=True,
    )


def _newer_record_elsewhere(view: FollowerView) -> FollowerStep | None:
    """Another node has seen a later record than etcd has: a moment's delay, or a restored etcd."""
    seen = _record(view)
    if view.epoch_heard > seen.record.epoch:
        return Wait(
            f"There is a reign of epoch {view.epoch_heard}, and etcd has epoch "
            f"{seen.record.epoch}. Unless this ends at once, etcd was restored.",
            _RECHECK_SECONDS,
        )
    for node in view.cluster.nodes:
        if node.revision > seen.revision and node.node != view.node:
            return Wait(
                f"Node {node.node} has seen a newer record (revision {node.revision}) than etcd "
                f"has (revision {seen.revision}). Unless this ends at once, etcd was restored.",
                _RECHECK_SECONDS,
            )
    return None


def _named_primary(view: FollowerView) -> FollowerStep | None:
    """A move, an operator or an earlier promotion named this node; or it was started again."""
    record = _record(view).record
    if record.primary != view.incarnation:
        return None
    other = _fittest_other(view) if view.unfit else None
    if record.epoch > view.known.last_reign and other is None:
        return OpenReign(record.epoch)
    return Promote(_promoted(view, other or view.incarnation))


def _primary_missing(view: FollowerView) -> FollowerStep | None:
    """It gets a moment to come back; none if it can't come back in this incarnation."""
    primary = _record(view).record.primary
    if view.cluster.is_replaced(primary):
        return None
    missing = view.now - view.missing_since.get(primary, view.now)
    left = view.rules.grace_seconds - missing
    if left <= 0:
        return None
    return Wait(f"The primary {primary} is missing for {missing:.1f} s.", left)


def _unfit(view: FollowerView) -> FollowerStep | None:
    if not view.unfit:
        return None
    other = _fittest_other(view)
    return None if other is None else Wait(f"{other} may take over; this node: {view.unfit}.")


def _take_over(view: FollowerView) -> FollowerStep:
    return Promote(_promoted(view, view.incarnation))


_FOLLOWER_RULES: tuple[Callable[[FollowerView], FollowerStep | None], ...] = (
    _foreign_folder,
    _untrusted,
    _no_record,
    _single_nodes_folder,
    _primary_alive,
    _other_etcd,
    _not_promotable,
    _newer_record_elsewhere,
    _named_primary,
    _primary_missing,
    _unfit,
    _take_over,
)


def _record(view: FollowerView) -> SeenRecord:
    assert view.cluster.record is not None, "a rule above answers without a record"
    return view.cluster.record


def _has_begun_cluster(view: FollowerView) -> bool:
    """The record is the first one, and this node's: what it has is all there is."""
    record, me = _record(view).record, view.incarnation
    named = record.primary == me and record.in_sync == (me,)
    return named and view.folder in (Folder.EMPTY, Folder.ADOPTING) and not view.known.last_reign


def _fittest_other(view: FollowerView) -> str | None:
    """Another live member of the in-sync set that may be primary."""
    for incarnation in _record(view).record.in_sync:
        node = view.cluster.node(incarnation)
        if incarnation != view.incarnation and node is not None and not node.unfit:
            return incarnation
    return None


def _promoted(view: FollowerView, primary: str) -> ShardRecord:
    """The record of the next reign. Its in-sync set has the members that are alive. If they are
    fewer than `min_in_sync` nodes, the dead ones that may return first are in it, too."""
    record = _record(view).record
    alive = {one for one in record.in_sync if view.cluster.node(one) is not None}
    alive |= {view.incarnation, primary}
    dead = sorted(
        (one for one in record.in_sync if one not in alive),
        key=lambda one: (view.cluster.is_replaced(one), -view.missing_since.get(one, view.now)),
    )
    while dead and len(nodes_of(frozenset(alive))) < record.min_in_sync:
        alive.add(dead.pop(0))
    return replace(
        record,
        epoch=max(record.epoch, view.folder_epoch, view.known.last_reign) + 1,
        primary=primary,
        in_sync=tuple(one for one in record.in_sync if one in alive),
    )
