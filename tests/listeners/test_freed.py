"""A closed connection is freed at once: its memory must not wait for the garbage collector, which
a broker runs rarely."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.model import Start
from tests.listeners.peers import Peer, Serving, one_message, request, serving


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(connection: SocketConnection) -> list[weakref.ref[object]]:
    return [weakref.ref(connection), weakref.ref(connection.session)]


async def check_freed(served: Serving, refs: list[weakref.ref[object]]) -> None:
    """That nothing holds them, once the timers of a closed connection have run out."""
    await served.until(lambda: all(ref() is None for ref in refs))


async def native_peer(served: Serving) -> tuple[Peer, list[weakref.ref[object]]]:
    peer = await served.greeted(receive_bytes=4096)
    return peer, watched(served.connection_of(peer))


async def test_a_native_connection_that_did_everything(data: Path) -> None:
    async with serving(data) as served:
        peer, refs = await native_peer(served)
        number = await peer.open_topic("t")
        await peer.ask(FrameKind.OPEN_TOPIC, messages.OpenTopic("t", create=False))
        await peer.publish(one_message(number))
        await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), aux=1)
        await peer.publish(one_message(number))
        await peer.fetch(number)
        await peer.send(request(FrameKind.FETCH, messages.Fetch(number, 0, 5, wait_ms=30_000)))
        await peer.ask(FrameKind.FIND_OFFSETS, messages.FindOffsets("t", Start("earliest")))
        await peer.frames_until_pong()
        peer.close()
        await served.until(lambda: served.connections == 0)
        await check_freed(served, refs)


@pytest.mark.parametrize("farewell", [False, True])
async def test_a_native_connection_that_is_stuck(farewell: bool) -> None:
    async with serving() as served:
        peer, refs = await native_peer(served)
        publisher = await served.greeted()
        number = await publisher.open_topic("t")
        await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), aux=1)
        while not served.connection_of(peer).blocked:
            await publisher.publish(one_message(number, b"x" * 60_000))
        if farewell:
            served.connection_of(peer).finish()
        peer.close()
        publisher.close()
        await served.until(lambda: served.connections == 0)
        await check_freed(served, refs)


async def test_native_connections_that_broke_the_protocol() -> None:
    async with serving() as served:
        peer, refs = await native_peer(served)
        await peer.send(b"\xff" * 100)
        await peer.fault()
        peer.close()
        await served.until(lambda: served.connections == 0)
        await check_freed(served, refs)


REDIS_TALKS = [
    b"PING\r\n",
    b"SUBSCRIBE a b\r\nPSUBSCRIBE c*\r\n",
    b"HELLO 3\r\nSUBSCRIBE a\r\nPUBLISH a x\r\n",
    b"PUBLISH a x\r\nPUBLISH b y\r\n",
    b"MULTI\r\nPUBLISH a x\r\nEXEC\r\nMULTI\r\n",
    b"SUBSCRIBE a\r\nRESET\r\n",
    b"CLIENT LIST\r\nQUIT\r\n",
    b"*1\r\n$nonsense\r\n",
]


@pytest.mark.parametrize("talk", REDIS_TALKS)
async def test_a_redis_connection(talk: bytes) -> None:
    async with serving() as served:
        listener = served.node.listen_redis()
        other = await served.dial(port=listener.port)
        await other.send(b"SUBSCRIBE a b\r\n")
        assert b"subscribe" in await other.recv()
        (first,) = listener._connections
        peer = await served.dial(port=listener.port)
        await served.until(lambda: len(listener._connections) == 2)
        refs = [ref for c in listener._connections if c is not first for ref in watched(c)]
        await peer.send(talk)
        await peer.recv()
        await other.send(b"PING\r\n")
        await other.recv()
        peer.close()
        await served.until(lambda: len(listener._connections) == 1)
        await check_freed(served, refs)
        other.close()
        del first
