"""A broker opened on a replica's folder goes on where the primary was: messages, groups, queues,
producers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from fanlog.config import Config, LogOptions
from fanlog.log import recovery
from fanlog.model import KIB
from fanlog.node import LoopRuntime, Node
from tests.broker.stage import Publisher, stage
from tests.cluster.replicas import Follower, Primary
from tests.log.pieces import OPTIONS

PATIENCE_SECONDS = 60


def copy(source: Path, target: Path, epoch: int) -> Follower:
    """A follower with everything that the folder of a stopped primary has; closed cleanly."""
    primary = Primary(source, epoch)
    follower = Follower(target)
    primary.bring_level(follower)
    primary.close()
    follower.replica.close()
    return follower


async def test_messages_groups_and_queues_go_on_after_a_promotion(tmp_path: Path) -> None:
    async with fanlog.Broker(tmp_path / "a") as broker:
        await broker.create_topic("orders", partitions=2, durability="fsync")
        await broker.create_topic("views", durability="os")
        for i in range(20):
            await broker.publish("orders", b"%d" % i, key=b"%d" % i)
            await broker.publish("views", b"%d" % i)
        async with broker.consume("views", group="g", reset="earliest", commit="manual") as group:
            for _ in range(5):
                message = await group.next(PATIENCE_SECONDS)
            await group.commit(message)
        async with broker.work("orders", queue="q", reset="earliest") as queue:
            done: set[bytes] = set()
            for _ in range(7):
                job = await queue.next(PATIENCE_SECONDS)
                done.add(bytes(job.value))
                await job.ack()
    await asyncio.to_thread(copy, tmp_path / "a", tmp_path / "b", 900)
    async with fanlog.Broker(tmp_path / "b") as broker:
        async with broker.consume("views", group="g", reset="earliest", commit="manual") as group:
            assert (await group.next(PATIENCE_SECONDS)).value == b"5"
        async with broker.work("orders", queue="q", reset="earliest") as queue:
            left: set[bytes] = set()
            for _ in range(13):
                job = await queue.next(PATIENCE_SECONDS)
                left.add(bytes(job.value))
                await job.ack()
        assert done | left == {b"%d" % i for i in range(20)}
        assert not done & left
    node = Node(tmp_path / "b", Config(), LoopRuntime(), epoch=950)
    node.start()
    assert node.core.internal.losses() == []
    await node.stop()


async def test_a_promoted_folder_is_not_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fanlog.Broker(tmp_path / "a") as broker:
        await broker.create_topic("t", durability="fsync")
        for i in range(20):
            await broker.publish("t", b"%d" % i)
    await asyncio.to_thread(copy, tmp_path / "a", tmp_path / "b", 900)

    def scan(*_: object) -> None:
        raise AssertionError("a log is scanned")

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "scan_segment", scan)
        node = Node(tmp_path / "b", Config(), LoopRuntime(), epoch=901)
        node.start()
    assert node.core.epoch == 901
    topic = node.core.catalog.find("t")
    assert topic is not None
    assert topic.partitions[0].log.end_offset == 20
    await node.stop()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_repeated_batch_is_stored_once_after_a_promotion(
    tmp_path: Path, durability: str, killed: bool
) -> None:
    small = LogOptions(segment_first_bytes=4 * KIB)
    with stage(tmp_path / "a", log_options=small, durability=durability) as on:
        on.keep_journal()
        first, second = Publisher(1), Publisher(2)
        on.publish("t", [b"early"], second, sequence=0)
        for i in range(50):
            on.publish("t", [b"x" * 3000], first, sequence=i)
            on.settle()
    primary = Primary(tmp_path / "a", 900)
    primary.log().settings = primary.create("small", primary.log().settings).settings
    follower = Follower(tmp_path / "b", OPTIONS)
    primary.bring_level(follower)
    follower.replica.close(clean=not killed)
    primary.close()
    with stage(tmp_path / "b", log_options=small, durability=durability) as on:
        on.keep_journal()
        end = on.core.catalog.find("t")
        assert end is not None
        assert end.partitions[0].log.end_offset == 51
        on.publish("t", [b"x" * 3000], first, sequence=49)
        on.publish("t", [b"early"], second, sequence=0)
        on.publish("t", [b"new"], first, sequence=50)
        on.settle()
        assert [(a.base_offset, a.duplicate) for a in first.acks[-2:]] == [(50, 1), (51, 0)]
        assert [(a.base_offset, a.duplicate) for a in second.acks[-1:]] == [(0, 1)]
