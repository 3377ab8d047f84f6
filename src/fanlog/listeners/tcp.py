"""What every listener on TCP does: accepts connections up to a limit, watches over them, drains
and closes. What a peer is told, and when it is overdue, is the protocol's own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from fanlog.broker.core import Broker
from fanlog.config import ListenerOptions
from fanlog.errors import FanlogError, allow_more
from fanlog.listeners.admission import Admission
from fanlog.listeners.faults import listen_error
from fanlog.listeners.pump import Connection, Session

logger = logging.getLogger("fanlog.listeners")

_BACKLOG = 4096
_ACCEPTS_A_TURN = 128
_SWEEP_SECONDS = 1.0
_FAREWELL_SECONDS = 0.5
_ACCEPT_PAUSE_SECONDS = 0.2
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)

S = TypeVar("S", bound=Session)


class TcpListener(ABC, Generic[S]):
    """One address, and the connections that came to it."""

    protocol: ClassVar[str]
    section: ClassVar[str]
    port_flag: ClassVar[str]
    host_option: ClassVar[str]

    def __init__(self, broker: Broker, options: ListenerOptions, admission: Admission) -> None:
        self.broker = broker
        self.options = options
        self._admission = admission
        self._accept_fault = ""
        self._connections: dict[Connection, S] = {}
        self._sock: socket.socket | None = None
        self._half_frames: dict[Connection, tuple[int, float]] = {}
        self._last_gone: asyncio.Event | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self.loop: asyncio.AbstractEventLoop
        self.inlet = memoryview(bytearray(options.receive_bytes))
        self.host = options.host
        self.port = options.port

    @abstractmethod
    def admit(self, sock: socket.socket, peer: str) -> tuple[Connection, S]:
        """A connection and its session."""

    @abstractmethod
    def refusal(self, reason: str) -> bytes:
        """What a peer is told that comes when there are as many as there may be."""

    @abstractmethod
    def overdue(self, connection: Connection, session: S, now: float) -> FanlogError | None:
        """Why the peer is to be turned out, if it is."""

    def open(self) -> None:
        """Listens; `host` and `port` then say where."""
        self.loop = asyncio.get_running_loop()
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            sock = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as fault:
            raise listen_error(
                fault,
                self.host,
                self.port,
                port_flag=self.port_flag,
                host_option=self.host_option,
            ) from fault
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self._sock = sock
        self.loop.add_reader(sock.fileno(), self._accept)
        self._swept_at = self.loop.time()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self._sock is None:
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                self._pause_accepting(fault)
                return
            if self._accept_fault:
                self._accept_fault = ""
                logger.warning("connections to port %d are accepted again", self.port)
            try:
                self._welcome(sock, f"{address[0]}:{address[1]}")
            except OSError as fault:
                # The peer is gone already, or the system has no memory for it.
                logger.debug("a connection to port %d failed at once: %s", self.port, fault)
                sock.close()

    def _pause_accepting(self, fault: OSError) -> None:
        """The socket stays readable as long as somebody waits: without a pause the loop would do
        nothing else. It is logged once, however long it lasts."""
        assert self._sock is not None
        if str(fault) != self._accept_fault:
            self._accept_fault = str(fault)
            advice = (
                " Raise the limit of open files (ulimit -n)."
                if fault.errno in _TOO_MANY_OPEN
                else ""
            )
            logger.warning("port %d accepts no connection for now: %s.%s", self.port, fault, advice)
        self.loop.remove_reader(self._sock.fileno())
        self.loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again)

    def _accept_again(self) -> None:
        if self._sock is not None:
            self.loop.add_reader(self._sock.fileno(), self._accept)

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        reason = self._reason_against_one_more()
        if reason:
            logger.debug("%s: refused: %s", peer, reason)
            with contextlib.suppress(OSError):
                sock.send(self.refusal(reason))
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection, session = self.admit(sock, peer)
        self._connections[connection] = session
        self._admission.connections += 1
        self.broker.connections += 1
        logger.debug(
            "%s: connected to the %s port %d; it has %d connections",
            peer,
            self.protocol,
            self.port,
            len(self._connections),
        )
        try:
            connection.open(session)
        except OSError:
            connection.close()
            raise

    def _reason_against_one_more(self) -> str:
        connections = len(self._connections)
        if connections >= self.options.connections_max:
            section = type(self).section
            return f"this listener has {connections}, as many as it may. Close some. " + allow_more(
                f"{section}.connections_max"
            )
        return self._admission.reason_against_one_more()

    def forget(self, connection: Connection) -> None:
        self._half_frames.pop(connection, None)
        if self._connections.pop(connection, None) is not None:
            self._admission.connections -= 1
            self.broker.connections -= 1
        if not self._connections and self._last_gone is not None:
            self._last_gone.set()

    def _sweep(self) -> None:
        """Turns out peers that are overdue. Not if the loop itself was stalled: what they have
        sent meanwhile is read before the next look."""
        now = self.loop.time()
        stalled = now - self._swept_at > 2 * _SWEEP_SECONDS
        self._swept_at = now
        for connection, session in () if stalled else list(self._connections.items()):
            fault = self.overdue(connection, session, now)
            if fault is not None:
                connection.turn_out(fault)
        self.swept(now)
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def swept(self, now: float) -> None:
        """What else is looked after once a second."""
        self.broker.fan_out.sweep()

    def drags_on(self, connection: Connection, frame: int, now: float, seconds_max: float) -> bool:
        """Whether the same frame has been half here for too long, however it drips in."""
        known, since = self._half_frames.get(connection, (0, now))
        if not frame:
            self._half_frames.pop(connection, None)
        elif frame != known:
            self._half_frames[connection] = (frame, now)
        return frame == known != 0 and now - since > seconds_max

    async def drain(self, deadline: float) -> None:
        """Stops accepting, takes what has been sent, tells the clients, and waits until they
        have got what is theirs, or until `deadline` on the loop's clock. All listeners drain at
        the same time, by one deadline."""
        self._stop_accepting()
        for connection in list(self._connections):
            connection.read_rest()
        for session in list(self._connections.values()):
            session.drain()
        while self.loop.time() < deadline and (  # noqa: ASYNC110 - two counters, no event
            self.broker.commits.pending_bytes()
            or any(connection.kept_bytes for connection in self._connections)
        ):
            await asyncio.sleep(0.01)
        self._close_stuck()

    def _close_stuck(self) -> None:
        """Closes connections whose peers did not take everything in time: they would use up the
        moment that `close` gives to the others."""
        stuck = [connection for connection in self._connections if connection.kept_bytes]
        if stuck:
            logger.warning(
                "%d peers did not take what was theirs within listener.drain_seconds: they are cut",
                len(stuck),
            )
        for connection in stuck:
            connection.close()

    async def close(self) -> None:
        """Closes all connections. Each peer gets a moment to close its end first."""
        self._stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            self._last_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await self._last_gone.wait()
        for connection in list(self._connections):
            connection.close()

    def _stop_accepting(self) -> None:
        if self._sock is not None:
            self.loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
