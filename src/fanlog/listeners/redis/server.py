"""The Redis listener: accepts connections on its port, and removes unused channels."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fanlog.errors import FanlogError, ProtocolError, TooManyConnectionsError
from fanlog.format.resp import PipelineReader
from fanlog.listeners.redis.peer import ServerState
from fanlog.listeners.redis.pubsub import PubSub
from fanlog.listeners.redis.session import RedisSession
from fanlog.listeners.socket_connection import SocketConnection, SocketConnectionHost
from fanlog.listeners.tcp import TcpListener

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.config import ListenerOptions, RedisOptions
    from fanlog.listeners.admission import Admission

_KEEPALIVE_SECONDS = 300


class RedisConnection(SocketConnection):
    """A connection whose session may hold commands back; it is not read meanwhile."""

    __slots__ = ("_proceeding", "redis")

    def __init__(self, sock: socket.socket, peer: str, host: SocketConnectionHost) -> None:
        super().__init__(sock, peer, host)
        self.redis: RedisSession | None = None
        self._proceeding = False

    def crowded(self) -> bool:
        return super().full()

    def full(self) -> bool:
        redis = self.redis
        if redis is not None and redis.busy():
            return True
        return bool(self._kept_bytes) and super().full()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    def proceed_soon(self) -> None:
        if not self._proceeding:
            self._proceeding = True
            self._loop.call_soon(self._proceed)

    def _proceed(self) -> None:
        self._proceeding = False
        if self._closing:
            return
        self._take(b"")
        if self.paused:
            self._relieved()

    def _writable(self) -> None:
        super()._writable()
        if not self.blocked and self.redis is not None and self.redis.busy():
            self.proceed_soon()

    def _let_go(self) -> None:
        super()._let_go()
        self.redis = None


class RedisListener(TcpListener[RedisSession]):
    """Redis's protocol on one address."""

    protocol: ClassVar[str] = "Redis"
    section: ClassVar[str] = "redis"
    port_flag: ClassVar[str] = "--redis-port"
    host_option: ClassVar[str] = "redis.host (fanlog.toml)"

    def __init__(
        self,
        broker: BrokerCore,
        shared: ListenerOptions,
        redis: RedisOptions,
        admission: Admission,
        *,
        create_topics: bool,
    ) -> None:
        options = msgspec.structs.replace(
            shared, host=redis.host, port=redis.port, connections_max=redis.connections_max
        )
        super().__init__(broker, options, admission)
        self._redis = redis
        self._create_topics = create_topics
        self._pipeline = PipelineReader()
        self.pubsub: PubSub
        self.state: ServerState

    def open(self) -> None:
        super().open()
        self.pubsub = self.make_pubsub()
        self.state = ServerState(self.broker, self._redis, self.loop.time)
        self.state.port = self.port

    def make_pubsub(self) -> PubSub:
        return PubSub(self.broker, self._redis, create_topics=self._create_topics)

    def make_session(self, connection: RedisConnection, peer: str, local: str) -> RedisSession:
        return RedisSession(
            self.pubsub, self.state, connection, self._pipeline, peer=peer, local=local
        )

    def admit(self, sock: socket.socket, peer: str) -> tuple[SocketConnection, RedisSession]:
        # Subscribers may be silent for days: the kernel finds out which of them are gone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        host, port = sock.getsockname()[:2]
        connection = RedisConnection(sock, peer, self)
        session = connection.redis = self.make_session(connection, peer, f"{host}:{port}")
        self.state.sessions[session.number] = session
        self.state.connections_received += 1
        if connection.certificate_names:
            session.certified(connection.certificate_names)
        return connection, session

    def refusal(self, error: TooManyConnectionsError) -> bytes:
        self.state.connections_rejected += 1
        return b"-ERR max number of clients reached: %b\r\n" % str(error).encode()

    def overdue(
        self, connection: SocketConnection, session: RedisSession, now: float
    ) -> FanlogError | None:
        """Evicts peers that stopped in the middle of a command, or do not log in. Silence is no
        fault here."""
        patience = self.options.hello_timeout_seconds
        if not session.trusted and now - connection.since > patience:
            return ProtocolError(
                f"No AUTH within {patience} s (listener.hello_timeout_seconds): a client must log "
                "in first."
            )
        limit = self._redis.command_timeout_seconds
        if connection.paused or not self.drags_on(connection, session.half_frame(), now, limit):
            return None
        return ProtocolError(
            f"Protocol error: a command was begun and not ended within {limit} s "
            "(redis.command_timeout_seconds)"
        )

    def swept(self, now: float) -> None:
        super().swept(now)
        self.pubsub.forget_idle(now)
