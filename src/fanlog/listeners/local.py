"""The way between an embedded broker and its client: the native protocol without a socket. What
the broker sends is handed over as the same memory; the window of each subscription is what
bounds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fanlog.broker.broker_core import BrokerCore
from fanlog.config import ListenerOptions
from fanlog.errors import FanlogError
from fanlog.listeners.native import NativeSession

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import BrokerSubscription, Cursor
    from fanlog.broker.ports import SendBuffer


class LocalPeer(Protocol):
    """The client's end."""

    def data_received(self, data: bytes | memoryview) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class LocalLink:
    """Both ends of an in-process connection: an outlet for the broker, a transport for the
    client."""

    def __init__(
        self,
        broker: BrokerCore,
        options: ListenerOptions,
        peer: LocalPeer,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._peer = peer
        self._soon = soon
        self._open = True
        self._broker = broker
        # The embedded program itself is not audited. A web listener notes the actions of its
        # clients.
        self._session = NativeSession(broker, self, options, trusted=True, audited=False)
        self.blocked = False
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []
        self.send = self._hand_over
        broker.connections += 1

    # The broker's end

    def _hand_over(self, piece: SendBuffer) -> int:
        if self._open:
            self._peer.data_received(piece)
        return len(piece)

    def hold(self, piece: SendBuffer, sent: int) -> None:
        raise AssertionError("an in-process peer takes every piece whole")

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        if self.feed is not subscription:
            self.feed = subscription
            self._hand_over(self._session.marker(subscription))
        for piece in pieces:
            self._hand_over(piece)

    def resume(self) -> None:
        self.send_bytes(b"")

    def full(self) -> bool:
        return False

    def respond(self, buffers: list[SendBuffer]) -> None:
        self._hand_over(b"".join(buffers))

    def lost(self, fault: Exception) -> None:
        self._end(fault)

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        self._hand_over(self._session.farewell(error, subscription))
        self._end(error)

    def finish(self, why: str = "") -> None:
        self._end(None)

    def _end(self, fault: Exception | None) -> None:
        if not self._open:
            return
        self._open = False
        self.blocked = True
        self._broker.connections -= 1
        self._session.closed()
        self._soon(lambda: self._peer.connection_lost(fault))

    # Both

    def write(self, data: bytes) -> None:
        self._hand_over(data)

    # The client's end

    def send_bytes(self, data: bytes) -> None:
        if not self._open:
            return
        try:
            self._session.feed(data)
        except FanlogError as fault:
            self.evict(fault)

    def close(self) -> None:
        self._end(None)
