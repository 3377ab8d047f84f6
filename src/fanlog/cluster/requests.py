"""What operators ask a cluster for: keys in etcd that the primary reads, carries out and removes.

| key                                   | meaning                                             |
| ------------------------------------- | --------------------------------------------------- |
| `/fanlog/<name>/requests/move`        | the node that shall be the primary                  |
| `/fanlog/<name>/requests/drain/<id>`  | the node shall be neither primary nor in sync       |
| `/fanlog/<name>/requests/leave/<id>`  | the node shall not be a replica any more            |
"""

from __future__ import annotations

from typing import NamedTuple

from fanlog.cluster.coordination import Listing, Stored
from fanlog.cluster.records import ClusterKeys, ShardRecord, node_of, nodes_of


class OperatorRequest(NamedTuple):
    """`what` is `move`, `drain` or `leave`."""

    what: str
    node: str
    stored: Stored

    def is_done(self, record: ShardRecord) -> bool:
        """Whether nothing is left to do. A drain stays until an operator takes it back."""
        if self.what == "move":
            return node_of(record.primary) == self.node
        if self.what == "leave":
            return self.node not in record.replicas and self.node not in nodes_of(record.in_sync)
        return False


def request_key(keys: ClusterKeys, what: str, node: str) -> str:
    """Where a request is."""
    return f"{keys.prefix}requests/{what}" + ("" if what == "move" else f"/{node}")


def requests_in(listing: Listing, keys: ClusterKeys) -> tuple[OperatorRequest, ...]:
    """The requests in a listing of all keys of a cluster."""
    begin = f"{keys.prefix}requests/"
    found: list[OperatorRequest] = []
    for stored in listing.stored:
        if stored.key.startswith(begin):
            what = stored.key.removeprefix(begin).partition("/")[0]
            if what in ("move", "drain", "leave"):
                found.append(OperatorRequest(what, stored.value.decode("utf-8", "replace"), stored))
    return tuple(found)
