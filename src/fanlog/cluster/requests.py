"""What operators ask a cluster for: keys in etcd that the primary reads, carries out and removes.

| key                                   | meaning                                             |
| ------------------------------------- | --------------------------------------------------- |
| `/fanlog/<name>/requests/move`        | the node that shall be the primary                  |
| `/fanlog/<name>/requests/drain/<id>`  | the node shall be neither primary nor in sync       |
| `/fanlog/<name>/requests/leave/<id>`  | the node shall not be a replica any more            |
| `/fanlog/<name>/requests/join/<id>`   | for the audit log: the node may be a replica again   |

A value is the node's id, a space, and the operator as `user@host`. The operator is missing if the
audit log has the request already: of a request over HTTP, and of a drain, which stays.
"""

from __future__ import annotations

from typing import NamedTuple

from fanlog.cluster.coordination import Listing, Stored
from fanlog.cluster.records import ClusterKeys, ShardRecord, node_of, nodes_of


class OperatorRequest(NamedTuple):
    """`what` is `move`, `drain`, `leave` or `join`. `by` is empty if it needs no audit record."""

    what: str
    node: str
    stored: Stored
    by: str = ""

    def is_done(self, record: ShardRecord) -> bool:
        """Whether nothing is left to do. A drain stays until an operator takes it back."""
        if self.what == "move":
            return node_of(record.primary) == self.node
        if self.what == "leave":
            return self.node not in record.replicas and self.node not in nodes_of(record.in_sync)
        return self.what == "join"


def request_key(keys: ClusterKeys, what: str, node: str) -> str:
    """Where a request is."""
    return f"{keys.prefix}requests/{what}" + ("" if what == "move" else f"/{node}")


def request_value(node: str, by: str = "") -> bytes:
    """What is there. `by` has no spaces."""
    return f"{node} {by}".strip().encode()


def requests_in(listing: Listing, keys: ClusterKeys) -> tuple[OperatorRequest, ...]:
    """The requests in a listing of all keys of a cluster."""
    begin = f"{keys.prefix}requests/"
    found: list[OperatorRequest] = []
    for stored in listing.stored:
        if stored.key.startswith(begin):
            what = stored.key.removeprefix(begin).partition("/")[0]
            if what in ("move", "drain", "leave", "join"):
                node, _, by = stored.value.decode("utf-8", "replace").partition(" ")
                found.append(OperatorRequest(what, node, stored, by))
    return tuple(found)
