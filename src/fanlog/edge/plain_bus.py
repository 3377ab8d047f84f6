"""The common part of the Redis and NATS buses: subscriptions read the mirrors, and messages go
through the upstream. There is no Fanlog client; functions that need one are not supported."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fanlog.edge.node import EdgeNode
from fanlog.listeners.web.long_poll import wait_for_more
from fanlog.listeners.web.ports import Hear, Incoming, MessageToPublish, Published

if TYPE_CHECKING:
    from fanlog.client.aio import Client


class Carrier(Protocol):
    """An upstream that messages go through."""

    async def follow(self, target: str, wildcard: bool) -> None: ...
    def unfollow(self, target: str, wildcard: bool) -> None: ...
    async def publish(
        self, name: str, messages: Sequence[MessageToPublish], dedupe: str
    ) -> list[Published]: ...


class PlainBus(ABC):
    """A bus without a Fanlog broker."""

    name = ""
    is_broker = False

    def __init__(self, node: EdgeNode, carrier: Carrier) -> None:
        self.process = secrets.token_hex(8)
        self.core = node.core
        self.up = node.up
        self.on_state: list[Callable[[bool], None]] = []
        self._carrier = carrier
        node.on_state.append(self._changed)

    @property
    def client(self) -> Client | None:
        return None

    async def open(self) -> None:  # noqa: B027
        """The node connects."""

    async def close(self) -> None:  # noqa: B027
        """The node disconnects."""

    def _changed(self, up: bool) -> None:
        self.up = up
        for hear in list(self.on_state):
            hear(up)

    async def follow(self, target: str, *, wildcard: bool) -> None:
        await self._carrier.follow(target, wildcard)

    def unfollow(self, target: str, *, wildcard: bool) -> None:
        self._carrier.unfollow(target, wildcard)

    async def publish(
        self, topic: str, messages: Sequence[MessageToPublish], *, dedupe: str = ""
    ) -> list[Published]:
        return await self._carrier.publish(topic, messages, dedupe)

    async def wait_for_more(self, topic: str, offsets: Mapping[int, int], seconds: float) -> None:
        await self._carrier.follow(topic, False)
        try:
            await wait_for_more(self.core, topic, offsets, seconds)
        finally:
            self._carrier.unfollow(topic, False)

    @abstractmethod
    async def request(
        self, topic: str, message: MessageToPublish, timeout_seconds: float
    ) -> Incoming: ...

    @abstractmethod
    def signal(self, channel: str, data: bytes) -> None: ...

    @abstractmethod
    def on_signal(self, channel: str, hear: Hear) -> None: ...
