"""The common part of listeners on TCP: accepts connections up to a limit, watches them, drains and
closes. The protocol decides on messages to peers, and when a peer is overdue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from abc import abstractmethod
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from fanlog.broker.broker_core import BrokerCore
from fanlog.config import ListenerOptions
from fanlog.errors import FanlogError
from fanlog.listeners.accepting import Acceptor
from fanlog.listeners.admission import Admission
from fanlog.listeners.listed_peers import ShownSession, TcpPeer
from fanlog.listeners.socket_connection import ConnectionSession, SocketConnection
from fanlog.listeners.tls import RECORD_BYTES
from fanlog.telemetry.callers import context_of

logger = logging.getLogger("fanlog.listeners")

_SWEEP_SECONDS = 1.0
_FAREWELL_SECONDS = 0.5
# One step of work that goes over all connections.
_STEP_SECONDS = 0.002


class ServedSession(ConnectionSession, ShownSession, Protocol):
    """A listener's entry for each of its connections."""


S = TypeVar("S", bound=ServedSession)


class TcpListener(Acceptor, Generic[S]):
    """One address, and the connections that came to it."""

    def __init__(self, broker: BrokerCore, options: ListenerOptions, admission: Admission) -> None:
        super().__init__(options.host, options.port, options.connections_max, admission)
        self.broker = broker
        self.options = options
        self._connections: dict[SocketConnection, S] = {}
        self._half_frames: dict[SocketConnection, tuple[int, float]] = {}
        self._last_gone: asyncio.Event | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._sweeping = False
        self.inlet = memoryview(bytearray(options.receive_bytes))

    @abstractmethod
    def admit(self, sock: socket.socket, peer: str) -> tuple[SocketConnection, S]:
        """A connection and its session."""

    @abstractmethod
    def overdue(self, connection: SocketConnection, session: S, now: float) -> FanlogError | None:
        """Why to evict the peer, or None."""

    def open(self) -> None:
        """Starts listening. `host` and `port` then have the address."""
        super().open()
        if self.secure and len(self.inlet) < RECORD_BYTES:
            self.inlet = memoryview(bytearray(RECORD_BYTES))
        self._swept_at = self.loop.time()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def connection_count(self) -> int:
        return len(self._connections)

    def let_in(self, sock: socket.socket, peer: str) -> None:
        self.open_connection(*self.admit(sock, peer))

    def open_connection(self, connection: SocketConnection, session: S) -> None:
        """Serves a connection from now on. Raises OSError if it is gone already."""
        self._connections[connection] = session
        self._admission.came(connection.peer)
        self.broker.connections += 1
        self.log_connected(connection.peer)
        try:
            connection.open(session, context_of(session.permit))
        except OSError:
            connection.close()
            raise

    def peers(self) -> Iterator[TcpPeer]:
        """The connections, for operators. Those that were handed in are shown by their workers."""
        if self.is_handed_in:
            return
        now_us = self.broker.now_us()
        for connection, session in list(self._connections.items()):
            if connection in self._connections and not connection.closing:
                yield TcpPeer(connection, session, self.name, now_us)

    def forget(self, connection: SocketConnection) -> None:
        self._half_frames.pop(connection, None)
        if self._connections.pop(connection, None) is not None:
            self._admission.went(connection.peer)
            self.broker.connections -= 1
        if not self._connections and self._last_gone is not None:
            self._last_gone.set()

    def _sweep(self) -> None:
        """Evicts peers that are overdue. Not if the loop itself was stalled: bytes that arrived
        meanwhile are read before the next check."""
        now = self.loop.time()
        stalled = now - self._swept_at > 2 * _SWEEP_SECONDS
        self._swept_at = now
        if not stalled and not self._sweeping:
            # There may be very many connections: in slices, and one sweep at a time.
            self._sweeping = True
            self.broker.slices.in_slices(self._evicting_overdue(now), self._end_sweep)
        self.swept(now)
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _evicting_overdue(self, now: float) -> Iterator[None]:
        for connection, session in list(self._connections.items()):
            if connection in self._connections:
                fault = self.overdue(connection, session, now)
                if fault is not None:
                    connection.evict(fault)
            yield

    def _end_sweep(self) -> None:
        self._sweeping = False

    def swept(self, now: float) -> None:
        """Further checks, once a second."""

    def recheck(self) -> None:
        """Permissions have changed: checks every connection again, in slices."""
        self.broker.slices.in_slices(self._rechecking())

    def _rechecking(self) -> Iterator[None]:
        for connection, session in list(self._connections.items()):
            if connection in self._connections:
                fault = session.recheck()
                if fault is not None:
                    connection.evict(fault)
            yield

    def drags_on(
        self, connection: SocketConnection, frame: int, now: float, seconds_max: float
    ) -> bool:
        """Whether the same frame was incomplete for too long, even if bytes keep arriving."""
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
        self.stop_accepting()
        await self._with_each(lambda connection, _: connection.read_rest())
        await self._with_each(lambda _, session: session.drain())
        while self.loop.time() < deadline and (  # noqa: ASYNC110 - two counters, no event
            self.broker.turns.pending_bytes()
            or any(connection.kept_bytes for connection in self._connections)
        ):
            await asyncio.sleep(0.01)
        await self._close_stuck()

    async def _with_each(self, act: Callable[[SocketConnection, S], None]) -> None:
        """Does something with all connections. After every few of them it is everybody's turn."""
        until = perf_counter() + _STEP_SECONDS
        for connection, session in list(self._connections.items()):
            if connection in self._connections:
                act(connection, session)
                if perf_counter() > until:
                    await asyncio.sleep(0)
                    until = perf_counter() + _STEP_SECONDS

    async def _close_stuck(self) -> None:
        """Closes connections whose peers did not take everything in time: they would use up the
        moment that `close` gives to the others."""
        stuck = sum(1 for connection in self._connections if connection.kept_bytes)
        if stuck:
            logger.warning(
                "%d peers did not take what was theirs within listener.drain_seconds: they are cut",
                stuck,
            )

        def close(connection: SocketConnection, session: S) -> None:
            if connection.kept_bytes:
                connection.close()

        await self._with_each(close)

    def settings_changed(self) -> None:
        """Settings have changed: all that are live are read when they are used."""

    async def close(self) -> None:
        """Closes all connections. Each peer gets a moment to close its end first."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._with_each(lambda connection, _: connection.finish())
        if self._connections:
            self._last_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await self._last_gone.wait()
        await self._with_each(lambda connection, _: connection.close())
