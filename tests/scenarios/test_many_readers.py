"""A thousand subscribers over TCP each get every message, once, in order."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket

import pytest
from google_crc32c import extend

import fanlog
from fanlog.format.batch import Batch, check_batch, split_batches
from tests.scenarios.broker_process import BrokerProcess
from tests.scenarios.raw_reader import PATIENT, skip_marker, subscribe

READERS = 1000
MESSAGES = 5000


class Received:
    """A reader's bytes, as a running checksum; the first reader keeps them."""

    def __init__(self, begin: bytes) -> None:
        self.size = len(begin)
        self.checksum = extend(0, begin)

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.checksum = extend(self.checksum, data)


def drain(readers: list[socket.socket], received: list[Received], expected: int) -> bytes:
    """Reads until everyone has `expected` bytes; the first reader's are returned."""
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        for number, reader in enumerate(readers):
            reader.setblocking(False)
            selector.register(reader, selectors.EVENT_READ, number)
        waiting = len(readers)
        while waiting:
            ready = selector.select(timeout=60)
            assert ready, "nothing came for 60 s"
            for key, _ in ready:
                data = readers[key.data].recv(1 << 20)
                assert data, "the broker closed a reader"
                received[key.data].add(data)
                if key.data == 0:
                    kept += data
                if received[key.data].size >= expected:
                    selector.unregister(readers[key.data])
                    waiting -= 1
    return bytes(kept)


async def log_bytes(client: fanlog.Client) -> bytes:
    """The whole log, as fetching gives it."""
    data, offset = b"", 0
    while offset < MESSAGES:
        for batch in (await client.fetch("ticks", 0, offset)).batches:
            data += bytes(batch.data)
            offset = batch.next_offset
    return data


@pytest.mark.timeout(400)
def test_a_thousand_readers_get_five_million_messages_none_lost_none_twice_in_order() -> None:
    with BrokerProcess(None, env=os.environ | PATIENT) as broker:
        asyncio.run(_scenario(broker))


async def _scenario(broker: BrokerProcess) -> None:
    async with fanlog.connect(broker.url, batch_records=64) as client:
        await client.create_topic("ticks", durability="memory", tail_bytes=64 << 20)
        readers = [subscribe(broker.port, "ticks") for _ in range(READERS)]
        try:
            await client.publish("ticks", b"%06d" % 0)
            firsts = [skip_marker(reader) for reader in readers]
            received = [Received(first) for first in firsts]
            for number in range(1, MESSAGES):
                await client.send("ticks", b"%06d" % number)
            await client.flush()
            whole = await log_bytes(client)
            kept = firsts[0] + await asyncio.to_thread(drain, readers, received, len(whole))
        finally:
            for reader in readers:
                reader.close()
    assert kept == whole
    assert {reader.size for reader in received} == {len(whole)}
    assert {reader.checksum for reader in received} == {extend(0, whole)}
    values: list[bytes | None] = []
    for at, header in split_batches(whole):
        check_batch(whole, at)
        assert header.base_offset == len(values)
        values += Batch(whole[at : at + header.length], header).values
    assert values == [b"%06d" % number for number in range(MESSAGES)]
