"""Connections of the web listener, as operators see them: those that stream, and those that only
send requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fanlog.identity import Identity
from fanlog.listeners.traffic import count_traffic
from fanlog.telemetry.callers import connection_id

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import Cursor
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.connections import WebPeer
    from fanlog.listeners.web.peers import HttpPeer


class StreamPeer:
    """A WebSocket or a stream of events."""

    __slots__ = ("_peer", "_stream")

    def __init__(self, peer: WebPeer, stream: WebConnection | None) -> None:
        self._peer = peer
        self._stream = stream

    @property
    def id(self) -> str:
        return self._peer.id

    @property
    def transport(self) -> str:
        return self._peer.transport

    @property
    def who(self) -> Identity:
        return self._peer.permit.who

    @property
    def client(self) -> str:
        return ""

    @property
    def since_us(self) -> int:
        return self._peer.since_us

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._stream is None else self._stream.waiting_bytes

    def traffic(self) -> tuple[int, int] | None:
        return None if self._stream is None else self._stream.traffic()

    def targets(self) -> Iterable[str]:
        return self._peer.subscriptions()

    def behind(self) -> Iterator[Cursor]:
        return iter(() if self._stream is None else list(self._stream.waiting))

    def close(self, reason: str, *, reconnect: bool) -> None:
        self._peer.disconnect(reason, reconnect=reconnect)


class RequestPeer:
    """A connection that sends requests. Each request says who sends it, so it has no user."""

    __slots__ = ("_peer", "since_us", "who")

    transport = "http"
    client = ""

    def __init__(self, peer: HttpPeer, now_us: int) -> None:
        self._peer = peer
        self.since_us = now_us - int(peer.age_seconds * 1e6)
        self.who = Identity(address=peer.peer, listener="web")

    @property
    def id(self) -> str:
        return connection_id(self.who)

    @property
    def waiting_bytes(self) -> int:
        return self._peer.transport.get_write_buffer_size()

    def traffic(self) -> tuple[int, int] | None:
        return count_traffic(self._peer.sock)

    def targets(self) -> Iterable[str]:
        return ()

    def behind(self) -> Iterator[Cursor]:
        return iter(())

    def close(self, reason: str, *, reconnect: bool) -> None:
        self._peer.transport.abort()
