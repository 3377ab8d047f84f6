"""The native listener: accepts connections, watches over the silent ones, and drains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket

from fanlog.broker.core import Broker
from fanlog.config import ListenerOptions
from fanlog.errors import ConfigError, FanlogError, ProtocolError, TooManyConnectionsError
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import Failure
from fanlog.listeners.native import NativeSession
from fanlog.listeners.pump import Connection

logger = logging.getLogger("fanlog.listeners")

_BACKLOG = 4096
_ACCEPTS_A_TURN = 128
_SWEEP_SECONDS = 1.0
_FAREWELL_SECONDS = 0.5
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class NativeListener:
    """`fanlog://` on one address."""

    def __init__(self, broker: Broker, options: ListenerOptions) -> None:
        self.broker = broker
        self.options = options
        self._connections: dict[Connection, NativeSession] = {}
        self._sock: socket.socket | None = None
        self._half_frames: dict[Connection, tuple[int, float]] = {}
        self._last_gone: asyncio.Event | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.loop: asyncio.AbstractEventLoop
        self.inlet = memoryview(bytearray(options.receive_bytes))
        self.host = options.host
        self.port = options.port

    def open(self) -> None:
        """Listens; `host` and `port` then say where."""
        self.loop = asyncio.get_running_loop()
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            sock = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as fault:
            here = isinstance(fault, OSError) and fault.errno == errno.EADDRINUSE
            advice = (
                "Stop what uses the port, or choose another with --port."
                if here
                else "Choose an address of this machine with --host, such as 127.0.0.1."
            )
            raise ConfigError(
                f"Can't listen on {self.host} port {self.port}: {fault}. {advice}"
            ) from fault
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self._sock = sock
        self.loop.add_reader(sock.fileno(), self._accept)
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
                if fault.errno not in _EXHAUSTED:
                    raise
                logger.error("no connection can be accepted for now: %s", fault)
                self.loop.remove_reader(self._sock.fileno())
                self.loop.call_later(_SWEEP_SECONDS, self._accept_again)
                return
            self._welcome(sock, f"{address[0]}:{address[1]}")

    def _accept_again(self) -> None:
        if self._sock is not None:
            self.loop.add_reader(self._sock.fileno(), self._accept)

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        if len(self._connections) >= self.options.connections_max:
            self._turn_away(sock)
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock, peer, self)
        session = NativeSession(self.broker, connection, self.options)
        self._connections[connection] = session
        self.broker.connections += 1
        connection.open(session)

    def _turn_away(self, sock: socket.socket) -> None:
        error = TooManyConnectionsError(
            f"The broker has {len(self._connections)} connections, as many as connections_max "
            "allows. Close some, or raise the limit."
        )
        with contextlib.suppress(OSError):
            sock.send(message_frame(FrameKind.ERROR, Failure(error.code, str(error))))
        sock.close()

    def forget(self, connection: Connection) -> None:
        self._half_frames.pop(connection, None)
        if self._connections.pop(connection, None) is not None:
            self.broker.connections -= 1
        if not self._connections and self._last_gone is not None:
            self._last_gone.set()

    def _sweep(self) -> None:
        """Turns out peers that never said hello, stopped in the middle of a frame, or went
        silent."""
        now = self.loop.time()
        for connection, session in list(self._connections.items()):
            fault = self._overdue(connection, session, now)
            if fault is not None:
                connection.turn_out(fault)
        self.broker.fan_out.sweep()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _overdue(
        self, connection: Connection, session: NativeSession, now: float
    ) -> FanlogError | None:
        options = self.options
        silent = now - connection.heard_at
        if not session.greeted():
            if now - connection.since > options.hello_timeout_seconds:
                return ProtocolError(
                    f"No hello within {options.hello_timeout_seconds} s (hello_timeout_seconds)."
                )
        elif connection.paused:
            return None  # it is we who do not listen
        elif self._drags_on(connection, session.half_frame(), now):
            return ProtocolError(
                f"A frame was begun and not ended within {options.frame_timeout_seconds} s "
                "(frame_timeout_seconds)."
            )
        elif silent > options.idle_timeout_seconds:
            return ProtocolError(
                f"Nothing was heard for {options.idle_timeout_seconds} s "
                "(idle_timeout_seconds): a client must ping."
            )
        return None

    def _drags_on(self, connection: Connection, frame: int, now: float) -> bool:
        """Whether the same frame has been half here for too long, however it drips in."""
        known, since = self._half_frames.get(connection, (0, now))
        if not frame:
            self._half_frames.pop(connection, None)
        elif frame != known:
            self._half_frames[connection] = (frame, now)
        return frame == known != 0 and now - since > self.options.frame_timeout_seconds

    async def drain(self) -> None:
        """Stops accepting, takes what has been sent, tells the clients, and waits until they
        have got what is theirs, up to `drain_seconds`."""
        self._stop_accepting()
        for connection in list(self._connections):
            connection.read_rest()
        for session in list(self._connections.values()):
            session.drain()
        deadline = self.loop.time() + self.options.drain_seconds
        while self.loop.time() < deadline and (  # noqa: ASYNC110 - two counters, no event
            self.broker.commits.pending_bytes()
            or any(connection.kept_bytes for connection in self._connections)
        ):
            await asyncio.sleep(0.01)

    async def close(self) -> None:
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
