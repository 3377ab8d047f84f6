"""What etcd says about the cluster, as one immutable value.

Law: a snapshot never goes back unless etcd has: answers that overtake each other are put in order
(`Newest`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from fanlog.cluster.coordination import Listing
from fanlog.cluster.records import ClusterKeys, NodeRecord, SeenRecord, ShardRecord, decode, node_of


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What etcd says about the cluster. `etcd` is etcd's own cluster id; `id` is empty, and
    `record` None, where there is none."""

    etcd: str
    id: str = ""
    record: SeenRecord | None = None
    nodes: tuple[NodeRecord, ...] = ()

    def node(self, incarnation: str) -> NodeRecord | None:
        """The record of a node that is alive, in this incarnation."""
        return next((node for node in self.nodes if node.incarnation == incarnation), None)

    def is_replaced(self, incarnation: str) -> bool:
        """Whether the node runs as a new incarnation: it never comes back as this one."""
        node = node_of(incarnation)
        return any(n.node == node and n.incarnation != incarnation for n in self.nodes)


def cluster_of(listing: Listing, keys: ClusterKeys, shard: int = 0) -> ClusterSnapshot:
    """The records in a listing of all keys of a cluster. Raises FormatError."""
    found = {stored.key: stored for stored in listing.stored}
    stored_id = found.get(keys.id)
    stored = found.get(keys.shard(shard))
    return ClusterSnapshot(
        etcd=listing.etcd,
        id=stored_id.value.decode("utf-8", "replace") if stored_id else "",
        record=SeenRecord(decode(stored.value, ShardRecord), stored.revision) if stored else None,
        nodes=tuple(
            decode(one.value, NodeRecord)
            for one in listing.stored
            if one.key.startswith(keys.nodes)
        ),
    )


class Newest:
    """Keeps the newest snapshot, though a listing may arrive after a swap that is newer."""

    def __init__(self) -> None:
        self._revision = 0
        self.snapshot: ClusterSnapshot | None = None

    def listed(self, listing: Listing, snapshot: ClusterSnapshot) -> bool:
        """Takes a listing and what is in it; False if it is older than what is known."""
        if listing.revision < self._revision and not listing.has_gone_back:
            return False
        self._revision = listing.revision
        self.snapshot = snapshot
        return True

    def swapped(self, record: ShardRecord, revision: int) -> None:
        """The shard's record was read, or swapped in, at this revision."""
        if self.snapshot is not None and revision > self._revision:
            self._revision = revision
            self.snapshot = replace(self.snapshot, record=SeenRecord(record, revision))


class Absences:
    """Remembers since when incarnations are missing, as far as this node has watched."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def observe(self, snapshot: ClusterSnapshot, now: float) -> Mapping[str, float]:
        """Takes a new snapshot; the incarnations of the record that are not alive. Time in which
        etcd did not answer does not count: call `forget` then."""
        record = snapshot.record.record if snapshot.record else None
        named = (record.primary, *record.in_sync) if record else ()
        alive = {node.incarnation for node in snapshot.nodes}
        self._since = {one: self._since.get(one, now) for one in named if one not in alive}
        return dict(self._since)

    def forget(self) -> None:
        """What was missing may have come back unseen: begin to count again."""
        self._since.clear()
