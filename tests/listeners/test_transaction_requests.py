"""Transactions as frames: what a peer of any language may send, and what it gets for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.format import messages
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind, frame
from tests.listeners.peers import Frame, Peer, serving


async def begin(peer: Peer, id: str = "") -> messages.TransactionBegun:
    answer = await peer.ask(FrameKind.BEGIN_TRANSACTION, messages.BeginTransaction(id))
    return answer.read(messages.TransactionBegun)


async def stage(peer: Peer, ticket: str, data: bytes) -> Frame:
    payload = bytes.fromhex(ticket) + data
    await peer.send(frame(FrameKind.STAGE, payload, request=1000))
    answer = await peer.frame()
    assert answer is not None
    assert answer.request == 1000
    return answer


async def test_a_transaction_frame_by_frame(data: Path) -> None:
    async with serving(data) as served:
        peer, other = await served.greeted(), await served.greeted()
        number = await peer.open_topic("t", durability="os")
        begun = await begin(peer, "x")
        assert (begun.id, begun.committed) == ("x", False)
        for stager, asking in ((5, peer), (6, other)):
            batch = encode_batch([b"%d" % stager], topic=number, producer_id=stager)
            for _ in range(2):
                staged = await stage(asking, begun.ticket, batch)
                assert (staged.kind, staged.payload) == (FrameKind.OK, b"")
        wanted = messages.CommitTransaction(begun.ticket, "x")
        for already in (False, True):
            answer = await other.ask(FrameKind.COMMIT_TRANSACTION, wanted)
            committed = answer.read(messages.TransactionCommitted)
            assert (committed.id, committed.already) == ("x", already)
        batches = (await peer.fetch(number)).batches
        assert [value for batch in batches for value in batch.values] == [b"5", b"6"]
        assert (await begin(peer, "x")).committed


@pytest.mark.parametrize("ticket", ["", "x", "0" * 32, "€" * 100])
async def test_a_ticket_that_there_is_not_is_told_so(data: Path, ticket: str) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        wanted = messages.CommitTransaction(ticket, "x")
        answer = await peer.ask(FrameKind.COMMIT_TRANSACTION, wanted)
        assert answer.failure.code == "transaction_not_found"
        aborted = await peer.ask(FrameKind.ABORT_TRANSACTION, messages.AbortTransaction(ticket))
        assert aborted.kind is FrameKind.OK
        assert (await stage(peer, "0" * 32, b"")).failure.code == "transaction_not_found"


@pytest.mark.parametrize("timeout_seconds", [0.0, -1.0, float("nan")])
async def test_a_timeout_that_makes_no_sense_is_refused(data: Path, timeout_seconds: float) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        wanted = messages.BeginTransaction("", timeout_seconds)
        answer = await peer.ask(FrameKind.BEGIN_TRANSACTION, wanted)
        assert answer.failure.code == "invalid_argument"


async def test_positions_without_a_membership_in_the_group_are_fenced(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        await peer.open_topic("t", durability="os")
        begun = await begin(peer)
        offsets = messages.GroupOffsets("g", "nobody", 1, (messages.Position("t", 0, 0),))
        wanted = messages.CommitTransaction(begun.ticket, "", (offsets,))
        answer = await peer.ask(FrameKind.COMMIT_TRANSACTION, wanted)
        assert answer.failure.code == "fenced"
        again = await peer.ask(FrameKind.COMMIT_TRANSACTION, wanted)
        assert again.failure.code == "transaction_not_found"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "bad_frame"),
        (bytes(15), "bad_frame"),
        ("cut", "bad_format"),
        ("flipped", "bad_checksum"),
        ("trailing", "bad_format"),
    ],
)
async def test_bytes_that_are_no_batches_end_the_connection(
    data: Path, payload: bytes | str, code: str
) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="os")
        begun = await begin(peer)
        batch = encode_batch([b"value"], topic=number, producer_id=5)
        bad = {"cut": batch[:-8], "flipped": batch[:-1] + b"?", "trailing": batch + b"more"}
        if isinstance(payload, str):
            payload = bytes.fromhex(begun.ticket) + bad[payload]
        await peer.send(frame(FrameKind.STAGE, payload, request=1))
        assert (await peer.fault()).code == code
        # The transaction is another's as well, and goes on.
        other = await served.greeted()
        assert (await stage(other, begun.ticket, batch)).kind is FrameKind.OK
