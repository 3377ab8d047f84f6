"""Native clients on an edge: mirrors serve their subscriptions, and everything else is forwarded,
frame by frame, over their own connections to upstream."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.messages.reading import batches_within
from fanlog.config import ListenerOptions
from fanlog.edge.gate import EdgeGate
from fanlog.edge.native_relay import NativeRelay
from fanlog.edge.reach import UpstreamReach
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    FrameKind,
    fetched_head,
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
    from fanlog.edge.own_copy import OwnCopy

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
        if self.greeted() and kind == FrameKind.FETCH and self._fetch_here(data[at:end]):
            return
        if not self.greeted() or self._is_local(kind, data, at, end):
            if kind == FrameKind.GOODBYE:
                self._said_goodbye = True
            elif kind == FrameKind.PING and self._relay is not None:
                self._relay.send(frame(FrameKind.PING))
            super()._control(kind, data, at, end)
        else:
            self._pass_on(data[at:end])

    # History that is in files of this process

    def _fetch_here(self, asked: bytes) -> bool:
        """Answers a FETCH from the own copy. False if upstream has to answer."""
        if self._core.own_copy is None:
            return False
        wanted = decode(messages.Fetch, memoryview(asked)[FRAME_HEADER_BYTES:])
        copy = self._core.copy_with(wanted.number, wanted.partition, wanted.offset)
        name = None if copy is None else copy.maybe_name(wanted.number)
        if copy is None or name is None or self.permit.may_fetch(name) is not None:
            return False
        self._asked = FrameKind.FETCH
        request = read_frame_header(asked, 0).request
        self.later(request, self._fetching(copy, request, wanted, asked))
        return True

    async def _fetching(
        self, copy: OwnCopy, request: int, wanted: messages.Fetch, asked: bytes
    ) -> None:
        size = max(1, min(wanted.bytes_max, self.options.fetch_bytes_max))
        await self._fetch_room(size)
        sent = 0
        try:
            found = await copy.read(wanted.number, wanted.partition, wanted.offset, size)
            if found is None:
                self._pass_on(asked)
                return
            data = batches_within(found.block.data, size)
            sent = len(data)
            self._core.fetched_bytes += sent
            head = fetched_head(request, sent, found.visible_end, found.start_offset)
            self.outlet.respond([head, data])
        finally:
            self._core.fetch_memory.end(self.outlet, size, sent)

    async def _fetch_room(self, size: int) -> None:
        """Waits until there is memory for an answer."""
        memory = self._core.fetch_memory
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if room.done():
                memory.end(self.outlet, size, 0)
            else:
                room.set_result(None)

        memory.begin(self.outlet, size, begin)
        try:
            await room
        except asyncio.CancelledError:
            if not room.cancelled():
                memory.end(self.outlet, size, 0)
            raise

    @property
    def address(self) -> str:
        return self.permit.who.address

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
