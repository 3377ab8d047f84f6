"""A stop takes what was sent, tells everyone, and then nobody is let in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanlog.errors import ConnectError
from fanlog.format import messages
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind
from fanlog.listeners.redis.server import RedisListener
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.listeners.tcp import ServedSession, TcpListener
from tests.listeners.peers import Peer, Serving, acks_of, one_message, request, serving


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
    async with serving(data, drain_seconds=100) as served:
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


async def stuck_native_peer(served: Serving, publisher: Peer, number: int) -> SocketConnection:
    """The broker's end of a subscriber whose socket is full, and who never reads."""
    peer = await served.greeted(receive_bytes=4096)
    await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), aux=1)
    connection = served.connection_of(peer)
    while not connection.blocked:
        await publisher.publish(one_message(number, b"x" * 60_000))
    return connection


async def stuck_redis_peer(served: Serving, listener: RedisListener) -> SocketConnection:
    """The same on the Redis listener, stuck in replies to its own commands."""
    peer = await served.dial(receive_bytes=4096, port=listener.port)
    pings = b"*2\r\n$4\r\nPING\r\n$60000\r\n" + b"x" * 60_000 + b"\r\n"
    (connection,) = await until_connected(listener)
    while not connection.kept_bytes:
        await peer.send(pings)
        await asyncio.sleep(0)
    return connection


async def until_connected(listener: RedisListener) -> list[SocketConnection]:
    while not listener._connections:  # noqa: ASYNC110 - the listener has no event for a test
        await asyncio.sleep(0.005)
    return list(listener._connections)


async def test_stuck_peers_of_all_listeners_share_one_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both listeners wait at the same time, for the same deadline, and then all is closed."""
    events: list[tuple[str, float]] = []
    drain = TcpListener.drain

    async def noted(self: TcpListener[ServedSession], deadline: float) -> None:
        assert deadline <= self.loop.time() + 0.2
        events.append(("begin", deadline))
        await drain(self, deadline)
        assert self.loop.time() >= deadline, "it had stuck peers and did not wait for them"
        events.append(("end", deadline))

    monkeypatch.setattr(TcpListener, "drain", noted)
    async with serving(drain_seconds=0.2) as served:
        redis = served.node.listen_redis()
        publisher = await served.greeted()
        number = await publisher.open_topic("t")
        stuck = [
            await stuck_native_peer(served, publisher, number),
            await stuck_native_peer(served, publisher, number),
            await stuck_redis_peer(served, redis),
        ]
        assert all(connection.kept_bytes for connection in stuck)
        await served.stop()
        assert served.connections == 0
    assert [event for event, _ in events] == ["begin", "begin", "end", "end"]
    assert len({deadline for _, deadline in events}) == 1


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
