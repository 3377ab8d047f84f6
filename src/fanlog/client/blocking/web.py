"""Browsers for the blocking client: what `client/web.py` does, on the client's own loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanlog.client import web
from fanlog.client.blocking.loop import LoopThread
from fanlog.model import PresenceInfo, Receipt, WebConnectionInfo

if TYPE_CHECKING:
    from fanlog.client.publishing import Headers, Value
    from fanlog.client.values import Encoding


class BlockingWeb:
    """`client.web`; see the asyncio client."""

    def __init__(self, loop: LoopThread, behind: web.Web) -> None:
        self._loop = loop
        self._web = behind

    def send_to_user(
        self,
        user: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
        user_topic: str = "user.{user}",
    ) -> Receipt:
        return self._loop.call(
            self._web.send_to_user(
                user, value, key=key, headers=headers, encoding=encoding, user_topic=user_topic
            )
        )

    def broadcast(
        self,
        pattern: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
    ) -> list[Receipt]:
        return self._loop.call(
            self._web.broadcast(pattern, value, key=key, headers=headers, encoding=encoding)
        )

    def disconnect(
        self,
        user: str = "",
        *,
        connection: str = "",
        reason: str = "",
        reconnect: bool = False,
        timeout_seconds: float = 2.0,
    ) -> int:
        return self._loop.call(
            self._web.disconnect(
                user,
                connection=connection,
                reason=reason,
                reconnect=reconnect,
                timeout_seconds=timeout_seconds,
            )
        )

    def connections(
        self, *, user: str | None = None, timeout_seconds: float = 2.0
    ) -> Iterator[WebConnectionInfo]:
        return self._loop.each(self._web.connections(user=user, timeout_seconds=timeout_seconds))

    def presence(self, topic: str, *, timeout_seconds: float = 2.0) -> PresenceInfo:
        return self._loop.call(self._web.presence(topic, timeout_seconds=timeout_seconds))
