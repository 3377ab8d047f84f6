"""Which followers a primary waits for, and up to which position the stream is committed.

Law: the set that it waits for contains etcd's in-sync set, whatever becomes of a swap that is under
way. So a follower that joins is waited for from before its swap, and one that leaves until after.
"""

from __future__ import annotations

from collections.abc import Mapping

from fanlog.cluster.records import SeenRecord, nodes_of
from fanlog.cluster.views import AckedPositions, PendingChange


def waits_for(seen: SeenRecord, pending: PendingChange | None) -> frozenset[str]:
    """The incarnations without which nothing is committed. `seen` is the newest record of this
    reign. Set `pending` before the swap is sent."""
    needed = frozenset(seen.record.in_sync)
    if pending is not None and pending.is_open(seen):
        needed |= frozenset(pending.record.in_sync)
    return needed


def committed(
    acks: Mapping[str, AckedPositions], needed: frozenset[str], min_in_sync: int
) -> AckedPositions:
    """How far all of them are. Nothing is committed while they are fewer than `min_in_sync`
    nodes. The result may be lower than before, when a follower joins: what is committed stays
    committed."""
    if len(nodes_of(needed)) < min_in_sync:
        return AckedPositions()
    reached = [acks.get(incarnation, AckedPositions()) for incarnation in needed]
    return AckedPositions(min(one.written for one in reached), min(one.synced for one in reached))
