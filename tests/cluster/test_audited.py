"""What operators ask of a cluster through etcd is in the audit log of the primary, once."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fanlog.cli.cluster import _operator
from fanlog.cluster.forced_reign import forced_reign
from fanlog.cluster.records import ClusterKeys, encode, node_of
from fanlog.cluster.requests import request_key, request_value
from fanlog.cluster.snapshot import cluster_of
from fanlog.errors import FanlogError
from fanlog.security.audit import AUDIT_TOPIC, decode_record
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until

KEYS = ClusterKeys("test")
ANN = "ann@desk"


def test_the_operator_is_the_user_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(rf"{re.escape(getpass.getuser())}@\S+", _operator())

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert _operator().startswith("operator@")


async def audited(cluster: ThreeNodes, last: str) -> list[tuple[str, str, str]]:
    """Who did what to which node, up to a given action."""
    found: list[tuple[str, str, str]] = []
    async with (
        await cluster.connect(cluster.primary()) as client,
        client.subscribe(AUDIT_TOPIC, start="earliest") as reader,
    ):
        while not found or found[-1][1] != last:
            one = decode_record((await reader.next(PATIENCE_SECONDS)).value)
            if one.action.startswith("cluster."):
                found.append((one.user, one.action, one.name))
    return found


def ask(cluster: ThreeNodes, what: str, node: str, by: str = ANN) -> str:
    key = request_key(KEYS, what, node)
    cluster.etcd.put(key, request_value(node, by))
    return key


async def test_requests_are_noted_once_by_the_primary_that_carries_them_out(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        second, third = (node for node in "abc" if node != first)
        # Over HTTP it would have its record already.
        key = ask(cluster, "move", second, by="")
        await until(lambda: cluster.primary() == second and cluster.etcd.get(key) is None)
        await cluster.whole()
        drain = ask(cluster, "drain", third)
        await until(lambda: third not in cluster.record().replicas)
        await until(lambda: (stored := cluster.etcd.get(drain)) and stored.value == third.encode())
        key = ask(cluster, "move", first)
        await until(lambda: cluster.primary() == first and cluster.etcd.get(key) is None)
        assert cluster.etcd.get(drain) is not None, "a drain stays"
        cluster.etcd.remove(drain)
        key = ask(cluster, "join", third)
        await until(lambda: cluster.etcd.get(key) is None)
        assert await audited(cluster, "cluster.join") == [
            (ANN, "cluster.drain", third),
            (ANN, "cluster.move", first),
            (ANN, "cluster.join", third),
        ]


async def test_a_promotion_with_loss_is_in_the_audit_log_that_all_nodes_have(
    tmp_path: Path,
) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        last = next(node for node in "abc" if node != first)
        others = [node for node in "abc" if node != last]
        for node in others:
            await cluster.nodes.pop(node).stop(hand_over=False)
        seen = cluster.seen()
        # As if the last one had been left out before.
        rest = tuple(one for one in seen.record.in_sync if node_of(one) != last)
        outside = replace(seen.record, in_sync=rest, primary=rest[0], epoch=seen.record.epoch + 1)
        key = KEYS.shard()
        cluster.etcd.swap(key, cluster.etcd.get(key), encode(outside))

        def forced() -> bool:
            found = cluster_of(cluster.etcd.list(KEYS.prefix), KEYS)
            try:
                chosen = forced_reign(found, last, accept_loss=True, by=ANN)
            except FanlogError:
                # The others are alive until their leases end.
                return False
            cluster.etcd.swap(key, cluster.etcd.get(key), encode(chosen))
            return True

        await until(forced)
        await cluster.start(*others)
        assert await cluster.whole() == last
        key = ask(cluster, "move", first)
        await until(lambda: cluster.primary() == first and cluster.etcd.get(key) is None)
        assert await audited(cluster, "cluster.move") == [
            (ANN, "cluster.promote", last),
            (ANN, "cluster.move", first),
        ]
        assert (cluster.record().forced_by, cluster.record().forced_node) == ("", "")
