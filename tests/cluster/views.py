"""Views for tests of decisions, with as little said as matters."""

from __future__ import annotations

from typing import Any

from fanlog.cluster.records import NodeRecord, SeenRecord, ShardRecord, node_of
from fanlog.cluster.snapshot import ClusterSnapshot
from fanlog.cluster.views import (
    AckedPositions,
    Folder,
    FollowerReport,
    FollowerView,
    KnownCluster,
    PrimaryView,
)

ETCD = "e1"
CLUSTER = "c0ffee"


def record(**fields: Any) -> ShardRecord:
    whole: dict[str, Any] = {
        "epoch": 5,
        "primary": "a.1",
        "in_sync": ("a.1", "b.1", "c.1"),
        "replicas": ("a", "b", "c"),
        "min_in_sync": 2,
        "replicas_wanted": 3,
    }
    return ShardRecord(**{**whole, **fields})


def node(incarnation: str, **fields: Any) -> NodeRecord:
    name = node_of(incarnation)
    return NodeRecord(node=name, incarnation=incarnation, address=f"{name}:7420", **fields)


def snapshot(
    now: ShardRecord | None, *alive: str | NodeRecord, revision: int = 10, etcd: str = ETCD
) -> ClusterSnapshot:
    nodes = tuple(one if isinstance(one, NodeRecord) else node(one) for one in alive)
    seen = None if now is None else SeenRecord(now, revision)
    return ClusterSnapshot(etcd=etcd, id=CLUSTER, record=seen, nodes=nodes)


def follower(cluster: ClusterSnapshot, me: str = "b.1", **fields: Any) -> FollowerView:
    """A follower that has seen the record of the snapshot already."""
    whole: dict[str, Any] = {
        "node": node_of(me),
        "incarnation": me,
        "folder": Folder.WHOLE,
        "known": known(seen=cluster.record, node=node_of(me)),
        "cluster": cluster,
        "now": 100.0,
    }
    return FollowerView(**{**whole, **fields})


def known(**fields: Any) -> KnownCluster:
    return KnownCluster(**{"cluster": CLUSTER, "node": "b", "etcd": ETCD, **fields})


def primary(cluster: ClusterSnapshot, **fields: Any) -> PrimaryView:
    whole: dict[str, Any] = {
        "incarnation": "a.1",
        "epoch": 5,
        "etcd": ETCD,
        "base": cluster.record,
        "cluster": cluster,
        "now": 100.0,
        "followers": (level("b.1"), level("c.1")),
        "end": AckedPositions(7, 7),
        "committed": AckedPositions(7, 7),
    }
    return PrimaryView(**{**whole, **fields})


def level(incarnation: str, **fields: Any) -> FollowerReport:
    whole: dict[str, Any] = {"level": True, "acked": AckedPositions(7, 7), "acked_at": 99.9}
    return FollowerReport(incarnation=incarnation, **{**whole, **fields})
