"""A reader that stops costs the others nothing, costs the broker no memory, and catches up from
disk when it goes on. How fast the others go meanwhile is `fanlog bench stall`'s to show."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

import fanlog
from fanlog.format.batch import check_batch
from fanlog.format.header import KIND_BATCH
from tests.scenarios.broker_process import BrokerProcess
from tests.scenarios.raw_reader import PATIENT, read_frame, subscribe

MESSAGES = 60_000
VALUE_BYTES = 1000
MEMORY_GROWTH_MAX = 64 << 20


def take_everything(reader: socket.socket, messages: int) -> None:
    """Reads until a raw reader has all messages, each where it must be."""

    reader.settimeout(60)
    expected = 0
    while expected < messages:
        kind, frame = read_frame(reader)
        if kind == KIND_BATCH:
            header = check_batch(frame)
            assert header.base_offset == expected
            expected = header.next_offset


@pytest.mark.timeout(400)
def test_a_stopped_reader_costs_no_memory_and_then_catches_up_from_disk(data: Path) -> None:
    with BrokerProcess(data, env=os.environ | PATIENT) as broker:
        asyncio.run(_scenario(broker))


async def _scenario(broker: BrokerProcess) -> None:
    async with fanlog.connect(broker.url) as client:
        await client.create_topic("ticks", tail_bytes=1 << 20)
        stopped = subscribe(broker.port, "ticks")
        try:
            async with client.subscribe("ticks") as others:
                before = broker.resident_bytes()
                publishing = asyncio.create_task(_publish(client))
                for number in range(MESSAGES):
                    message = await others.next(60)
                    assert message.offset == number
                await publishing
                assert broker.resident_bytes() - before < MEMORY_GROWTH_MAX
            await asyncio.to_thread(take_everything, stopped, MESSAGES)
        finally:
            stopped.close()
        info = await client.describe_topic("ticks")
        assert info.counters.catch_ups >= 1
        assert info.counters.lost_records == info.counters.skipped_records == 0


async def _publish(client: fanlog.Client) -> None:
    value = b"x" * VALUE_BYTES
    for _ in range(MESSAGES):
        await client.send("ticks", value)
    await client.flush()
