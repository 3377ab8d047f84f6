"""A cluster as people look at it: what etcd says, and how far the followers are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fanlog.cluster.records import NodeRecord, ShardRecord, node_of, nodes_of
from fanlog.cluster.requests import OperatorRequest
from fanlog.cluster.snapshot import ClusterSnapshot
from fanlog.errors import InvalidArgumentError
from fanlog.format.cluster_view import ClusterMember, ClusterStatus, MovePreview

if TYPE_CHECKING:
    from fanlog.cluster.reign import Reign


def describe_cluster(
    name: str, cluster: ClusterSnapshot, requests: Collection[OperatorRequest]
) -> ClusterStatus:
    """What etcd says."""
    if cluster.record is None:
        return ClusterStatus(
            cluster=name,
            epoch=0,
            primary="",
            min_in_sync=0,
            replicas_wanted=0,
            nodes=[],
            problems=["etcd has no record of this cluster."],
        )
    record = cluster.record.record
    in_sync = nodes_of(record.in_sync)
    names = sorted({*record.replicas, *in_sync, *(one.node for one in cluster.nodes)})
    asked = {request.node: request.what for request in requests}
    moves = [request.node for request in requests if request.what == "move"]
    alive = {one.node: one for one in cluster.nodes}
    return ClusterStatus(
        cluster=name,
        epoch=record.epoch,
        primary=node_of(record.primary),
        min_in_sync=record.min_in_sync,
        replicas_wanted=record.replicas_wanted,
        nodes=[_member(node, record, alive.get(node), asked.get(node, "")) for node in names],
        problems=list(_problems(cluster, record)),
        moving_to=moves[0] if moves else "",
    )


def _member(name: str, record: ShardRecord, alive: NodeRecord | None, asked: str) -> ClusterMember:
    in_sync = name in nodes_of(record.in_sync)
    if node_of(record.primary) == name:
        role = "primary"
    elif in_sync:
        role = "in sync"
    else:
        role = "replica" if name in record.replicas else "spare"
    remarks = [f"{asked} asked for"] if asked else []
    if alive is None:
        return ClusterMember(
            node=name, role=role, alive=False, in_sync=in_sync, remark="; ".join(remarks)
        )
    remarks += [one for one in (alive.problem, alive.unfit) if one]
    if in_sync and alive.incarnation not in record.in_sync:
        remarks.append("runs as a new incarnation; it is catching up")
    return ClusterMember(
        node=name,
        role=role,
        alive=True,
        in_sync=in_sync,
        incarnation=alive.incarnation,
        address=alive.address,
        web=alive.web,
        zone=alive.zone,
        release=alive.release,
        remark="; ".join(remarks),
    )


def _problems(cluster: ClusterSnapshot, record: ShardRecord) -> Iterator[str]:
    if cluster.node(record.primary) is None:
        able = [one for one in record.in_sync if cluster.node(one) is not None]
        if able:
            yield f"The primary {record.primary} is missing. {able[0]} may take over."
        else:
            yield (
                "No node that may become the primary is alive. Start "
                f"{', '.join(sorted(nodes_of(record.in_sync)))} again. If they are lost for good: "
                "fanlog cluster promote NODE --accept-loss"
            )
    count = len(nodes_of(record.in_sync))
    if count < record.min_in_sync:
        yield (
            f"{count} of {record.min_in_sync} nodes are in sync: nothing is stored until more are."
        )


def with_progress(status: ClusterStatus, reign: Reign) -> ClusterStatus:
    """With what only the primary knows."""
    reports = {report.incarnation: report for report in reign.reports()}
    behind = reign.behind_bytes()
    newest = reign.end_position.written

    def far(member: ClusterMember) -> ClusterMember:
        report = reports.get(member.incarnation)
        if report is None:
            return member
        return replace(
            member,
            level=report.level,
            behind_positions=newest - report.acked.synced if report.level else 0,
            behind_bytes=behind.get(member.incarnation, 0),
        )

    return replace(
        status,
        nodes=[far(member) for member in status.nodes],
        position=newest,
        committed=reign.committed.written,
        synced=reign.committed.synced,
        uncommitted_bytes=reign.core.stream.pending_bytes,
    )


def preview_move(status: ClusterStatus, node: str) -> MovePreview:
    """What a switch-over to a node means. Raises InvalidArgumentError if there is no such node."""
    chosen = next((one for one in status.nodes if one.node == node), None)
    if chosen is None:
        known = ", ".join(one.node for one in status.nodes)
        raise InvalidArgumentError(
            f"The cluster {status.cluster} has no node {node!r}: it has {known}."
        )
    reason = ""
    if status.primary == node:
        reason = f"{node} is the primary already."
    elif not chosen.alive:
        reason = f"{node} is not alive: start it first."
    elif not chosen.in_sync:
        reason = f"{node} is not in sync: wait until it has caught up."
    elif status.role == "primary" and not chosen.level:
        reason = f"{node} is not connected to the primary, or not level yet."
    elif not status.etcd_reachable:
        reason = "etcd can't be reached: nobody can take over."
    return MovePreview(
        node=node,
        primary=status.primary,
        possible=not reason,
        reason=reason,
        level=chosen.level,
        behind_positions=chosen.behind_positions,
        behind_bytes=chosen.behind_bytes,
    )
