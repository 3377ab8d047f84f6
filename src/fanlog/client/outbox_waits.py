"""How publishing waits under asyncio: for a topic to be opened, for room, and for answers. A
client's publisher and a transaction's stager have one of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fanlog.client.core.client_outbox import ClientOutbox
from fanlog.client.core.outbox import PartitionOutbox
from fanlog.client.core.topic_outbox import TopicOutbox


class TopicOpenings:
    """Opens each topic once, however many callers wait for it."""

    def __init__(
        self, outbox: ClientOutbox, open_topic: Callable[[str], Awaitable[TopicOutbox]]
    ) -> None:
        self._outbox = outbox
        self._open_topic = open_topic
        self._opening: dict[str, asyncio.Future[TopicOutbox]] = {}

    def begin(self, name: str) -> asyncio.Future[TopicOutbox]:
        """The outbox has the topic before callbacks of this future are called."""

        def opened(opening: asyncio.Future[TopicOutbox]) -> None:
            self._opening.pop(name, None)
            if not opening.cancelled() and opening.exception() is None:
                self._outbox.topics[name] = opening.result()

        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.ensure_future(self._open_topic(name))
            opening.add_done_callback(opened)
        return opening


class OutboxWaits:
    """Wakes those who wait for an outbox, whenever it has `changed`."""

    def __init__(self, outbox: ClientOutbox) -> None:
        self._outbox = outbox
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._answers: asyncio.Event = asyncio.Event()

    def changed(self) -> None:
        outbox = self._outbox
        self._answers.set()
        if outbox.buffered_bytes < outbox.buffer_bytes_max:
            self._room.set()
        if outbox.buffered_bytes <= 0:
            self._idle.set()

    async def room(self) -> None:
        """Waits until the buffer has room again."""
        while self._outbox.buffered_bytes >= self._outbox.buffer_bytes_max:
            self._room.clear()
            await self._room.wait()

    async def idle(self) -> None:
        """Waits until everything is answered."""
        while self._outbox.buffered_bytes > 0:
            self._idle.clear()
            await self._idle.wait()

    async def while_true(self, condition: Callable[[], bool]) -> None:
        """Waits as long as this is true. It is checked after every answer."""
        while condition():
            self._answers.clear()
            await self._answers.wait()


def due_later(
    client: ClientOutbox, linger_ms: float, topic: TopicOutbox, outbox: PartitionOutbox
) -> None:
    """Calls `due` when the batch has lingered."""
    loop = asyncio.get_running_loop()
    if linger_ms > 0:
        loop.call_later(linger_ms / 1000, client.due, topic, outbox)
    else:
        loop.call_soon(client.due, topic, outbox)
