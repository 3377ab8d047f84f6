"""Connections of the native and the Redis listener, as operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from fanlog.broker.messages.topics import Cursor
from fanlog.errors import ConnectionLostError
from fanlog.identity import Identity
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.telemetry.callers import connection_id

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit


class ShownSession(Protocol):
    """The part of a session that is shown."""

    permit: Permit

    @property
    def client_name(self) -> str:
        """The client's name for itself."""
        ...

    def targets(self) -> Iterable[str]:
        """The subscribed topics and patterns."""
        ...

    def behind(self) -> Iterator[Cursor]:
        """Its cursors before the end."""
        ...


class TcpPeer:
    """One connection. It is created for each listing and not kept."""

    __slots__ = ("_connection", "_now_us", "_session", "transport")

    def __init__(
        self, connection: SocketConnection, session: ShownSession, transport: str, now_us: int
    ) -> None:
        self._connection = connection
        self._session = session
        self._now_us = now_us
        self.transport = transport

    @property
    def id(self) -> str:
        return connection_id(self._session.permit.who)

    @property
    def who(self) -> Identity:
        return self._session.permit.who

    @property
    def client(self) -> str:
        return self._session.client_name

    @property
    def since_us(self) -> int:
        return self._now_us - int(self._connection.age_seconds * 1e6)

    @property
    def waiting_bytes(self) -> int:
        return self._connection.kept_bytes

    def traffic(self) -> tuple[int, int] | None:
        return self._connection.traffic()

    def targets(self) -> Iterable[str]:
        return self._session.targets()

    def behind(self) -> Iterator[Cursor]:
        return self._session.behind()

    def close(self, reason: str, *, reconnect: bool) -> None:
        """Clients of these protocols reconnect by themselves, whatever the error."""
        why = f": {reason}" if reason else "."
        self._connection.evict(ConnectionLostError(f"An operator closed this connection{why}"))
