"""What decisions are made from: immutable views of etcd's records, the folder and the followers.

Law: a view is taken at one moment, and has everything that a decision needs. Times are those of
this node's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from fanlog.cluster.records import SeenRecord, ShardRecord
from fanlog.cluster.snapshot import ClusterSnapshot


class Folder(StrEnum):
    """What the data folder of a node is worth."""

    # No data and no mark: a new node, or a new disk.
    EMPTY = "empty"
    # Data without a mark: a single node's folder.
    UNMARKED = "unmarked"
    # A single node's folder that may have begun the cluster: etcd's record says whether it has.
    ADOPTING = "adopting"
    # Everything up to some point of the cluster's history, and nothing else.
    WHOLE = "whole"
    # Half copied, or the mark was damaged.
    COPYING = "copying"
    # It is about to lose what the primary does not have.
    CUTTING = "cutting"


class AckedPositions(NamedTuple):
    """Positions of a reign: up to them everything is written, and synced."""

    written: int = 0
    synced: int = 0


class ClusterRules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decisions depend on."""

    # For the first record only; later the record says.
    replicas: int = 3
    min_in_sync: int = 2
    # So long the primary's node record must be missing before a follower takes over. It comes on
    # top of the lease, and covers the moment between the end of a lease and the next one.
    grace_seconds: float = 1.0
    # So long a follower may hold up a write before it is left out.
    follower_timeout_seconds: float = 3.0


class KnownCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder's mark says about the cluster."""

    cluster: str = ""
    node: str = ""
    etcd: str = ""
    seen: SeenRecord | None = None
    last_reign: int = 0


class FollowerView(msgspec.Struct, frozen=True, kw_only=True):
    """The moment of a node that is not primary."""

    node: str
    incarnation: str
    folder: Folder
    known: KnownCluster
    cluster: ClusterSnapshot
    now: float
    rules: ClusterRules = ClusterRules()
    # Incarnations that are not alive, and since when (`Absences`).
    missing_since: Mapping[str, float] = {}
    # The highest epoch in the folder's logs.
    folder_epoch: int = 0
    # The highest epoch that anybody has named.
    epoch_heard: int = 0
    # An operator made this single node's folder the first of a cluster.
    adopt: bool = False
    # Why this node should not be primary: it drains, or its disk is full. Empty: it may.
    unfit: str = ""


class FollowerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A connected follower, as its primary sees it. `level`: everything before this was sent to it,
    and each turn is. `acked` is what it has acknowledged on this connection. It acknowledges
    nothing before its mark says that its copy is whole. `acked_at` is when it last got further."""

    incarnation: str
    level: bool = False
    acked: AckedPositions = AckedPositions()
    acked_at: float = 0.0


class PendingChange(msgspec.Struct, frozen=True):
    """A compare-and-swap that was sent, or is about to be. It is settled when the record has
    another revision than it expects: it can't succeed any more. One that was `NotSent` may be
    forgotten only if it was the first time: a repeated one may still arrive."""

    revision: int
    record: ShardRecord

    def is_open(self, seen: SeenRecord) -> bool:
        return seen.revision == self.revision


class PrimaryView(msgspec.Struct, frozen=True, kw_only=True):
    """The moment of a primary. `base` is the newest record of its own reign that it knows."""

    incarnation: str
    epoch: int
    etcd: str
    base: SeenRecord
    cluster: ClusterSnapshot
    now: float
    rules: ClusterRules = ClusterRules()
    # The last listing or watch of etcd succeeded. While it is away nothing new is begun.
    reachable: bool = True
    followers: tuple[FollowerReport, ...] = ()
    pending: PendingChange | None = None
    # The newest position of the stream, and the committed one.
    end: AckedPositions = AckedPositions()
    committed: AckedPositions = AckedPositions()
    # Since when the oldest turn that is not committed waits; None: nothing waits.
    waiting_since: float | None = None
    # The highest epoch that anybody has named.
    epoch_heard: int = 0
    # Why its own log takes no more writes; empty: it does.
    log_fault: str = ""
    # What operators asked for: a node that shall be primary, and nodes that shall leave.
    move_to: str = ""
    # They drain or leave; of these, those that leave the cluster.
    leaving: frozenset[str] = frozenset()
    parting: frozenset[str] = frozenset()
    # Why it should hand over: it drains, or its disk is full.
    unfit: str = ""
