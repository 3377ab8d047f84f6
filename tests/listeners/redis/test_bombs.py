"""Batches that are far larger than they look, on a channel with a Redis subscriber: what is too
large is refused, and the rest is unpacked where nobody waits for it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest

from fanlog.format import columns
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.frames import FrameKind
from fanlog.model import KIB, MIB
from tests.format.crafted import column, crafted, squeezed
from tests.listeners.peers import PATIENCE_SECONDS, Serving, serving

LOOP_BYTES_MAX = 256 * KIB


class Unpacked:
    """What was unpacked, where, and how much at a time."""

    def __init__(self) -> None:
        self.loop = threading.current_thread()
        self.lock = threading.Lock()
        self.on_loop: list[int] = []
        self.in_threads: list[int] = []
        self.now_bytes = 0
        self.peak_bytes = 0

    def begin(self, size: int) -> None:
        with self.lock:
            on_loop = threading.current_thread() is self.loop
            (self.on_loop if on_loop else self.in_threads).append(size)
            self.now_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def end(self, size: int) -> None:
        with self.lock:
            self.now_bytes -= size


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Unpacked]:
    seen = Unpacked()
    unpack = columns.unpack

    def counted(codec: int, data: bytes, size: int, limits: UnpackLimits) -> bytes:
        seen.begin(size)
        try:
            return unpack(codec, data, size, limits)
        finally:
            seen.end(size)

    with monkeypatch.context() as patched:
        patched.setattr(columns, "unpack", counted)
        yield seen


def batch(number: int, packed_bytes: int, unpacked_bytes: int, records: int) -> bytes:
    """A zstd batch of about these sizes."""
    noise = random.Random(1).randbytes(packed_bytes)
    data = noise + bytes(unpacked_bytes - packed_bytes)
    offsets = [len(data) * i // records for i in range(records + 1)]
    body = squeezed(Codec.ZSTD, column(offsets, data))
    return crafted(body, count=records, codec=Codec.ZSTD, topic=number)


async def follow(served: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    redis = served.node.listen_redis()
    reader, writer = await asyncio.open_connection("127.0.0.1", redis.port, limit=1 << 28)
    writer.write(b"SUBSCRIBE t\r\n")
    await reader.readuntil(b":1\r\n")
    return reader, writer


async def test_five_batches_of_3_5_mb_that_unpack_to_180_mib_are_refused(
    unpacked: Unpacked,
) -> None:
    async with serving() as served:
        _, writer = await follow(served)
        peer = await served.greeted()
        number = await peer.open_topic("t", message_bytes_max=64 * MIB)
        large = batch(number, 3_500_000, 180 * MIB, 1000)
        for _ in range(5):
            await peer.send(large)
            refused = await peer.expect(FrameKind.REFUSED)
            assert b"message_too_large" in refused.payload
        assert not unpacked.on_loop
        assert not unpacked.in_threads
        writer.close()
        await writer.wait_closed()


async def test_large_ones_that_are_allowed_are_unpacked_in_threads(unpacked: Unpacked) -> None:
    async with serving() as served:
        reader, writer = await follow(served)
        peer = await served.greeted()
        number = await peer.open_topic("t", message_bytes_max=64 * MIB)
        size = 15 * MIB
        for _ in range(5):
            await peer.publish(batch(number, 3_500_000, size, 3))
        got = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while got < 5 * size:
                got += len(await reader.read(1 << 20))
        assert unpacked.in_threads == [size + 16] * 5
        assert max(unpacked.on_loop, default=0) <= LOOP_BYTES_MAX
        assert unpacked.peak_bytes <= 2 * (size + 16)
        writer.close()
        await writer.wait_closed()
