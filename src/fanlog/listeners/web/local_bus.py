"""The bus of a web listener that belongs to a broker: the broker itself. Requests go through a
client in the same process; subscriptions read the broker's own topics."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fanlog.client.aio import Client
from fanlog.config import ClientOptions
from fanlog.listeners.web.ports import Hear, Incoming, Outgoing, Published
from fanlog.listeners.web.signals import Signals

if TYPE_CHECKING:
    from fanlog.broker.core import Broker
    from fanlog.client.link import Dial

# It is in the same process: what waits is sent at the end of the turn.
_OPTIONS = ClientOptions(name="web", linger_ms=0)


class LocalBus:
    """The broker as a bus."""

    name = "fanlog"

    def __init__(self, core: Broker, dial: Dial) -> None:
        self.process = secrets.token_hex(8)
        self.core = core
        self.up = True
        self.on_state: list[Callable[[bool], None]] = []
        self.client = Client(dial, _OPTIONS, verify=False)
        self._signals = Signals(self.client)

    async def open(self) -> None:
        await self.client.open()
        self._signals.open()

    async def close(self) -> None:
        await self._signals.close()
        await self.client.close()

    async def follow(self, target: str, *, wildcard: bool) -> None:
        """The broker has its topics anyway."""

    def unfollow(self, target: str, *, wildcard: bool) -> None: ...

    async def publish(
        self, topic: str, messages: Sequence[Outgoing], *, dedupe: str = ""
    ) -> list[Published]:
        receipts = await asyncio.gather(
            *(
                self.client.publish(
                    topic,
                    message.value,
                    key=message.key,
                    headers=message.headers or None,
                    partition=message.partition,
                )
                for message in messages
            )
        )
        return [Published(r.topic, r.partition, r.offset) for r in receipts]

    async def request(self, topic: str, message: Outgoing, timeout_seconds: float) -> Incoming:
        answer = await self.client.request(
            topic,
            message.value,
            timeout_seconds=timeout_seconds,
            key=message.key,
            headers=message.headers or None,
        )
        headers = {name: bytes(value) for name, value in answer.headers.items()}
        return Incoming(answer.value, headers)

    def signal(self, channel: str, data: bytes) -> None:
        self._signals.signal(channel, data)

    def on_signal(self, channel: str, hear: Hear) -> None:
        self._signals.on_signal(channel, hear)
