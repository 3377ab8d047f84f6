"""Nodes that form a cluster, replicate, and take over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from fanlog.cluster.records import ClusterKeys, node_of
from fanlog.cluster.requests import request_key
from fanlog.errors import UnavailableError
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until


def logs(folder: Path) -> dict[str, bytes]:
    """The segments of a data folder."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("topics/*/*/*.log")):
        key = str(path.parent.relative_to(folder))
        found[key] = found.get(key, b"") + path.read_bytes().rstrip(b"\0")
    return found


async def test_three_nodes_form_a_cluster_and_keep_the_same_bytes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        primary = await cluster.whole()
        async with await cluster.connect(primary) as client:
            await client.create_topic("t", durability="os", partitions=2)
            await client.create_topic("f", durability="fsync")
            for i in range(30):
                await client.publish("t", str(i).encode(), key=str(i % 5))
                await client.publish("f", str(i).encode())
        for node in list(cluster.nodes):
            if node != primary:
                await cluster.stop(node)
        await cluster.stop(primary)
        assert logs(tmp_path / "a") == logs(tmp_path / "b") == logs(tmp_path / "c")
        assert len(logs(tmp_path / "a")) > 3


async def _read_all(cluster: ThreeNodes, node: str, topic: str, count: int) -> list[bytes]:
    async with await cluster.connect(node) as client:
        found: list[bytes] = []
        async for message in client.subscribe(topic, start="earliest"):
            found.append(bytes(message.value))
            if len(found) == count:
                break
        return found


async def test_a_killed_primary_is_replaced_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        async with await cluster.connect(first) as client:
            await client.create_topic("t", durability="os")
            for i in range(20):
                await client.publish("t", str(i).encode())
        epoch = cluster.record().epoch
        killed = cluster.nodes.pop(first)
        await killed.stop(hand_over=False)
        await until(cluster.primary)
        second = cluster.primary()
        assert second != first
        assert cluster.record().epoch > epoch
        assert await _read_all(cluster, second, "t", 20) == [str(i).encode() for i in range(20)]
        async with await cluster.connect(second) as client:
            await client.publish("t", b"20")
        await cluster.start(first)
        await until(lambda: len(cluster.record().in_sync) == 3)
        values = await _read_all(cluster, cluster.primary(), "t", 21)
        assert values == [str(i).encode() for i in range(21)]


async def test_an_operator_moves_the_primary(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        to = next(node for node in "abc" if node != first)
        key = request_key(ClusterKeys("test"), "move", to)
        cluster.etcd.put(key, to.encode())
        await until(lambda: cluster.primary() == to)
        await until(lambda: cluster.etcd.get(key) is None)
        await cluster.whole()
        assert node_of(cluster.record().primary) == to


async def test_a_congested_primary_goes_on_hearing_its_followers(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        node = cluster.nodes[await cluster.whole()]
        async with await cluster.connect(node.node_id) as client:
            await client.publish("t", b"1")
            assert node.primary is not None
            reign = node.primary.reign
            beat = reign.state.beat
            reign.holding = True
            # Each follower reports several times.
            await until(lambda: reign.state.beat > beat + 5)
            # The connection is not read from any more after this message.
            assert (await client.publish("t", b"2")).offset == 1
            await until(lambda: not reign.waits)
            reign.resume_commits()


async def test_with_too_few_nodes_nothing_is_stored_and_reading_goes_on(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        primary = await cluster.whole()
        async with await cluster.connect(primary) as client:
            await client.create_topic("t", durability="os")
            await client.publish("t", b"1")
            for node in "abc":
                if node != primary:
                    await cluster.stop(node)
            assert await _read_all(cluster, primary, "t", 1) == [b"1"]


async def test_clients_may_come_to_any_node_also_after_another_one_took_over(
    tmp_path: Path,
) -> None:
    async with three_nodes(tmp_path, front=True) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        for node in "abc":
            async with await cluster.connect(node) as client:
                await client.publish("t", node.encode())
        killed = cluster.nodes.pop(first)
        await killed.stop(hand_over=False)
        await cluster.start(first)
        await cluster.whole()
        for node in "abc":
            assert await _read_all(cluster, node, "t", 3) == [b"a", b"b", b"c"]


async def test_a_new_copy_has_the_rest_of_a_batch_whose_first_records_were_deleted(
    tmp_path: Path,
) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b")
        primary = await cluster.whole(2)
        async with await cluster.connect(primary) as client:
            await client.create_topic("t", durability="fsync")
            await client.publish_many("t", [b"%d" % number for number in range(10)])
            await client.delete_records("t", {0: 4})
        # The next primary reads the records from its files.
        await cluster.stop(primary)
        await cluster.start("c")
        await until(lambda: "c" in {node_of(one) for one in cluster.record().in_sync})
        await until(cluster.primary)
        await cluster.nodes[cluster.primary()].move("c", dry_run=False)
        await until(lambda: cluster.primary() == "c")
        async with (
            await cluster.connect("c") as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            values = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(6)]
        assert values == ["4", "5", "6", "7", "8", "9"]


async def test_a_request_that_an_old_primary_refuses_is_asked_again_at_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes(tmp_path, front=True) as cluster:
        await cluster.start(*"abc")
        primary = await cluster.whole()
        async with await cluster.connect(primary) as client:
            await client.create_topic("t", durability="fsync")
            role = cluster.nodes[primary].primary
            assert role is not None
            noticed = role.reign.on_change
            # The node does not close its connections yet.
            monkeypatch.setattr(role.reign, "on_change", lambda: None)
            role.reign.end(UnavailableError("Another node is the primary now."))

            async def publish(tx: fanlog.Transaction) -> None:
                await tx.publish("t", b"once")

            asked = asyncio.create_task(client.run_transaction(publish, id="one"))
            await until(lambda: client.state == "reconnecting")
            noticed()
            assert (await asyncio.wait_for(asked, PATIENCE_SECONDS)).id == "one"
        await until(cluster.primary)
        assert await _read_all(cluster, cluster.primary(), "t", 1) == [b"once"]
