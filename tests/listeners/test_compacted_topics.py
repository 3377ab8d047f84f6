"""Batches for compacted topics are decoded before they are taken. Large ones hold up their own
connection, and nobody else's."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.config import BrokerOptions
from fanlog.format import columns
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.columns import HEADERS, KEYS
from fanlog.format.frames import FrameKind, frame
from fanlog.format.messages import BeginTransaction, CommitTransaction, TransactionBegun
from fanlog.model import KIB
from tests.format.crafted import column, crafted, squeezed
from tests.listeners.peers import Peer, acks_of, serving

OPTIONS = BrokerOptions(unpack_loop_bytes_max=32 * KIB)
CHANCE = random.Random(5)


class Seen:
    """What was unpacked on the loop, and what in threads."""

    def __init__(self) -> None:
        self.on_loop: list[int] = []
        self.in_threads: list[int] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found = Seen()
    unpack, loop = columns.unpack, threading.current_thread()

    def counted(codec: int, data: bytes, size: int, limits: UnpackLimits) -> bytes:
        on_loop = threading.current_thread() is loop
        (found.on_loop if on_loop else found.in_threads).append(size)
        return unpack(codec, data, size, limits)

    with monkeypatch.context() as patched:
        patched.setattr(columns, "unpack", counted)
        yield found


def large(number: int, key: bytes, *, sequence: int = 0) -> bytes:
    """A batch that is large once it is unpacked."""
    value = CHANCE.randbytes(500) + bytes(100 * KIB)
    return encode_batch(
        [value], keys=[key], codec=Codec.ZSTD, topic=number, first_sequence=sequence
    )


def malformed(number: int, *, sequence: int = 0) -> bytes:
    """A large batch whose keys can be read, and whose headers can't."""
    data = CHANCE.randbytes(500) + bytes(100 * KIB)
    good = column([0, 1], b"k")
    body = column([0, len(data)], data) + good + column([0, 7]) + good + good
    return crafted(
        squeezed(Codec.ZSTD, body),
        codec=Codec.ZSTD,
        flags=KEYS | HEADERS,
        topic=number,
        first_sequence=sequence,
    )


async def compacted(peer: Peer) -> int:
    return await peer.open_topic("compacted", durability="os", cleanup="compact")


async def test_large_batches_are_decoded_in_threads_and_taken_in_order(
    tmp_path: Path, seen: Seen
) -> None:
    async with serving(tmp_path, OPTIONS) as served:
        peer, other = await served.greeted(), await served.greeted()
        number = await compacted(peer)
        small = encode_batch([b"v"], keys=[b"k"], topic=number)
        await peer.send(b"".join(large(number, b"%d" % i) + small for i in range(20)))
        # Others are served meanwhile.
        await other.publish(encode_batch([b"x"], keys=[b"y"], topic=number))
        offsets: list[int] = []
        while len(offsets) < 40:
            offsets += [ack.base_offset for ack in acks_of(await peer.expect(FrameKind.ACK))]
        assert offsets == sorted(offsets)
        assert sum(seen.on_loop) <= 32 * KIB
        assert len(seen.in_threads) == 20
        keys = [key for batch in (await peer.fetch(number)).batches for key in batch.keys]
        assert [key for key in keys if key not in (b"k", b"y")] == [b"%d" % i for i in range(20)]


async def test_only_the_malformed_one_is_refused(tmp_path: Path, seen: Seen) -> None:
    async with serving(tmp_path, OPTIONS) as served:
        peer = await served.greeted()
        number = await compacted(peer)
        await peer.send(large(number, b"a") + malformed(number, sequence=9) + large(number, b"b"))
        refused = await peer.until(FrameKind.REFUSED)
        assert b"unreadable" in refused.payload
        assert not [size for size in seen.on_loop if size > 32 * KIB]
        await peer.until(FrameKind.ACK)
        await peer.send(large(number, b"c"))
        partition = served.node.core.catalog.get("compacted").partitions[0]
        await served.until(lambda: partition.visible_end == 3)


async def test_a_peer_that_goes_while_its_batch_is_decoded_harms_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, OPTIONS) as served:
        for _ in range(5):
            peer = await served.greeted()
            number = await compacted(peer)
            await peer.send(large(number, b"a") * 5)
            peer.close()
        await served.until(lambda: not served.connections)


async def test_what_a_transaction_stages_is_decoded_too(tmp_path: Path, seen: Seen) -> None:
    async with serving(tmp_path, OPTIONS) as served:
        peer = await served.greeted()
        number = await compacted(peer)
        begun = (await peer.ask(FrameKind.BEGIN_TRANSACTION, BeginTransaction())).read(
            TransactionBegun
        )
        ticket = bytes.fromhex(begun.ticket)
        # More than what one connection is given of the thread at a time.
        staged = b"".join(large(number, b"%d" % i, sequence=i) for i in range(60))
        await peer.send(frame(FrameKind.STAGE, ticket + staged, request=5))
        assert (await peer.until(FrameKind.OK)).request == 5
        await peer.send(frame(FrameKind.STAGE, ticket + malformed(number, sequence=60), request=6))
        failed = await peer.until(FrameKind.ERROR)
        assert failed.request == 6
        assert b"unreadable" in failed.payload
        assert not [size for size in seen.on_loop if size > 32 * KIB]
        assert len(seen.in_threads) == 61
        committed = await peer.ask(
            FrameKind.COMMIT_TRANSACTION, CommitTransaction(begun.ticket, begun.id)
        )
        assert committed.kind is FrameKind.OK
        assert len(seen.in_threads) == 61


async def test_a_client_that_compresses_notices_nothing(tmp_path: Path, seen: Seen) -> None:
    async with serving(tmp_path, OPTIONS) as served, served.client(compression="zstd") as client:
        await client.create_topic("compacted", cleanup="compact")
        for i in range(5):
            await client.send("compacted", CHANCE.randbytes(300) + bytes(100 * KIB), key=f"{i}")
        await client.flush()
        assert not [size for size in seen.on_loop if size > 32 * KIB]
