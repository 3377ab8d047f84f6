"""The reign that an operator begins, when no node may begin one by itself: all of the in-sync set
are gone, or etcd was restored. It is above all that any live node has seen, so that all trust it.

Law: it never replaces a promotion that would lose nothing."""

from __future__ import annotations

from msgspec.structs import replace

from fanlog.cluster.records import NodeRecord, ShardRecord
from fanlog.cluster.snapshot import ClusterSnapshot
from fanlog.errors import InvalidArgumentError, UnavailableError

# Nodes that are not alive may have seen a few more reigns. None of their epochs comes twice.
_STEP = 1000


def forced_reign(
    cluster: ClusterSnapshot, node: str, *, accept_loss: bool, by: str = ""
) -> ShardRecord:
    """The record in which `node` is the primary; `by` is the operator. Raises FanlogError if it
    should not be the primary, or if the operator has not accepted what may be lost."""
    assert cluster.record is not None
    record = cluster.record.record
    chosen = next((one for one in cluster.nodes if one.node == node), None)
    if chosen is None:
        raise UnavailableError(f"{node} is not alive: start it first.")
    if chosen.copying:
        raise UnavailableError(
            f"The copy of {node} is not whole: it has parts of some logs only. Choose a node whose "
            "copy is whole (fanlog cluster status), or restore a backup."
        )
    newest, epoch = _newest_seen(cluster, record), forced_epoch(cluster)
    able = [one for one in record.in_sync if _is_whole(cluster.node(one))]
    if is_restored(cluster):
        if not accept_loss:
            raise InvalidArgumentError(
                f"etcd was restored, or is another one: it has epoch {record.epoch}, and the nodes "
                f"have seen epoch {newest}. The node that was the primary last has everything. "
                "Repeat this with it and --accept-loss."
            )
    elif able:
        raise InvalidArgumentError(
            f"{', '.join(able)} is in sync and alive: nothing has to be lost. Use fanlog cluster "
            "move."
        )
    elif not accept_loss:
        raise InvalidArgumentError(
            f"{node} may lack messages that were acknowledged: {', '.join(record.in_sync)} had "
            f"all of them at the end of epoch {record.epoch}. Start one of those again if you "
            "can. If they are lost for good, repeat this with --accept-loss."
        )
    return replace(
        record,
        epoch=epoch,
        primary=chosen.incarnation,
        in_sync=(chosen.incarnation,),
        replicas=tuple(dict.fromkeys((*record.replicas, node))),
        forced_epoch=epoch,
        forced_node=node if by else "",
        forced_by=by,
    )


def forced_epoch(cluster: ClusterSnapshot) -> int:
    """The epoch of a reign that an operator begins: nobody has written in it, or ever will."""
    assert cluster.record is not None
    return _newest_seen(cluster, cluster.record.record) + _STEP


def _newest_seen(cluster: ClusterSnapshot, record: ShardRecord) -> int:
    return max(record.epoch, *(one.epoch for one in cluster.nodes))


def _is_whole(node: NodeRecord | None) -> bool:
    """Whether a node is alive, and has all that it should have. If all nodes of the in-sync set
    lack something, each waits for another one, and only an operator can end that."""
    return node is not None and not node.copying and not node.damaged


def is_restored(cluster: ClusterSnapshot) -> bool:
    """Whether a live node has seen a newer record than etcd has, or has seen another etcd."""
    seen = cluster.record
    assert seen is not None
    return any(
        one.epoch > seen.record.epoch
        or one.revision > seen.revision
        or (one.etcd and one.etcd != cluster.etcd)
        for one in cluster.nodes
    )
