"""A connection: a non-blocking socket on the loop, in both directions, for any protocol.

Reading: the bytes of one `recv` go to the session at once. Writing: straight into the socket. Only
when the socket is full are bytes kept: the rest of one shared piece, and the few answers after it.
During that time the connection is `blocked`, and nothing else is sent to it.

It is long because reading and writing pause each other: who does not take answers is not read from.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from contextvars import Context, copy_context
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from fanlog.config import ListenerOptions
from fanlog.errors import FanlogError, FormatError
from fanlog.listeners.faults import OUR_FAULT
from fanlog.listeners.tls import TlsSocket
from fanlog.listeners.traffic import count_traffic, describe_traffic

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerSubscription, Cursor
    from fanlog.broker.ports import SendBuffer

logger = logging.getLogger("fanlog.listeners")

_VECTORS_MAX = 64
_LINGER_SECONDS = 1.0


class ConnectionSession(Protocol):
    """One peer's conversation, without I/O."""

    def feed(self, data: bytes) -> None: ...
    def marker(self, subscription: BrokerSubscription) -> bytes:
        """The frame before the first piece of another subscription."""
        ...

    def farewell(self, error: FanlogError, subscription: BrokerSubscription | None) -> bytes:
        """The message that tells the peer why it is evicted."""
        ...

    def greeted(self) -> bool: ...
    def half_frame(self) -> int: ...
    def drain(self) -> None:
        """Notifies the peer that the broker stops, if the protocol has a message for that."""
        ...

    def held_up(self) -> bool:
        """Whether whole frames wait until other peers had their turn. `resume` continues with
        them."""
        ...

    def relieves(self) -> bool:
        """Whether the peer is a follower: what it reports is what a congested broker waits for, and
        is always read."""
        ...

    def recheck(self) -> FanlogError | None:
        """Permissions have changed: why to evict the peer, or None."""
        ...

    def closed(self) -> None: ...


class _EndedSession:
    """The session of a closed connection. A connection and its session refer to each other: without
    this, only the garbage collector would free them."""

    def feed(self, data: bytes) -> None: ...
    def marker(self, subscription: BrokerSubscription) -> bytes:
        return b""

    def farewell(self, error: FanlogError, subscription: BrokerSubscription | None) -> bytes:
        return b""

    def greeted(self) -> bool:
        return True

    def half_frame(self) -> int:
        return 0

    def drain(self) -> None: ...
    def held_up(self) -> bool:
        return False

    def relieves(self) -> bool:
        return False

    def recheck(self) -> FanlogError | None:
        return None

    def closed(self) -> None: ...


_ENDED = _EndedSession()


class SocketConnectionHost(Protocol):
    """The part of the listener that connections use. All of them share the buffer `inlet`: bytes
    are copied out of it right after each recv."""

    broker: BrokerCore
    options: ListenerOptions
    loop: asyncio.AbstractEventLoop
    inlet: memoryview

    def forget(self, connection: SocketConnection) -> None: ...


class SocketConnection:
    """One socket: the broker's `Outlet`, and the session's way out. It has many fields, because
    both directions of a socket look at each other, and an object for each would cost every
    connection memory."""

    __slots__ = (
        "__weakref__",
        "_broker",
        "_closing",
        "_context",
        "_fd",
        "_held_bytes",
        "_host",
        "_inlet",
        "_kept",
        "_kept_bytes",
        "_lingering",
        "_loop",
        "_options",
        "_receive",
        "_sock",
        "_why",
        "blocked",
        "certificate_names",
        "feed",
        "heard_at",
        "paused",
        "peer",
        "send",
        "session",
        "since",
        "waiting",
    )

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        host: SocketConnectionHost,
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._host = host
        self._broker = host.broker
        self._options = host.options
        self._loop = host.loop
        self._inlet = host.inlet
        self._kept: deque[SendBuffer] = deque()
        self._kept_bytes = 0
        self._held_bytes = 0
        self.paused = False
        self._closing = False
        self._why = "the client closed"
        self._lingering: asyncio.TimerHandle | None = None
        self.peer = peer
        # The names in the client's certificate, where TLS has seen one.
        self.certificate_names: tuple[str, ...] = (
            sock.certificate_names if isinstance(sock, TlsSocket) else ()
        )
        self.session: ConnectionSession
        self._context: Context
        self.since = self.heard_at = host.loop.time()
        self.blocked = False
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []
        self.send = sock.send
        self._receive = sock.recv_into

    def open(self, session: ConnectionSession, context: Context | None = None) -> None:
        """Requests of the peer run in `context`, so that log lines have its name."""
        self.session = session
        self._context = context or copy_context()
        self._watch()

    def _watch(self) -> None:
        """The loop copies the context once, when the reader is added."""
        self._context.run(self._loop.add_reader, self._fd, self._readable)

    # Reading

    def _readable(self) -> None:
        try:
            size = self._receive(self._inlet)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as fault:
            self._why = str(fault)
            self.close()
            return
        if not size:
            self.close()
            return
        if self._closing:
            return
        self.heard_at = self._loop.time()
        self._take(self._inlet[:size].tobytes())

    def _take(self, data: bytes) -> None:
        try:
            self.session.feed(data)
        except FormatError as fault:
            logger.warning("%s is cut off: %s", self.peer, str(fault))
            self.evict(fault)
        except Exception:
            logger.exception("a bug of ours in serving %s", self.peer)
            self.evict(FanlogError(OUR_FAULT))
        if not self.paused and not self._closing:
            if self.full() or self.session.held_up():
                self._pause()
            elif self._broker.congested() and not self.session.relieves():
                self._pause()
                self._broker.turns.when_relieved(self._relieved)

    def read_rest(self) -> None:
        """Reads the bytes that the peer has already sent, before a stop."""
        for _ in range(64):
            if self._closing or self.paused:
                return
            heard = self.heard_at
            self.heard_at = -1.0
            self._readable()
            if self.heard_at < 0:
                self.heard_at = heard
                return

    def _pause(self) -> None:
        self.paused = True
        self._loop.remove_reader(self._fd)

    def _relieved(self) -> None:
        if self._closing or not self.paused:
            return
        if self._broker.congested() and not self.session.relieves():
            self._broker.turns.when_relieved(self._relieved)
        elif not self.full():
            self.paused = False
            self.heard_at = self._loop.time()
            self._watch()
            if self.session.half_frame():
                self._take(b"")

    def resume(self) -> None:
        if self.paused:
            self._relieved()
        elif not self._closing:
            self._take(b"")

    def traffic(self) -> tuple[int, int] | None:
        """Bytes received and sent since it connected; None if unknown."""
        return count_traffic(self._sock)

    def full(self) -> bool:
        """Whether too many bytes wait for the peer, so that no more requests are read."""
        return self._kept_bytes - self._held_bytes > self._options.control_bytes_max

    # Writing

    def write(self, data: bytes) -> None:
        """Sends an answer of the session's, in order with everything else."""
        if self._closing:
            return
        if self.blocked:
            self._keep(data)
            return
        try:
            sent = self.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as fault:
            self.lost(fault)
            return
        if sent != len(data):
            self.hold(data, sent)

    def hold(self, piece: SendBuffer, sent: int) -> None:
        self._keep(memoryview(piece)[sent:])
        self._held_bytes += len(piece) - sent
        self._block()

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        buffers: list[SendBuffer] = [*pieces]
        if self.feed is not subscription:
            buffers.insert(0, self.session.marker(subscription))
            self.feed = subscription
        self.stream(buffers)

    def stream(self, buffers: list[SendBuffer]) -> None:
        """Sends buffers of a stream: what waits of it does not keep the peer's requests waiting."""
        before = self._kept_bytes
        self.respond(buffers)
        self._held_bytes += self._kept_bytes - before

    def respond(self, buffers: list[SendBuffer]) -> None:
        """Sends several buffers in one go, in order with everything else."""
        if self._closing:
            return
        sent = 0
        if not self.blocked:
            try:
                sent = self._sock.sendmsg(buffers)
            except BlockingIOError:
                pass
            except OSError as fault:
                self.lost(fault)
                return
        for buffer in buffers:
            if sent < len(buffer):
                self._keep(memoryview(buffer)[sent:])
                sent = 0
            else:
                sent -= len(buffer)
        if self._kept:
            self._block()

    def _keep(self, data: SendBuffer) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)

    def _block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self._context.run(self._loop.add_writer, self._fd, self._writable)

    def _writable(self) -> None:
        try:
            sent = self._sock.sendmsg(list(islice(self._kept, _VECTORS_MAX)))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._kept_bytes -= sent
        # Kept messages come before the answers that were written after them.
        self._held_bytes = max(0, self._held_bytes - sent)
        while sent:
            first = self._kept[0]
            if sent < len(first):
                self._kept[0] = memoryview(first)[sent:]
                return
            sent -= len(first)
            self._kept.popleft()
        if self._kept:
            return
        self._loop.remove_writer(self._fd)
        if self._closing:
            self._shut()
            return
        self.blocked = False
        if self.paused:
            self._relieved()
        self._broker.resume(self)

    @property
    def closing(self) -> bool:
        """Whether it is about to end."""
        return self._closing

    @property
    def age_seconds(self) -> float:
        """How long it has been open."""
        return self._loop.time() - self.since

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._kept_bytes

    # Ending

    def lost(self, fault: Exception) -> None:
        """Ends the connection after the pass that noticed."""
        self.blocked = True
        self._why = str(fault)
        self._loop.call_soon(self.close)

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        """Sends the reason, then closes. The peer's last bytes are read and dropped for a moment;
        otherwise the close would overtake the message."""
        if self._closing:
            return
        self._why = f"cut off ({error.code}): {error}"
        self.write(self.session.farewell(error, subscription))
        self.finish(self._why)

    def finish(self, why: str = "the broker closed") -> None:
        """Closes when everything written was sent."""
        if self._closing:
            return
        self._why = why
        self._closing = True
        self.session.closed()
        if self.paused:
            self.paused = False
            self._watch()
        if not self.blocked:
            self.blocked = True
            self._shut()
        self._lingering = self._loop.call_later(_LINGER_SECONDS, self.close)

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """Ends the connection now."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._fd = -1
        self.blocked = True
        if not self._closing:
            self._closing = True
            self.session.closed()
        if self._lingering is not None:
            self._lingering.cancel()
        self._kept.clear()
        if logger.isEnabledFor(logging.DEBUG):
            traffic = describe_traffic(self._sock)
            logger.debug("%s: disconnected: %s%s", self.peer, self._why, traffic)
        self._sock.close()
        self._host.forget(self)
        self._let_go()

    def _let_go(self) -> None:
        """Breaks the reference cycles of a closed connection, so that it is freed at once."""
        self.session = _ENDED
        self.feed = None
        self.waiting = []
