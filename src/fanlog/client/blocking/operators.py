"""The same for plain code: who is connected, and to close connections."""

from __future__ import annotations

from collections.abc import Iterator

from fanlog.client import operators
from fanlog.client.blocking.loop import LoopThread
from fanlog.model import ConnectionInfo


class BlockingConnections:
    """Open connections of one process. It is `client.connections`; see the asyncio client."""

    def __init__(self, loop: LoopThread, asked: operators.Connections) -> None:
        self._loop = loop
        self._connections = asked

    def list(
        self,
        *,
        user: str | None = None,
        address: str = "",
        listener: str = "",
        requests: bool = False,
    ) -> Iterator[ConnectionInfo]:
        return self._loop.each(
            self._connections.list(user=user, address=address, listener=listener, requests=requests)
        )

    def close(
        self,
        id: str = "",
        *,
        user: str | None = None,
        address: str = "",
        listener: str = "",
        reason: str = "",
        reconnect: bool = False,
    ) -> tuple[ConnectionInfo, ...]:
        return self._loop.call(
            self._connections.close(
                id,
                user=user,
                address=address,
                listener=listener,
                reason=reason,
                reconnect=reconnect,
            )
        )
