"""Peers that stop talking are told so and closed. Nothing here measures time."""

from __future__ import annotations

from typing import Any

import pytest

from fanlog.client.core.handshake import hello
from fanlog.format.frames import FrameKind, frame
from fanlog.listeners.tcp import TcpListener
from tests.listeners.peers import one_message, serving

# A listener looks once a second, so that less would end nothing sooner.
SHORT = 0.5


class LoopAt:
    """A loop at another time."""

    def __init__(self, loop: Any, now: float) -> None:
        self._loop = loop
        self._now = now

    def time(self) -> float:
        return self._now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_a_peer_that_never_says_hello_is_closed() -> None:
    async with serving(hello_timeout_seconds=SHORT) as served:
        peers = [await served.dial() for _ in range(3)]
        for peer, size in zip(peers, (0, 3, 20), strict=True):
            await peer.send(hello("x")[:size])
        for peer in peers:
            failure = await peer.fault()
            assert failure.code == "bad_frame"
            assert "hello_timeout_seconds" in failure.message


async def test_half_a_frame_followed_by_silence_is_closed() -> None:
    async with serving(frame_timeout_seconds=SHORT) as served:
        peers = [await served.greeted() for _ in range(4)]
        number = await peers[0].open_topic("t")
        for peer, size in zip(peers, (1, 5, 40, 79), strict=True):
            await peer.send(one_message(number)[:size])
        for peer in peers:
            failure = await peer.fault()
            assert failure.code == "bad_frame"
            assert "frame_timeout_seconds" in failure.message
        assert (await (await served.greeted()).fetch(number)).visible_end == 0


async def test_an_idle_peer_is_closed_and_one_that_pings_is_not() -> None:
    async with serving(idle_timeout_seconds=1.5) as served:
        idle, alive = await served.greeted(), await served.greeted()
        while served.connections == 2:
            assert (await alive.ask(FrameKind.PING)).kind is FrameKind.PONG
        failure = await idle.fault()
        assert failure.code == "bad_frame"
        assert "idle_timeout_seconds" in failure.message
        assert (await alive.ask(FrameKind.PING)).kind is FrameKind.PONG


async def test_a_look_that_comes_late_turns_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        peer = await served.greeted()
        (listener,) = served.node.listeners
        now = listener.loop.time()
        for stalled_seconds, connections in ((1000.0, 1), (1.0, 0)):
            now += stalled_seconds
            monkeypatch.setattr(listener, "loop", LoopAt(listener.loop, now))
            listener._sweep()
            await served.until(lambda left=connections: served.connections == left)
        assert "idle_timeout_seconds" in (await peer.fault()).message


async def test_a_look_at_many_peers_is_in_slices_one_peer_at_a_step() -> None:
    async with serving() as served:
        peers = [await served.greeted() for _ in range(3)]
        (listener,) = served.node.listeners
        assert isinstance(listener, TcpListener)
        late = listener.loop.time() + 1000.0
        steps = listener._evicting_overdue(late)
        for left in (2, 1, 0):
            next(steps)
            waiting = [c for c in listener._connections if not c.closing]
            assert len(waiting) == left
        assert next(steps, "no more") == "no more"
        for peer in peers:
            assert "idle_timeout_seconds" in (await peer.fault()).message


async def test_a_peer_that_is_evicted_and_goes_on_talking_is_closed_all_the_same() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(frame(FrameKind.WELCOME))
        await peer.send(b"\0" * 100_000)
        assert (await peer.fault()).code == "unknown_command"
        await served.until(lambda: served.connections == 0)
