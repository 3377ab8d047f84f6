"""What a running node gives the broker: its clocks and its threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import fanlog
from fanlog.config import BrokerOptions, Config
from fanlog.log.staging import Staged
from fanlog.model import KIB
from tests.client.ways import PATIENCE_SECONDS


async def test_readers_catch_up_while_large_transactions_wait_for_the_disk(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_is_back = threading.Event()
    syncing = threading.Semaphore(0)

    def sync_slowly(_: Staged) -> None:
        syncing.release()
        assert disk_is_back.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(Staged, "sync", sync_slowly)
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
