"""Damage in the logs of one node is repaired from another, and no client hears of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from fanlog.cluster.node import ClusterNode
from fanlog.cluster.primary_role import PrimaryNode
from fanlog.cluster.records import ClusterKeys
from fanlog.cluster.reign import Reign
from fanlog.cluster.requests import request_key
from fanlog.config import Config
from fanlog.errors import DamagedError
from fanlog.model import KIB
from fanlog.node import LoopRuntime
from tests.cluster.test_node import logs
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until

COUNT = 60


def damage(folder: Path) -> None:
    """A bit of a sealed segment flips."""
    first, *others = sorted(folder.glob("topics/*-t/0/*.log"))
    assert others, "the log has one segment only"
    content = bytearray(first.read_bytes())
    content[len(content.rstrip(b"\0")) // 2] ^= 1
    first.write_bytes(content)


async def damaged_node(tmp_path: Path, cluster: ThreeNodes, *, primary: bool) -> str:
    """A running node that has damage and does not know it yet."""
    await cluster.start("a", "b", "c")
    async with await cluster.connect(await cluster.whole()) as client:
        await client.create_topic("t", segment_bytes=64 * KIB)
        for number in range(COUNT):
            await client.publish("t", b"%d " % number + bytes(5_000))
    for node in list(cluster.nodes):
        await cluster.stop(node)
    damage(tmp_path / "a")
    await cluster.start("a", "b", "c")
    await cluster.whole()
    to = "a" if primary else "b"
    if cluster.primary() != to:
        cluster.etcd.put(request_key(ClusterKeys("test"), "move", to), to.encode())
        await until(lambda: cluster.primary() == to)
        await cluster.whole()
    return "a"


@pytest.mark.parametrize("primary", [True, False])
async def test_readers_get_everything_and_the_damage_is_repaired(
    tmp_path: Path, primary: bool
) -> None:
    async with three_nodes(tmp_path, front=True) as cluster:
        node = await damaged_node(tmp_path, cluster, primary=primary)
        values: list[bytes] = []
        async with await cluster.connect(cluster.primary()) as client:
            # With this a follower learns what is committed.
            await client.publish("t", b"%d " % COUNT)
        async with (
            await cluster.connect(node) as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            while len(values) <= COUNT:
                values.append((await reader.next(PATIENCE_SECONDS)).value.split(b" ")[0])
        assert values == [b"%d" % number for number in range(COUNT + 1)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not logs(tmp_path / node).items() >= copied(tmp_path / "b").items():
                await read_own_copy(cluster.nodes[node])
                await asyncio.sleep(0.1)
        await cluster.whole()


async def read_own_copy(node: ClusterNode) -> None:
    """As far as it is intact, if the node is a follower. The primary has the rest."""
    offset = 0
    while node.follower is not None:
        reads = node.follower.reads
        number = reads.maybe_number("t")
        found = None if number is None else await reads.read(number, 0, offset, 64 * KIB)
        if found is None:
            return
        offset = found.block.next_offset


def copied(folder: Path) -> dict[str, bytes]:
    """The segments of the topic."""
    return {key: data for key, data in logs(folder).items() if key.partition("-t/")[1]}


async def test_what_the_only_copy_has_lost_stays_lost_when_a_follower_joins(tmp_path: Path) -> None:
    async with fanlog.Broker(tmp_path) as broker:
        await broker.create_topic("t", segment_bytes=64 * KIB)
        for number in range(COUNT):
            await broker.publish("t", b"%d " % number + bytes(5_000))
    damage(tmp_path)
    runtime = LoopRuntime()
    reign = Reign(runtime, "test", 9, "a.1", {"a.1"}, forced=True)
    node = PrimaryNode(tmp_path, Config(), reign, runtime)
    try:
        node.start()
        node.look_at_damage()
        log = node.core.catalog.get("t").partitions[0].log
        intact = log.read(0, COUNT, 64 * KIB)
        with pytest.raises(DamagedError):
            await asyncio.to_thread(log.read, intact.next_offset, COUNT, 64 * KIB)
        # A follower has left these records out, and is in sync before the next look.
        reign.set_needed({"a.1", "b.1"}, 1)
        node.look_at_damage()
        assert not node.is_damaged
    finally:
        await node.release()
