"""Operators' calls: list and close connections, and read all metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.model import ConnectionInfo

_PAGE = 500


class OperatorsHost(Protocol):
    """The client, as far as operators' calls need it."""

    async def ask(self, kind: FrameKind, message: msgspec.Struct) -> bytes: ...


class Connections:
    """Open connections of one process, on all its listeners. It is `client.connections`, and needs
    the permission `admin`.

    >>> async for one in client.connections.list(user="ann"):  # doctest: +SKIP
    ...     print(one.id, one.address, one.behind_messages)
    """

    def __init__(self, host: OperatorsHost) -> None:
        self._host = host

    async def list(
        self,
        *,
        user: str | None = None,
        address: str = "",
        listener: str = "",
        requests: bool = False,
    ) -> AsyncIterator[ConnectionInfo]:
        """Yields connections in the order of their ids: of a user, from an address, at a listener
        (`native`, `redis`, `web`), or all. With `requests`, it includes HTTP connections that only
        send requests.

        >>> found = [one async for one in client.connections.list()]
        """
        after = ""
        while True:
            page = await self._ask(
                messages.ConnectionsRequest(
                    user=user,
                    address=address,
                    listener=listener,
                    requests=requests,
                    after=after,
                    limit=_PAGE,
                )
            )
            for connection in page.connections:
                yield connection
            after = page.next
            if not after:
                return

    async def close(
        self,
        id: str = "",
        *,
        user: str | None = None,
        address: str = "",
        listener: str = "",
        reason: str = "",
        reconnect: bool = False,
    ) -> tuple[ConnectionInfo, ...]:
        """Closes the connection with an id, or all that match, and returns the closed ones.
        Browsers reconnect only with `reconnect`; other clients reconnect by themselves.

        >>> await client.connections.close(user="mallory", reason="banned")
        ()
        """
        page = await self._ask(
            messages.ConnectionsRequest(
                kind="close",
                id=id,
                user=user,
                address=address,
                listener=listener,
                reason=reason,
                reconnect=reconnect,
            )
        )
        return page.connections

    async def _ask(self, wanted: messages.ConnectionsRequest) -> messages.ConnectionPage:
        return decode(messages.ConnectionPage, await self._host.ask(FrameKind.CONNECTIONS, wanted))
