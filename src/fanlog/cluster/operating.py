"""What the commands of an operator do to a cluster. All of it goes through etcd, so that it works
while no node serves anybody.

Law: a request is left for the primary, which carries it out. Only two changes of the record are
made here: more replicas are wanted, and a reign in which something may be lost. Each compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from fanlog.cluster.coordination import Coordination, Listing, Lost, Stored, SwapOutcome, Swapped
from fanlog.cluster.forced_reign import forced_reign, is_restored
from fanlog.cluster.records import ClusterKeys, NodeRecord, ShardRecord, encode, node_of, nodes_of
from fanlog.cluster.requests import OperatorRequest, request_key, request_value, requests_in
from fanlog.cluster.snapshot import ClusterSnapshot, cluster_of
from fanlog.cluster.trust import OPERATOR
from fanlog.errors import FanlogError, InvalidArgumentError, UnavailableError

_PATIENCE_SECONDS = 30.0


class FoundCluster(NamedTuple):
    """A cluster as etcd had it when the command began."""

    name: str
    keys: ClusterKeys
    etcd: Coordination
    listing: Listing
    cluster: ClusterSnapshot
    record: ShardRecord
    stored: Stored
    requests: tuple[OperatorRequest, ...]

    def member(self, node: str) -> NodeRecord | None:
        return next((one for one in self.cluster.nodes if one.node == node), None)

    def check_known(self, node: str) -> None:
        known = {*self.record.replicas, *(one.node for one in self.cluster.nodes)}
        if node not in known:
            raise InvalidArgumentError(
                f"The cluster {self.name} has no node {node!r}: it has {', '.join(sorted(known))}."
            )


async def find_cluster(etcd: Coordination, name: str, url: str) -> FoundCluster:
    """`url` is etcd's, for the message of an error. Raises FanlogError."""
    keys = ClusterKeys(name)
    listing = await etcd.read_prefix(keys.prefix)
    found = cluster_of(listing, keys)
    stored = next((s for s in listing.stored if s.key == keys.shard()), None)
    if found.record is None or stored is None:
        raise InvalidArgumentError(
            f"etcd knows no cluster {name!r}. Start its first node: fanlog serve --cluster {name} "
            f"--etcd {url} --node-id a"
        )
    requests = requests_in(listing, keys)
    return FoundCluster(name, keys, etcd, listing, found, found.record.record, stored, requests)


# The commands. Each returns what is so now.


async def ask_to_move(found: FoundCluster, node: str, by: str) -> str:
    """`node` shall be the primary; `by` is the operator, as user@host."""
    found.check_known(node)
    if node_of(found.record.primary) == node:
        return f"{node} is the primary already."
    alive = found.member(node)
    if alive is None or alive.incarnation not in found.record.in_sync:
        raise UnavailableError(
            f"{node} can't become the primary: it is not alive and in sync. See fanlog cluster "
            "status."
        )
    await _ask(found, "move", node, by)
    return await _wait_for(
        found, lambda record: node_of(record.primary) == node, f"{node} is the primary."
    )


async def ask_to_leave(found: FoundCluster, what: str, node: str, by: str) -> str:
    """`what` is "drain" or "leave"."""
    found.check_known(node)
    others = nodes_of(found.record.in_sync) - {node}
    if len(others) < found.record.min_in_sync:
        raise UnavailableError(
            f"Without {node} only {len(others)} nodes are in sync, and the cluster needs "
            f"{found.record.min_in_sync} to store anything. Start another node first."
        )
    await _ask(found, what, node, by)
    return await _wait_for(
        found,
        lambda record: node not in record.replicas and node not in nodes_of(record.in_sync),
        f"{node} is out of service. Stop it when you like.",
    )


async def ask_to_join(found: FoundCluster, node: str, by: str) -> str:
    """A spare node shall be a replica, or one that was drained or has left."""
    found.check_known(node)
    if is_restored(found.cluster):
        # A change would give the old record a newer revision: it would look like the next one.
        raise UnavailableError(
            f"A node has seen a newer record than etcd has, or one of another etcd. {OPERATOR}"
        )
    for request in found.requests:
        if request.node == node and request.what != "move":
            await _take_back(found, request.stored)
    record = found.record
    if node not in record.replicas and len(record.replicas) >= record.replicas_wanted:
        wanted = replace(record, replicas_wanted=len(record.replicas) + 1)
        await _replace(found, wanted)
    await _ask(found, "join", node, by)
    return await _wait_for(
        found, lambda record: node in nodes_of(record.in_sync), f"{node} is in sync."
    )


async def begin_reign(found: FoundCluster, node: str, *, accept_loss: bool, by: str) -> str:
    """`node` shall be the primary, and may lack messages."""
    found.check_known(node)
    forced = forced_reign(found.cluster, node, accept_loss=accept_loss, by=by)
    await _replace(found, forced)
    return f"{node} begins the reign of epoch {forced.epoch}, with what it has."


# Changes of etcd


async def _ask(found: FoundCluster, what: str, node: str, by: str) -> None:
    """Leaves a request for the primary. A later one of the same kind replaces it."""
    key = request_key(found.keys, what, node)
    current = next((one for one in found.listing.stored if one.key == key), None)
    outcome = await found.etcd.swap(key, current, request_value(node, by))
    if not isinstance(outcome, Swapped):
        raise UnavailableError(
            "etcd did not take the request, or its answer was lost. Look at fanlog cluster status, "
            "and try again."
        )


async def _take_back(found: FoundCluster, stored: Stored) -> None:
    """Removes a request, which the primary may be about to note."""
    outcome = await found.etcd.delete(stored.key, stored)
    if isinstance(outcome, Lost) and outcome.current is not None:
        outcome = await found.etcd.delete(stored.key, outcome.current)
    if outcome != Lost(None):
        _check_swapped(outcome)


async def _replace(found: FoundCluster, record: ShardRecord) -> None:
    _check_swapped(await found.etcd.swap(found.keys.shard(), found.stored, encode(record)))


def _check_swapped(outcome: SwapOutcome) -> None:
    if not isinstance(outcome, Swapped):
        raise UnavailableError(
            "The cluster has changed meanwhile. Look at fanlog cluster status, and try again."
        )


async def _wait_for(found: FoundCluster, done: Callable[[ShardRecord], bool], said: str) -> str:
    """Waits until the record says so."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE_SECONDS
    while loop.time() < until:
        listing = await found.etcd.read_prefix(found.keys.prefix)
        now = cluster_of(listing, found.keys).record
        if now is not None and done(now.record):
            return said
        await asyncio.sleep(0.1)
    raise FanlogError(
        f"It was asked for, and is not done after {_PATIENCE_SECONDS:.0f} s: see fanlog cluster "
        "status. The request stays."
    )
