"""The reign that an operator begins, when no node may begin one by itself: all of the in-sync set
are gone, or etcd was restored. It is above all that any live node has seen, so that all trust it.

Law: it never replaces a promotion that would lose nothing."""

from __future__ import annotations

from msgspec.structs import replace

from fanlog.cluster.records import ShardRecord
from fanlog.cluster.snapshot import ClusterSnapshot
from fanlog.errors import InvalidArgumentError, UnavailableError


def forced_reign(cluster: ClusterSnapshot, node: str, *, accept_loss: bool) -> ShardRecord:
    """The record in which `node` is the primary. Raises FanlogError if it should not be, or if the
    operator has not accepted what may be lost."""
    assert cluster.record is not None
    record = cluster.record.record
    chosen = next((one for one in cluster.nodes if one.node == node), None)
    if chosen is None:
        raise UnavailableError(f"{node} is not alive: start it first.")
    newest = max(record.epoch, *(one.epoch for one in cluster.nodes))
    able = [one for one in record.in_sync if cluster.node(one) is not None]
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
        epoch=newest + 1,
        primary=chosen.incarnation,
        in_sync=(chosen.incarnation,),
        replicas=tuple(dict.fromkeys((*record.replicas, node))),
        forced_epoch=newest + 1,
    )


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
