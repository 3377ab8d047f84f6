"""Native clients on an edge: mirrors serve their subscriptions, and everything else is forwarded,
frame by frame, over their own connections to upstream."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from fanlog.client.core.handshake import hello
from fanlog.config import ListenerOptions
from fanlog.edge.gate import EdgeGate
from fanlog.edge.reach import UpstreamReach
from fanlog.errors import ConnectError, ConnectionLostError, FanlogError, FormatError
from fanlog.format import messages
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    FrameCutter,
    FrameKind,
    feed_frame,
    frame,
    message_frame,
    read_frame_header,
)
from fanlog.format.header import KIND_BATCH
from fanlog.format.messages import decode
from fanlog.identity import Login
from fanlog.listeners.admission import Admission
from fanlog.listeners.native import NativeSession
from fanlog.listeners.notifier import NativeOutlet
from fanlog.listeners.server import NativeListener
from fanlog.listeners.socket_connection import SocketConnection

if TYPE_CHECKING:
    from fanlog.broker.ports import SendBuffer
    from fanlog.edge.core import EdgeCore

logger = logging.getLogger("fanlog.edge")

# Bytes that wait for upstream to take them, of one peer.
_WAITING_BYTES_MAX = 1 << 20
_CONNECT_SECONDS = 10.0
# Requests that an edge answers itself.
_LOCAL = frozenset(
    {
        FrameKind.LOGIN,
        FrameKind.PING,
        FrameKind.GOODBYE,
        FrameKind.STATUS,
        # Of this process: the broker has its own.
        FrameKind.CONNECTIONS,
        FrameKind.METRICS,
    }
)
# Frames about a subscription of the peer, by its number.
_NUMBERED = frozenset({FrameKind.UNSUBSCRIBE, FrameKind.CREDIT})


def _is_ours(kind: int, request: int) -> bool:
    """Whether the frame answers a request of the edge itself: a ping, or a new login."""
    return kind in (FrameKind.PONG, FrameKind.OK) and not request


class NativeRelay(asyncio.Protocol):
    """One peer's connection to upstream: frames go both ways as they are."""

    def __init__(self, session: EdgeSession, reach: UpstreamReach) -> None:
        self._session = session
        self._reach = reach
        self._cutter = FrameCutter(1 << 31)
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._greeted = False
        self._closed = False
        self._feed = 0
        self._timer = asyncio.get_running_loop().call_later(_CONNECT_SECONDS, self._too_late)
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._session.check_login()
            await self._reach.open(lambda: self, self._session.permit.who.address)
        except FanlogError as fault:
            self._fail(fault)

    def _too_late(self) -> None:
        if not self._greeted:
            self._fail(
                ConnectError(
                    f"The edge's upstream {self._reach.name} did not answer within "
                    f"{_CONNECT_SECONDS:.0f} s. Try again when it runs."
                )
            )

    # To upstream

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        if self._transport is None or not self._greeted:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes > _WAITING_BYTES_MAX:
                self._session.hold_up()
        else:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._session.hold_up()

    def resume_writing(self) -> None:
        self._session.relieve()

    # From upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no `asyncio.Transport` by its class.
        self._transport = cast("asyncio.Transport", transport)
        transport = self._transport
        if self._closed:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_WAITING_BYTES_MAX)
        transport.write(hello(self._session.client, self._session.shown))

    def data_received(self, data: bytes) -> None:
        out: list[SendBuffer] = []
        batches = False
        try:
            for kind, buffer, at, end in self._cutter.cut(data):
                if kind == KIND_BATCH:
                    if not batches:
                        # Whatever the peer was last sent, these are of another subscription.
                        out.append(feed_frame(self._feed))
                        batches = True
                    out.append(buffer[at:end])
                    continue
                header = read_frame_header(buffer, at)
                if kind == FrameKind.FEED:
                    self._feed = header.aux
                    batches = False
                elif kind == FrameKind.WELCOME:
                    self._welcomed()
                elif not _is_ours(kind, header.request):
                    out.append(buffer[at:end])
        except FormatError as fault:
            self._fail(ConnectionLostError(f"The edge's upstream sent damaged bytes: {fault}"))
            return
        if out:
            self._session.pass_back(out)

    def _welcomed(self) -> None:
        self._greeted = True
        self._timer.cancel()
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._transport is not None:
            self._transport.write(b"".join(waiting))
        self._session.relieve()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        because = f": {exc}" if exc else "."
        self._fail(ConnectionLostError(f"The edge lost its upstream {self._reach.name}{because}"))

    def _fail(self, error: FanlogError) -> None:
        if not self._closed:
            self.close()
            self._session.lost_upstream(error)

    def close(self, *, goodbye: bool = False) -> None:
        """`goodbye` tells upstream that the peer does not come back."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._connecting.cancel()
        if self._transport is not None:
            if goodbye:
                self._transport.write(frame(FrameKind.GOODBYE))
            self._transport.close()


class EdgeSession(NativeSession):
    """One native peer of an edge. `local_kinds` are the requests that the edge itself answers."""

    local_kinds = _LOCAL

    def __init__(
        self,
        core: EdgeCore,
        outlet: NativeOutlet,
        options: ListenerOptions,
        reach: UpstreamReach,
    ) -> None:
        super().__init__(core, outlet, options)
        self._core = core
        self._reach = reach
        self._relay: NativeRelay | None = None
        self._said_goodbye = False
        # The peer's credentials: it also logs in upstream, for its own requests there.
        self.shown: Login | None = None

    # From the peer

    def _control(self, kind: int, data: bytes, at: int, end: int) -> None:
        if not self.greeted():
            payload = memoryview(data)[at + FRAME_HEADER_BYTES : end]
            self.shown = decode(messages.Hello, payload).login
        if not self.greeted() or self._is_local(kind, data, at, end):
            if kind == FrameKind.GOODBYE:
                self._said_goodbye = True
            elif kind == FrameKind.PING and self._relay is not None:
                self._relay.send(frame(FrameKind.PING))
            super()._control(kind, data, at, end)
        else:
            self._pass_on(data[at:end])

    async def check_login(self) -> None:
        """Asks upstream whether the peer's credentials are still valid, before they are used there:
        the edge may not know yet that a key was revoked. A wrong login from the edge would count as
        the edge's own, and a few of them would lock out all its clients."""
        gate = self._core.gate
        if self.shown is not None and isinstance(gate, EdgeGate):
            await gate.check(self.shown, self.permit.who)

    def logged_in_again(self, shown: Login) -> None:
        """A fresh login that was right goes upstream as well, without an answer for the peer: it
        gets the edge's. A wrong one would count there as the edge's own, and lock it out."""
        self.shown = shown
        if self._relay is not None:
            self._relay.send(message_frame(FrameKind.LOGIN, shown))

    def _is_local(self, kind: int, data: bytes, at: int, end: int) -> bool:
        if kind in self.local_kinds:
            return True
        number = read_frame_header(data, at).aux
        if kind in _NUMBERED:
            return number in self.subscriptions or number in self._beginning
        if kind == FrameKind.SUBSCRIBE:
            payload = memoryview(data)[at + FRAME_HEADER_BYTES : end]
            # A durable name's positions are upstream.
            return not decode(messages.Subscribe, payload).durable
        return False

    def pass_on_batches(self, data: bytes, at: int) -> int:
        """Forwards the complete batches from `at`. Returns where they end."""
        begin, size = at, len(data)
        while size - at >= PREFIX_BYTES:
            length, kind = PREFIX.unpack_from(data, at)
            if kind != KIND_BATCH or at + length > size:
                break
            self._cutter.check_length(length, kind)
            at += length
        self._pass_on(data[begin:at])
        return at

    def _pass_on(self, data: bytes) -> None:
        if self._relay is None:
            self._relay = NativeRelay(self, self._reach)
            self._core.relays[self.outlet] = self._relay
        self._relay.send(data)

    def hold_up(self) -> None:
        """Upstream is full: stops reading from the peer."""
        self.checking = True

    def relieve(self) -> None:
        if self.checking:
            self.checking = False
            self.resume()

    # To the peer

    def pass_back(self, pieces: list[SendBuffer]) -> None:
        self.outlet.feed = None
        self.outlet.respond(pieces)
        if self.outlet.blocked and self._relay is not None:
            self._relay.pause_reading()

    def lost_upstream(self, error: FanlogError) -> None:
        """The peer's upstream requests are lost with the connection: the peer reconnects."""
        self.outlet.evict(error)

    def closed(self) -> None:
        super().closed()
        # Subscriptions that wait for upstream would wait for as long as it is away.
        for task in list(self._tasks):
            task.cancel()
        if self._relay is not None:
            self._core.relays.pop(self.outlet, None)
            self._relay.close(goodbye=self._said_goodbye)


class EdgeListener(NativeListener):
    """The native listener of an edge."""

    def __init__(
        self,
        core: EdgeCore,
        options: ListenerOptions,
        admission: Admission,
        *,
        reach: UpstreamReach,
        welcome: Callable[[], messages.Welcome | None],
    ) -> None:
        super().__init__(core, options, admission)
        self.core = core
        self.reach = reach
        self._welcome_of = welcome

    def admit(self, sock: socket.socket, peer: str) -> tuple[SocketConnection, NativeSession]:
        connection = SocketConnection(sock, peer, self)
        options = self.options
        welcome = self._welcome_of()
        if welcome is not None:
            # The edge must not accept what upstream would refuse.
            options = msgspec.structs.replace(
                options,
                frame_bytes_max=min(options.frame_bytes_max, welcome.frame_bytes_max),
                fetch_bytes_max=min(options.fetch_bytes_max, welcome.fetch_bytes_max),
            )
        return connection, self.make_session(connection, options)

    def make_session(self, connection: SocketConnection, options: ListenerOptions) -> EdgeSession:
        return EdgeSession(self.core, connection, options, self.reach)
