"""A connection that streams messages: the broker's `Outlet` over a transport taken over from
aiohttp.

Pieces for many readers are sent directly into the socket, as in the native listener. Bytes that the
socket does not take go to the transport, which then asks for a pause: the connection is `blocked`.
It holds the rest of one piece and the few answers behind it, and gets nothing else until the
transport has sent everything. Nothing is queued here. TLS works the same way: see
`tls_transport.py`.

It is long because the direct way and the transport write to one socket, and take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Protocol

from fanlog.errors import FanlogError, FormatError, LimitError
from fanlog.listeners.faults import OUR_FAULT
from fanlog.listeners.traffic import count_traffic
from fanlog.listeners.web.stream_protocol import ENDED, StreamProtocol
from fanlog.security.connections import CountedAccount

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerSubscription, Cursor
    from fanlog.broker.ports import SendBuffer
    from fanlog.config_web import WebOptions
    from fanlog.identity import Account

logger = logging.getLogger("fanlog.listeners")

_VECTORS_MAX = 64
_LINGER_SECONDS = 1.0
# A peer that is silent for this many times `web.ping_seconds` is gone.
_SILENT_PINGS = 2


class WebConnectionHost(Protocol):
    """What a connection needs of its listener."""

    loop: asyncio.AbstractEventLoop

    @property
    def options(self) -> WebOptions: ...
    @property
    def core(self) -> BrokerCore: ...
    def left(self, stream: WebConnection, /) -> None: ...


class WebConnection(asyncio.Protocol):
    """One peer that reads messages. It has many fields, because it is a transport, an outlet and a
    half-sent piece in one: the fan-out sends to it with no object in between."""

    __slots__ = (
        "__weakref__",
        "_answer_bytes",
        "_closing",
        "_context",
        "_core",
        "_counted",
        "_early",
        "_host",
        "_in_turn",
        "_linger",
        "_loop",
        "_sock",
        "_stalled",
        "_stamp",
        "_stuck",
        "_throttled",
        "_transport",
        "_wake",
        "_why",
        "blocked",
        "fault",
        "feed",
        "heard_at",
        "paused",
        "peer",
        "protocol",
        "raw_send",
        "send",
        "waiting",
    )

    def __init__(self, host: WebConnectionHost, peer: str) -> None:
        self._host = host
        self._core = host.core
        self._loop = host.loop
        self.peer = peer
        self.protocol: StreamProtocol = ENDED
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []
        # Nothing is sent before the connection is ours. Notices wait meanwhile.
        self.blocked = True
        self._early: list[bytes] | None = []
        self.fault: FanlogError | None = None
        self._stamp: Callable[..., Sequence[SendBuffer]] | None = None
        self.paused = False
        self._stuck = False
        self._throttled = False
        self._counted = CountedAccount(host.core.metering.connections)
        self._closing = False
        self._in_turn = False
        # Bytes that wait for a peer that reads nothing, and since when they are above the limit.
        self._stalled: tuple[int, float] = (0, 0.0)
        self._answer_bytes = 0
        self._wake: list[asyncio.Future[None]] = []
        self._why = "the client closed"
        self._linger: asyncio.TimerHandle | None = None
        self._sock: socket.socket | None = None
        self._transport: asyncio.Transport
        self._context: Context
        self.heard_at = host.loop.time()
        self.raw_send = self._send_by_transport
        self.send = self._send_by_transport

    def opened(
        self,
        transport: asyncio.Transport,
        sock: socket.socket | None,
        protocol: StreamProtocol,
        head: bytes,
    ) -> None:
        """The transport is ours, and the head of the answer goes out. `sock` is the transport's
        own, unless bytes are changed on their way."""
        self._transport = transport
        self.protocol = protocol
        # The context of the request: it names the client in log lines.
        self._context = copy_context()
        if sock is not None:
            self._sock = sock
            self._notice_silence(sock)
            self.raw_send = sock.send
            if self._stamp is None:
                self.send = sock.send
        # aiohttp may still have unsent bytes.
        self._stuck = self.blocked = transport.get_write_buffer_size() > 0
        early, self._early = self._early, None
        for data in (head, *(early or ())):
            self.write(data)
        if self.waiting:
            self._loop.call_soon(self._core.resume, self)
        transport.resume_reading()

    def _notice_silence(self, sock: socket.socket) -> None:
        """A peer whose network is gone acknowledges nothing. The kernel would try for a quarter of
        an hour. With this it gives up as early as we do after an unanswered ping."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            timeout_ms = int(_SILENT_PINGS * 1000 * self._host.options.ping_seconds)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, timeout_ms)

    def stamp_with(self, stamp: Callable[..., Sequence[SendBuffer]]) -> None:
        """Pieces are completed for this connection before they are sent, those that are sent
        together at once."""
        self._stamp = stamp
        self.send = self._send_stamped

    # Reading

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        if not self._closing:
            self._context.run(self._take, data)

    def eof_received(self) -> None:
        """The transport closes."""

    def _take(self, data: bytes) -> None:
        try:
            self.protocol.feed(data)
        except FormatError as fault:
            logger.debug("%s is cut off: %s", self.peer, fault)
            self.evict(fault)
        except Exception:
            logger.exception("a bug of ours in serving %s", self.peer)
            self.evict(FanlogError(OUR_FAULT))
        if self.paused or self._closing:
            return
        if self.full() or self.protocol.held_up():
            self._pause()
        elif self._core.congested():
            self._pause()
            self._core.turns.when_relieved(self.resume)

    def _pause(self) -> None:
        self.paused = True
        self._transport.pause_reading()

    def resume(self) -> None:
        """Resumes reading, if no limit applies any more."""
        if self._closing or self.full():
            return
        if self.paused:
            if self._core.congested():
                self._core.turns.when_relieved(self.resume)
                return
            self.paused = False
            self.heard_at = self._loop.time()
            self._transport.resume_reading()
        self._take(b"")

    def belong_to(self, account: Account | None) -> None:
        """Counts it for an account. Raises ConnectionQuotaError if that has too many."""
        self._counted.become(account)

    def throttle(self, seconds: float) -> None:
        """The peer is above its rate: reading pauses for this time."""
        if not self._throttled:
            self._throttled = True
            self.later(seconds, self._pay)

    def _pay(self) -> None:
        self._throttled = False
        self.resume()

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the peer to take them."""
        return 0 if self._early is not None else self._transport.get_write_buffer_size()

    def traffic(self) -> tuple[int, int] | None:
        """Bytes received and sent since it connected; None if unknown."""
        sock = None if self._early is not None else self._transport.get_extra_info("socket")
        return None if sock is None else count_traffic(sock)

    def full(self) -> bool:
        """Whether to stop reading from the peer for now: too many answers wait for it, or it is
        above its rate."""
        return self._throttled or self._answer_bytes > self._host.options.control_bytes_max

    # Writing

    def _send_by_transport(self, piece: SendBuffer) -> int:
        self._transport.write(piece)
        return len(piece)

    def _send_stamped(self, piece: SendBuffer) -> int:
        assert self._stamp is not None
        for data in self._stamp(piece):
            self.deliver(data)
        return len(piece)

    def write(self, data: bytes) -> None:
        """Sends an answer, in order with everything else."""
        if self._closing:
            return
        if self._early is not None:
            self._early.append(data)
            return
        if self.blocked:
            self._answer_bytes += len(data)
            self._transport.write(data)
            return
        self.deliver(data)

    def tell(self, data: bytes) -> None:
        """Sends what the peer did not ask for. A peer that takes nothing is evicted when too much
        waits, and resumes at its positions. Bytes of the same turn do not count: the peer can't
        have taken them yet."""
        if self.full() and not self._in_turn:
            self.evict(
                LimitError(
                    "Too many bytes wait for this client, which does not read them. Read faster, "
                    "or use more connections (web.control_bytes_max)."
                )
            )
            return
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._end_turn)
        self.write(data)

    def _end_turn(self) -> None:
        self._in_turn = False

    def deliver(self, piece: SendBuffer) -> None:
        """Sends all of a piece, or holds the rest."""
        try:
            sent = self.raw_send(piece)
        except BlockingIOError:
            sent = 0
        except OSError as fault:
            self.lost(fault)
            return
        if sent != len(piece):
            self.hold(piece, sent)

    def hold(self, piece: SendBuffer, sent: int) -> None:
        self.blocked = True
        self._transport.write(memoryview(piece)[sent:])
        if not self._stuck:
            # The kernel took it after all; whoever called us counts on `blocked`.
            self._loop.call_soon(self._unblock)

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        """Pieces for a reader that is behind. They are whole frames."""
        if self._closing:
            return
        if self._stamp is not None:
            pieces = [memoryview(piece) for piece in self._stamp(*pieces)]
        if self._sock is None or self.blocked:
            for piece in pieces:
                self._transport.write(piece)
            return
        for at in range(0, len(pieces), _VECTORS_MAX):
            self._send_several(pieces[at : at + _VECTORS_MAX])

    def _send_several(self, pieces: list[memoryview]) -> None:
        assert self._sock is not None
        sent = 0
        if not self.blocked:
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                pass
            except OSError as fault:
                self.lost(fault)
                return
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
            elif self.blocked:
                self._transport.write(piece)
            else:
                self.hold(piece, sent)
                sent = 0

    def pause_writing(self) -> None:
        self._stuck = self.blocked = True

    def resume_writing(self) -> None:
        self._stuck = False
        self._unblock()

    def _unblock(self) -> None:
        if self._stuck or self._closing or not self.blocked:
            return
        self.blocked = False
        self._answer_bytes = 0
        if self.paused:
            self.resume()
        self._woken()
        self._core.resume(self)

    async def writable(self) -> None:
        """Waits until the peer reads more, or is gone."""
        while self.blocked and not self._closing:
            woken: asyncio.Future[None] = self._loop.create_future()
            self._wake.append(woken)
            await woken

    def _woken(self) -> None:
        wake, self._wake = self._wake, []
        for woken in wake:
            if not woken.done():
                woken.set_result(None)

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._transport.get_write_buffer_size()

    # Ending

    def swept(self, now: float) -> None:
        """Once a second."""
        if not self._closing:
            self.protocol.swept(now)

    def is_silent(self, now: float) -> bool:
        """Whether a peer that is pinged has been silent for too long."""
        if self.paused:
            # Reading is paused, so we don't know what it has sent.
            self.heard_at = now
        return now - self.heard_at > _SILENT_PINGS * self._host.options.ping_seconds

    def is_stalled(self, now: float) -> bool:
        """Whether a peer has read nothing for too long while bytes wait for it."""
        kept = self.kept_bytes if self.blocked else 0
        before, since = self._stalled
        if not kept or kept != before:
            self._stalled = (kept, now)
            return False
        return now - since > _SILENT_PINGS * self._host.options.ping_seconds

    def lost(self, fault: Exception) -> None:
        """Ends the connection after the pass that noticed."""
        self.blocked = True
        self._why = str(fault)
        self._loop.call_soon(self.abort)

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        """Sends the reason, and ends the connection."""
        if self._early is not None:
            self.fault = error
        elif not self._closing:
            self.finish(f"cut off ({error.code}): {error}", self.protocol.farewell(error))

    def finish(self, why: str, last: bytes = b"") -> None:
        """Closes when everything has been sent. For a moment it reads and drops the peer's last
        bytes, because otherwise a reset could overtake the last answers."""
        if self._closing:
            return
        self._why = why
        self._closing = self.blocked = True
        self.protocol.closed()
        self._woken()
        if self._transport.is_closing():
            return
        if last:
            self._transport.write(last)
        self._transport.resume_reading()
        with contextlib.suppress(OSError, RuntimeError):
            self._transport.write_eof()
        self._linger = self._loop.call_later(_LINGER_SECONDS, self.abort)

    def drain(self, after_ms: int) -> None:
        """Asks the client to reconnect elsewhere."""
        self.protocol.drain(after_ms)

    @property
    def closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        """Ends the connection now."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.blocked = True
        if not self._closing:
            self._closing = True
            self.protocol.closed()
        self._woken()
        if self._linger is not None:
            self._linger.cancel()
        logger.debug("%s: disconnected: %s", self.peer, exc or self._why)
        self._counted.become(None)
        self._host.left(self)
        self.protocol = ENDED
        self.waiting = []
        # They refer to this object, directly or not: cleared, so that nothing keeps it in memory.
        self.raw_send = self.send = _gone
        self._stamp = None


def _gone(piece: SendBuffer) -> int:
    raise BrokenPipeError("the connection is closed")
