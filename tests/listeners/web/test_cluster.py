"""The card of this node: what it is, how it is, and what only admins see."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from fanlog.cluster.records import ClusterKeys
from fanlog.config import Config, ListenerOptions
from fanlog.config_web import WebOptions
from fanlog.errors import InvalidArgumentError, UnavailableError
from fanlog.identity import Role
from fanlog.release import VERSION
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until
from tests.listeners.web.conftest import Serving
from tests.listeners.web.guarded import guarded
from tests.servers import free_port


async def test_the_node_describes_itself(serving: Serving, tmp_path: Path) -> None:
    config = Config(listener=ListenerOptions(port=0))
    async with serving(config, path=tmp_path) as site:
        native = site.broker.listen()
        await site.broker.create_topic("a")
        async with site.http.get("/v1/cluster") as answer:
            found = await answer.json()
        (node,) = found["nodes"]
        assert (node["role"], node["state"], node["version"]) == ("single", "ok", VERSION)
        assert (node["topics"], node["epoch"], node["durable"]) == (1, 1, True)
        assert node["folder"] == str(tmp_path)
        assert node["cores"] > 0
        assert node["memory_bytes"] > 0
        assert 0 < node["disk_free_bytes"] <= node["disk_total_bytes"]
        ports = {one["name"]: (one["host"], one["port"], one["tls"]) for one in node["listeners"]}
        assert ports["web"] == ("127.0.0.1", site.listener.port, False)
        assert ports["native"] == ("127.0.0.1", native.port, False)
        assert found["edges"] == []


async def test_a_broker_in_memory_has_no_disk(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/cluster") as answer:
        (node,) = (await answer.json())["nodes"]
        assert (node["durable"], node["folder"], node["disk_total_bytes"]) == (False, "", 0)


async def test_the_folder_is_for_admins_and_strangers_get_nothing() -> None:
    async with guarded() as site:
        observer = site.key("watch", Role.OBSERVER)
        status, found = await site.ask("GET", "/v1/cluster", key=observer)
        assert status == 200
        assert found["nodes"][0]["folder"] == ""
        nobody = site.key("nobody", subscribe=("a",))
        assert (await site.ask("GET", "/v1/cluster", key=nobody))[0] == 403
        assert (await site.ask("GET", "/v1/cluster"))[0] == 401


async def test_a_broker_of_its_own_has_nothing_to_move(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.get("/v1/cluster") as answer:
            assert (await answer.json())["cluster"] is None
        async with site.http.post("/v1/cluster/move", json={"node": "b"}) as answer:
            assert answer.status == 400
            assert "not a node of a cluster" in await answer.text()


async def test_only_admins_move_the_primary() -> None:
    async with guarded() as site:
        observer = site.key("watch", Role.OBSERVER)
        asked = await site.ask("POST", "/v1/cluster/move", body={"node": "b"}, key=observer)
        assert asked[0] == 403


async def test_the_primary_knows_how_far_its_followers_are_and_hands_over(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        async with await cluster.connect(first) as client:
            await client.create_topic("t", durability="fsync")
            await client.publish("t", b"x")
        role = cluster.nodes[first].primary
        assert role is not None
        port = role.node.core.cluster
        assert port is not None
        await until(lambda: all(not one.behind_positions for one in port.status().nodes))
        status = port.status()
        assert (status.node, status.role, status.primary) == (first, "primary", first)
        assert status.position == status.synced == status.committed > 0
        assert (status.in_sync, status.problems, status.reigns) == (3, [], 1)
        assert [one.level for one in status.nodes if one.node != first] == [True, True]
        snapshot = await role.node.core.metrics.snapshot()
        assert snapshot.cluster is not None
        assert snapshot.cluster.epoch == status.epoch

        to = next(node for node in "abc" if node != first)
        preview = await port.move(to, dry_run=True)
        assert (preview.possible, preview.level, preview.asked) == (True, True, False)
        refused = await port.move(first, dry_run=True)
        assert (refused.possible, refused.reason) == (False, f"{first} is the primary already.")
        with pytest.raises(UnavailableError, match="already"):
            await port.move(first, dry_run=False)
        with pytest.raises(InvalidArgumentError, match="has no node 'x'"):
            await port.move("x", dry_run=True)
        assert cluster.primary() == first

        assert (await port.move(to, dry_run=False)).asked
        await until(lambda: cluster.primary() == to)
        await until(lambda: cluster.etcd.get(f"{ClusterKeys('test').prefix}requests/move") is None)
        await until(lambda: cluster.nodes[first].status().role == "follower")
        assert cluster.nodes[first].status().epoch > status.epoch


class NodesWithWeb(ThreeNodes):
    """Their web listeners are open, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, front=True)
        self.web = {node: free_port() for node in "abc"}

    def config(self, node: str) -> Config:
        return replace(super().config(node), web=WebOptions(port=self.web[node]))

    async def ask(self, http: aiohttp.ClientSession, node: str) -> Any:
        """What a node says of the cluster; nothing if it does not answer."""
        try:
            async with http.get(f"http://127.0.0.1:{self.web[node]}/v1/cluster") as answer:
                return (await answer.json())["cluster"]
        except (aiohttp.ClientError, KeyError):
            return None


async def test_a_follower_says_what_it_is_and_takes_a_switch_over(tmp_path: Path) -> None:
    cluster = NodesWithWeb(tmp_path)
    try:
        await cluster.start("a", "b", "c")
        primary = await cluster.whole()
        node = next(one for one in "abc" if one != primary)
        async with aiohttp.ClientSession() as http, asyncio.timeout(PATIENCE_SECONDS):
            while (found := await cluster.ask(http, node)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert (found["node"], found["role"], found["primary"]) == (node, "follower", primary)
            url = f"http://127.0.0.1:{cluster.web[node]}/v1/cluster/move"
            async with http.post(url, json={"node": node}) as answer:
                assert (answer.status, (await answer.json())["asked"]) == (200, True)
            await until(lambda: cluster.primary() == node)
    finally:
        for one in list(cluster.nodes.values()):
            await one.stop(hand_over=False)
