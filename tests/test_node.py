"""What a running node gives the broker: its clocks and its threads."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

import fanlog
from fanlog.config import BrokerOptions, Config
from fanlog.errors import ConfigError
from fanlog.log.staging import StagedBytes
from fanlog.model import KIB
from fanlog.node import LoopRuntime, Node
from tests.client.proxy import proxy_to
from tests.client.ways import FREE_PORT, PATIENCE_SECONDS, until


async def test_the_clock_for_durations_stands_still_while_the_loop_is_stalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 1_000_000_000
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    runtime = LoopRuntime()
    seen_us = [runtime.monotonic_us()]
    for step_seconds in (0.1, 0.4, 60.0, 0.0, 0.2):
        now_ns += round(step_seconds * 1e9)
        worked_us = runtime.work_us()
        seen_us.append(runtime.monotonic_us())
        runtime.attend()
        assert runtime.monotonic_us() == seen_us[-1]
        assert runtime.work_us() == worked_us == now_ns // 1000
    runtime.close()

    steps_us = [after - before for before, after in pairwise(seen_us)]
    assert steps_us == [100_000, 400_000, 500_000, 0, 200_000]


async def test_setting_the_wall_clock_back_does_not_keep_a_lost_members_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(listener=FREE_PORT)
    async with fanlog.Broker(config=config) as broker, asyncio.timeout(PATIENCE_SECONDS):
        await broker.create_topic("t", partitions=2)
        port = broker.listen().port
        async with (
            proxy_to(port) as proxy,
            fanlog.connect(f"fanlog://127.0.0.1:{proxy.port}") as client,
            client.consume("t", group="g", session_seconds=0.5, commit="manual") as lost,
            broker.consume("t", group="g") as other,
        ):
            await until(lambda: len(lost.partitions) == 1 == len(other.partitions))
            now_ns = time.time_ns()
            monkeypatch.setattr("time.time_ns", lambda: now_ns - 3600 * 10**9)
            proxy.refusing = True
            proxy.cut()
            await until(lambda: len(other.partitions) == 2)
            proxy.refusing = False
            await until(lambda: len(lost.partitions) == 1 == len(other.partitions))


async def test_readers_catch_up_while_large_transactions_wait_for_the_disk(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_is_back = threading.Event()
    syncing = threading.Semaphore(0)

    def sync_slowly(_: StagedBytes) -> None:
        syncing.release()
        assert disk_is_back.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(StagedBytes, "sync", sync_slowly)
    config = Config(broker=BrokerOptions(transaction_memory_bytes=0))
    async with fanlog.Broker(data, config) as broker, asyncio.timeout(PATIENCE_SECONDS):
        await broker.create_topic("old", tail_bytes=4 * KIB)
        for _ in range(32):
            await broker.publish("old", bytes(KIB))
        transactions = [broker.transaction() for _ in range(12)]
        for transaction in transactions:
            await transaction.begin()
            await transaction.publish("new", b"staged")
        commits = [asyncio.create_task(transaction.commit()) for transaction in transactions]
        for _ in range(4):
            await asyncio.to_thread(syncing.acquire)

        fetched = await broker.fetch("old", 0, 0)

        assert fetched.batches
        assert not any(commit.done() for commit in commits)
        disk_is_back.set()
        await asyncio.gather(*commits)


async def test_settings_are_taken_by_all_who_reload_or_by_none() -> None:
    node = Node(None, Config())
    node.start()
    taken: list[str] = []
    node.on_reload.append(lambda config: lambda: taken.append(config.data))
    node.apply(Config(data="one"))
    assert taken == ["one"]

    def refuse(config: Config) -> None:
        raise ConfigError("The file is not there.")

    node.on_reload.append(refuse)
    with pytest.raises(ConfigError):
        node.apply(Config(data="two"))
    assert taken == ["one"]
    await node.stop()


async def test_nothing_is_compacted_in_a_folder_that_was_released(tmp_path: Path) -> None:
    """A run that waits for the names of producers, or whose file is ready, ends with the node."""
    for turns in range(12):
        folder = tmp_path / str(turns)
        async with fanlog.Broker(folder) as broker:
            settings = {"cleanup": "compact", "segment_bytes": 64 * KIB}
            await broker.create_topic("t", partitions=1, **settings)
            for number in range(40):
                await broker.publish("t", os.urandom(4 * KIB), key=str(number % 3))
            core = broker._node.core  # type: ignore[attr-defined]
            asking = asyncio.create_task(core.compactions.compact(core.catalog.get("t")))
            for _ in range(turns):
                await asyncio.sleep(0.001)
        asking.cancel()
        left = sorted(path.name for path in folder.rglob("*"))
        assert "clean" in left
        await asyncio.sleep(0.01)
        assert sorted(path.name for path in folder.rglob("*")) == left
        assert not [name for name in left if name.endswith(".tmp")]


async def test_work_that_is_wanted_after_the_end_is_not_begun() -> None:
    """A callback of what was under way may come then."""
    runtime = LoopRuntime()
    runtime.close()
    done: list[object] = []
    runtime.in_background(lambda: 1, done.append)
    runtime.in_thread(lambda: 1, done.append)
    await asyncio.sleep(0)
    assert done == []
