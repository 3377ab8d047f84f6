"""What a node does when a step of its own fails: it keeps its data, lets others lead, and promises
no more than is on its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.cluster import follower_session
from fanlog.cluster import node as cluster_node
from fanlog.cluster.follower_link import FollowerLink
from fanlog.cluster.mark import FolderMark, load_mark, save_mark
from fanlog.cluster.node import ClusterNode
from fanlog.cluster.primary_role import PrimaryRole
from fanlog.cluster.records import ClusterKeys, SeenRecord, ShardRecord, encode, node_of
from fanlog.cluster.reign import Reign
from fanlog.cluster.replica import Replica
from fanlog.cluster.steps import StopNode
from fanlog.cluster.views import Folder
from fanlog.errors import DiskFullError
from fanlog.format.replication import Applied, Followed, ReplicaEnd, ReplicaTopic
from tests.cluster.three_nodes import LEASE_SECONDS, ThreeNodes, three_nodes, until
from tests.simulation.memory_etcd import MemoryCoordination


async def test_a_single_nodes_data_stays_when_another_node_begins_the_cluster_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fanlog.Broker(tmp_path / "a") as broker:
        await broker.create_topic("orders", durability="fsync")
        await broker.publish("orders", b"precious")
    shard = ClusterKeys("test").shard()
    swap = MemoryCoordination.swap

    async def second(self: MemoryCoordination, key: str, *more: Any) -> Any:
        """Just before its own first record comes that of a node with an empty folder."""
        if key == shard and self.etcd.get(shard) is None:
            others = ShardRecord(
                epoch=1,
                primary="b.1",
                in_sync=("b.1",),
                replicas=("b",),
                min_in_sync=2,
                replicas_wanted=3,
            )
            self.etcd.put(shard, encode(others))
        return await swap(self, key, *more)

    monkeypatch.setattr(MemoryCoordination, "swap", second)
    async with three_nodes(tmp_path) as cluster:
        coordination = MemoryCoordination(cluster.etcd, LEASE_SECONDS)
        node = ClusterNode(
            tmp_path / "a",
            cluster.config("a"),
            coordination,
            boot_id="boot",
            front=False,
            adopt=True,
        )
        await node.start()
        await until(lambda: isinstance(node.step, StopNode))
        await node.stop()
        assert (mark := load_mark(str(tmp_path / "a"))) is not None
        assert mark.state is Folder.ADOPTING
    for file in (tmp_path / "a").glob("cluster.json*"):
        file.unlink()
    async with (
        fanlog.Broker(tmp_path / "a") as broker,
        broker.subscribe("orders", start="earliest") as reader,
    ):
        assert (await reader.next(60)).value == b"precious"


async def test_who_fails_to_open_its_reign_lets_another_node_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: set[str] = set()
    write_reign = PrimaryRole._write_reign

    def write(role: PrimaryRole, core: Any) -> None:
        if Path(role._config.data).name in failing:
            raise DiskFullError("There is no room.")
        write_reign(role, core)

    monkeypatch.setattr(PrimaryRole, "_write_reign", write)
    async with three_nodes(tmp_path) as cluster:
        await cluster.start(*"abc")
        first = await cluster.whole()
        failing |= set("abc") - {first}
        failing.discard(able := max(failing))
        await cluster.stop(first)
        await until(lambda: cluster.primary() == able)
        (unable,) = failing
        failing.clear()
        await until(lambda: _follows(cluster, unable))
        async with await cluster.connect(able) as client:
            await client.publish("t", b"goes on")
        # It may lead again.
        await cluster.start(first)
        await cluster.whole()
        await cluster.nodes[able].move(unable, dry_run=False)
        await until(lambda: cluster.primary() == unable)


async def test_who_has_no_room_for_its_mark_lets_another_node_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has noticed, because nothing was written. It has become the primary then."""
    full: set[str] = set()

    def save(folder: str, mark: FolderMark) -> None:
        if Path(folder).name in full:
            raise OSError(28, "No space left on device")
        save_mark(folder, mark)

    monkeypatch.setattr(cluster_node, "save_mark", save)
    async with three_nodes(tmp_path) as cluster:
        await cluster.start(*"abc")
        first = await cluster.whole()
        full |= {(unable := max(set("abc") - {first}))}
        epoch = cluster.record().epoch
        await cluster.nodes[first].move(unable, dry_run=False)
        await until(lambda: cluster.record().epoch > epoch and cluster.primary())
        assert cluster.primary() != unable
        async with await cluster.connect(cluster.primary()) as client:
            await client.publish("t", b"goes on")
        # It stops, and promises nothing to its next start.
        await cluster.stop(unable)
        assert not _stopped_cleanly(tmp_path / unable)
        full.clear()
        await cluster.start(unable)
        await cluster.whole()


def _follows(cluster: ThreeNodes, node: str) -> bool:
    follower = cluster.nodes[node].follower
    return follower is not None and bool(follower.heard) and follower.problem == ""


async def test_a_stop_that_can_not_sync_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start(*"abc")
        primary = await cluster.whole()
        others = sorted(set("abc") - {primary})
        await cluster.stop(others[0])
        assert _stopped_cleanly(tmp_path / others[0])

        def broken(folder: str) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(cluster_node, "sync_tree", broken)
        await cluster.stop(others[1])
        assert not _stopped_cleanly(tmp_path / others[1])
        monkeypatch.undo()


async def test_who_was_left_out_joins_with_all_that_was_committed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it was left out. When the primary sees that it was, more is committed at
    once: it must not join by what it had before."""
    silent: set[str] = set()
    lacking: list[str] = []
    take_applied, swap = FollowerLink.take_applied, ClusterNode._swap

    def hear(link: FollowerLink, applied: Applied) -> None:
        if link.node not in silent:
            take_applied(link, applied)

    async def check(node: ClusterNode, record: ShardRecord, expected: SeenRecord | None) -> bool:
        if node.primary is not None and expected is not None:
            reign = node.primary.reign
            for report in reign.reports():
                if report.incarnation in set(record.in_sync) - set(expected.record.in_sync):
                    joins, lacks = report.incarnation, report.acked < reign.committed
                    lacking.extend([joins] if lacks else [])
        return await swap(node, record, expected)

    monkeypatch.setattr(FollowerLink, "take_applied", hear)
    monkeypatch.setattr(ClusterNode, "_swap", check)
    async with three_nodes(tmp_path) as cluster:
        await cluster.start(*"abc")
        primary = await cluster.whole()
        left_out = min(set("abc") - {primary})
        async with await cluster.connect(primary) as client:
            await client.create_topic("orders", durability="fsync")
            silent.add(left_out)
            cluster.coordinations[primary].next_swap = "applied"
            await client.publish("orders", b"committed without it")
        assert left_out not in {node_of(one) for one in cluster.record().in_sync}
        silent.clear()
        await cluster.whole()
        assert lacking == []


async def test_who_joined_by_a_swap_whose_answer_was_lost_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same swap is sent again, and loses to itself; and the watch says nothing meanwhile."""
    forgotten: list[set[str]] = []
    set_needed = Reign.set_needed

    def check(reign: Reign, needed: Collection[str], min_in_sync: int) -> None:
        forgotten.extend([lacks] if (lacks := set(cluster.record().in_sync) - set(needed)) else [])
        set_needed(reign, needed, min_in_sync)

    async with three_nodes(tmp_path) as cluster:
        await cluster.start(*"ab")
        primary = await cluster.whole(2)
        node, coordination = cluster.nodes[primary], cluster.coordinations[primary]
        swap = coordination.swap

        async def lose_the_answer(*swapped: Any) -> Any:
            coordination.deaf = True
            coordination.next_swap, coordination.swap = "applied", swap  # type: ignore[method-assign]
            return await swap(*swapped)

        await cluster.start("c")
        await until(lambda: "c" in cluster.record().replicas)
        coordination.swap = lose_the_answer  # type: ignore[method-assign]
        monkeypatch.setattr(Reign, "set_needed", check)
        await until(lambda: len(cluster.record().in_sync) == 3)
        assert node.primary is not None
        reign = node.primary.reign
        await until(lambda: set(cluster.record().in_sync) == reign.needed)
        assert forgotten == []
        coordination.deaf = False
        await cluster.whole()


async def test_another_etcd_with_the_same_record_stays_another_etcd(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start(*"abc")
        primary = await cluster.whole()
        before = cluster.record()
        cluster.etcd.restore(cluster.etcd.backup(), etcd="another")
        for node in cluster.nodes.values():
            await until(lambda node=node: "another etcd" in node.problem or node.follower)
        await asyncio.sleep(1.0)
        assert "another etcd" in cluster.nodes[primary].problem
        await cluster.stop(min(set("abc") - {primary}))
        await asyncio.sleep(2.0)
        assert cluster.record() == before


async def test_a_single_nodes_folder_with_many_starts_becomes_a_cluster(tmp_path: Path) -> None:
    for start in range(3):
        async with fanlog.Broker(tmp_path / "a") as broker:
            if not start:
                await broker.create_topic("orders", durability="fsync")
            await broker.publish("orders", f"{start}")
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", adopt=True)
        await until(lambda: cluster.nodes["a"].primary is not None)
        await cluster.start(*"bc")
        primary = await cluster.whole()
        async with (
            await cluster.connect(primary) as client,
            client.subscribe("orders", start="earliest") as reader,
        ):
            assert [(await reader.next(60)).text for _ in range(3)] == ["0", "1", "2"]


def _stopped_cleanly(folder: Path) -> bool:
    mark = load_mark(str(folder))
    return mark is not None and mark.clean


async def test_a_follower_that_reads_its_logs_for_long_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, begun = Replica.adopt, 0

    async def read_first(
        replica: Replica, followed: Followed, topics: Sequence[ReplicaTopic]
    ) -> Sequence[ReplicaEnd]:
        nonlocal begun
        begun += 1
        await asyncio.sleep(1.5)
        return await adopt(replica, followed, topics)

    monkeypatch.setattr(Replica, "adopt", read_first)
    monkeypatch.setattr(follower_session, "_SILENCE_SECONDS", 0.4)
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b")
        await cluster.whole(2)
    assert begun == 1
