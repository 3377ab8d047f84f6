"""A stop takes what was sent, tells everyone, and then nobody is let in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanlog.errors import ConnectError
from fanlog.format import messages
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind
from tests.listeners.peers import acks_of, one_message, request, serving


async def test_a_stop_tells_every_peer_that_it_drains_and_then_closes() -> None:
    async with serving() as served:
        peers = [await served.greeted() for _ in range(3)]
        stopping = asyncio.ensure_future(served.stop())
        for peer in peers:
            frames = await peer.rest()
            assert [got.kind for got in frames] == [FrameKind.DRAINING]
            assert "stopping" in frames[0].read(messages.Goodbye).reason
            peer.close()
        await stopping


async def test_nobody_is_let_in_after_a_stop() -> None:
    async with serving() as served:
        await served.stop()
        with pytest.raises(ConnectionRefusedError):
            await served.dial()
        with pytest.raises(ConnectError):
            async with served.client():
                pass


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_what_was_sent_before_a_stop_is_stored_and_acknowledged(
    data: Path, durability: str
) -> None:
    async with serving(data, drain_seconds=10) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability=durability)
        batch = encode_batch([b"a", b"b"], topic=number)
        await peer.send(batch * 100)
        stopping = asyncio.ensure_future(served.stop())
        frames = await peer.rest()
        peer.close()
        await stopping
        acks = [ack for got in frames if got.kind is FrameKind.ACK for ack in acks_of(got)]
        assert [ack.base_offset for ack in acks] == list(range(0, 200, 2))
        assert any(got.kind is FrameKind.DRAINING for got in frames)
    async with serving(data) as served:
        peer = await served.greeted()
        assert (await peer.fetch(number, 200)).visible_end == 200


async def test_a_stop_does_not_wait_for_a_peer_that_never_reads() -> None:
    async with serving(drain_seconds=0.05) as served:
        peer, publisher = await served.greeted(receive_bytes=4096), await served.greeted()
        number = await publisher.open_topic("t")
        await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), aux=1)
        while not served.connection_of(peer).blocked:
            await publisher.publish(one_message(number, b"x" * 60_000))
        await served.stop()
        assert served.connections == 0


async def test_a_fetch_that_waits_does_not_hold_up_a_stop() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.send(request(FrameKind.FETCH, messages.Fetch(number, 0, 0, wait_ms=30_000)))
        await peer.frames_until_pong()
        stopping = asyncio.ensure_future(served.stop())
        assert [got.kind for got in await peer.rest()] == [FrameKind.DRAINING]
        peer.close()
        await stopping
