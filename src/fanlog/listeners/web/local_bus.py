"""The bus of a web listener that belongs to a broker: the broker itself. Requests go through a
client in the same process; subscriptions read the broker's own topics."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fanlog.client.aio import Client
from fanlog.client.core.once_core import OnceReceipt, OnceRecord
from fanlog.client.once import OncePublisher
from fanlog.client.signals import Signals
from fanlog.config import ClientOptions
from fanlog.errors import TopicNotFoundError
from fanlog.format.web_positions import print_position
from fanlog.listeners.web.long_poll import wait_for_more
from fanlog.listeners.web.ports import Hear, Incoming, MessageToPublish, Published

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.client.link import Dial

# It is in the same process: what waits is sent at the end of the turn.
_OPTIONS = ClientOptions(name="web", linger_ms=0)


def _published(stored: OnceReceipt) -> Published:
    receipt = stored.receipt
    position = print_position(receipt.offset + 1, stored.epoch, stored.number)
    return Published(receipt.topic, receipt.partition, receipt.offset, position)


class LocalBus:
    """The broker as a bus."""

    name = "fanlog"
    is_broker = True

    def __init__(self, core: BrokerCore, dial: Dial) -> None:
        self.process = secrets.token_hex(8)
        self.core = core
        self.up = True
        self.on_state: list[Callable[[bool], None]] = []
        self.client = Client(dial, _OPTIONS, verify=False)
        # Over the broker, so that edges hear them too.
        self._signals = Signals(self.client)
        self._once = OncePublisher(dial, _OPTIONS, verify=False)

    async def open(self) -> None:
        await self.client.open()
        await self._signals.open()

    async def close(self) -> None:
        await self._signals.close()
        await self._once.close()
        await self.client.close()

    async def follow(self, target: str, *, wildcard: bool) -> None:
        """The broker has its topics anyway."""

    def unfollow(self, target: str, *, wildcard: bool) -> None: ...

    def claim(self, topic: str, owner: str) -> None:
        if self.core.catalog.find(topic) is None:
            with suppress(TopicNotFoundError):
                self.core.open_topic(topic, create=True, owner=owner)

    async def publish(
        self, topic: str, messages: Sequence[MessageToPublish], *, dedupe: str = ""
    ) -> list[Published]:
        records = [OnceRecord(m.value, m.key, m.headers or None, m.partition) for m in messages]
        if dedupe:
            stored = await self._once.publish(dedupe, topic, records)
            return [_published(one) for one in stored]
        try:
            stored = await self.client.publish_each(topic, records)
        except TopicNotFoundError:
            # Another request's topic, which was deleted since. This one is no part of that: it
            # finds or makes the topic as the first one did.
            stored = await self.client.publish_each(topic, records)
        return [_published(one) for one in stored]

    async def wait_for_more(self, topic: str, offsets: Mapping[int, int], seconds: float) -> None:
        await wait_for_more(self.core, topic, offsets, seconds)

    async def request(
        self, topic: str, message: MessageToPublish, timeout_seconds: float
    ) -> Incoming:
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
        self._signals.send(channel, data)

    def on_signal(self, channel: str, hear: Hear) -> None:
        self._signals.on(channel, hear)
