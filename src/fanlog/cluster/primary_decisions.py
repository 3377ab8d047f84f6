"""What a primary does next: change the in-sync set or the replicas, hand over, or step down.

Law: one pure function from a view to a step. Its rules are a table, read from the top: the first
one that answers decides. At most one change of the record is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fanlog.cluster.committed_position import waits_for
from fanlog.cluster.records import SeenRecord, node_of, nodes_of
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
from fanlog.cluster.trust import Distrust, Hold, trust
from fanlog.cluster.views import FollowerReport, PrimaryView


def decide_primary(view: PrimaryView) -> PrimaryStep:
    """The next step of a primary."""
    for rule in _PRIMARY_RULES:
        step = rule(view)
        if step is not None:
            return step
    return NoChange(_blocked(view))


def _fenced(view: PrimaryView) -> PrimaryStep | None:
    if view.epoch_heard > view.epoch:
        return StepDown(f"There is a reign of epoch {view.epoch_heard}; this one is {view.epoch}.")
    return None


def _untrusted_record(view: PrimaryView) -> PrimaryStep | None:
    """Only what etcd says for sure ends a reign: that it is not there does not."""
    now = view.cluster.record
    match trust(view.base, view.etcd, now, view.cluster.etcd):
        case Distrust(sentence):
            return StepDown(sentence)
        case _:
            pass
    assert now is not None
    if now.record.epoch != view.epoch:
        return StepDown(f"{now.record.primary} has begun the reign of epoch {now.record.epoch}.")
    if now.record.primary != view.incarnation:
        return StepDown(f"etcd names {now.record.primary} for this node's reign.")
    return None


def _etcd_away(view: PrimaryView) -> PrimaryStep | None:
    """Nothing is begun. What has begun stays open, and the reign continues."""
    if not view.reachable:
        return NoChange("etcd can't be reached: the in-sync set can't change.")
    match trust(view.base, view.etcd, view.cluster.record, view.cluster.etcd):
        case Hold(reason):
            return NoChange(reason)
        case _:
            return None


def _outcome_unknown(view: PrimaryView) -> PrimaryStep | None:
    """The same again: either it succeeds, or the record has changed and says what happened."""
    if view.pending is not None and view.pending.is_open(_reign(view)):
        return RepeatChange(view.pending.record)
    return None


def _own_log_failed(view: PrimaryView) -> PrimaryStep | None:
    if not view.log_fault:
        return None
    heir = _heir(view)
    if heir is None:
        return StepDown(f"The log takes no more writes: {view.log_fault}")
    return _move(view, heir)


def _asked_to_move(view: PrimaryView) -> PrimaryStep | None:
    if view.move_to and view.move_to != node_of(view.incarnation):
        to = _heir(view, view.move_to)
        return None if to is None else _move(view, to)
    if view.unfit or node_of(view.incarnation) in view.leaving:
        heir = _heir(view)
        return None if heir is None else _move(view, heir)
    return None


def _level_follower(view: PrimaryView) -> PrimaryStep | None:
    """A follower that has all that is committed joins; its earlier incarnations go with that."""
    record = _reign(view).record
    for report in view.followers:
        node = node_of(report.incarnation)
        if (
            node in record.replicas
            and node not in view.leaving
            and report.incarnation not in record.in_sync
            and _is_level(view, report)
        ):
            others = tuple(one for one in record.in_sync if node_of(one) != node)
            changed = replace(record, in_sync=(*others, report.incarnation))
            return AddInSync(report.incarnation, changed)
    return None


def _silent_follower(view: PrimaryView) -> PrimaryStep | None:
    """Of several that are silent, the one that is dead goes first; then the one that is silent
    longest. So who may answer again soon stays, if only one can be spared."""
    record = _reign(view).record
    spared: list[tuple[bool, float, str]] = []
    for incarnation in record.in_sync:
        rest = nodes_of(tuple(one for one in record.in_sync if one != incarnation))
        if _is_silent(view, incarnation) and len(rest) >= record.min_in_sync:
            alive = view.cluster.node(incarnation) is not None
            spared.append((alive, _last_acked_at(view, incarnation), incarnation))
    if not spared:
        return None
    incarnation = min(spared)[2]
    rest = tuple(one for one in record.in_sync if one != incarnation)
    return RemoveInSync(incarnation, replace(record, in_sync=rest))


def _last_acked_at(view: PrimaryView, incarnation: str) -> float:
    """When it last got further; 0 without a connection."""
    found = (one.acked_at for one in view.followers if one.incarnation == incarnation)
    return next(found, 0.0)


def _leaver(view: PrimaryView) -> PrimaryStep | None:
    record = _reign(view).record
    for node in record.replicas:
        rest = tuple(one for one in record.in_sync if node_of(one) != node)
        enough = rest == record.in_sync or len(nodes_of(rest)) >= record.min_in_sync
        if node in view.leaving and node != node_of(view.incarnation) and enough:
            replicas = tuple(one for one in record.replicas if one != node)
            changed = replace(record, replicas=replicas, in_sync=rest)
            if node in view.parting:
                # Otherwise it would be taken in again at once: it still runs, and follows.
                changed = replace(changed, replicas_wanted=len(replicas))
            return RemoveReplica(node, changed)
    return None


def _new_replica(view: PrimaryView) -> PrimaryStep | None:
    record = _reign(view).record
    if len(record.replicas) >= record.replicas_wanted:
        return None
    for report in view.followers:
        node = node_of(report.incarnation)
        if node not in record.replicas and node not in view.leaving:
            return AddReplica(node, replace(record, replicas=(*record.replicas, node)))
    return None


_PRIMARY_RULES: tuple[Callable[[PrimaryView], PrimaryStep | None], ...] = (
    _fenced,
    _untrusted_record,
    _etcd_away,
    _outcome_unknown,
    _own_log_failed,
    _asked_to_move,
    # Before others are left out: who joins may make room for it.
    _level_follower,
    _silent_follower,
    _leaver,
    _new_replica,
)


def _reign(view: PrimaryView) -> SeenRecord:
    assert view.cluster.record is not None, "a rule above answers without a record"
    return view.cluster.record


def _is_level(view: PrimaryView, report: FollowerReport) -> bool:
    """It has all that is committed, and whatever comes is sent to it. While nothing of this reign
    is committed, that says nothing about earlier reigns. So it must have acknowledged a position of
    this one: then it has everything before it."""
    acked, committed = report.acked, view.committed
    return (
        report.level
        and acked.written >= max(committed.written, 1)
        and acked.synced >= max(committed.synced, 1)
    )


def _is_silent(view: PrimaryView, incarnation: str) -> bool:
    """A turn waits for it, and it got no further for too long."""
    if view.waiting_since is None or incarnation == view.incarnation:
        return False
    since = view.waiting_since
    for report in view.followers:
        if report.incarnation == incarnation:
            behind = (
                report.acked.written < view.end.written or report.acked.synced < view.end.synced
            )
            if not behind:
                return False
            since = max(since, report.acked_at)
    return view.now - since >= view.rules.follower_timeout_seconds


def _heir(view: PrimaryView, wanted: str = "") -> str | None:
    """The follower that should be primary next: in sync, alive, level, and the furthest. It has
    acknowledged something on this connection, so its copy is whole."""
    record = _reign(view).record
    able = [
        report
        for report in view.followers
        if report.incarnation in record.in_sync
        and _is_level(view, report)
        and (node := view.cluster.node(report.incarnation)) is not None
        and (node.node == wanted if wanted else not node.unfit and node.node not in view.leaving)
    ]
    return max(able, key=lambda report: report.acked).incarnation if able else None


def _move(view: PrimaryView, to: str) -> MovePrimary:
    record = _reign(view).record
    return MovePrimary(to, replace(record, epoch=record.epoch + 1, primary=to))


def _blocked(view: PrimaryView) -> str:
    """What keeps writes from being committed, or a change from being made."""
    record = _reign(view).record
    nodes = len(nodes_of(waits_for(_reign(view), None)))
    if nodes < record.min_in_sync:
        return f"{nodes} of {record.min_in_sync} nodes are in sync: nothing is committed."
    silent = [one for one in record.in_sync if _is_silent(view, one)]
    if silent:
        return (
            f"{', '.join(silent)} does not acknowledge, and can't be left out: at least "
            f"{record.min_in_sync} nodes must stay in sync."
        )
    if view.move_to and view.move_to != node_of(view.incarnation):
        return f"Node {view.move_to} is not in sync, alive and level: the primary can't move there."
    return ""
