"""Small signals between the processes of one Fanlog bus: a topic in memory for each channel. They
are live only, and what nobody hears is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from fanlog.errors import ClosedError, FanlogError
from fanlog.model import INBOX_PREFIX

if TYPE_CHECKING:
    from fanlog.client.aio import Client
    from fanlog.listeners.web.ports import Hear
    from fanlog.model import Gap

logger = logging.getLogger("fanlog.listeners")

# Like an inbox: no pattern finds it, and it goes when nobody reads it any more.
_PREFIX = f"{INBOX_PREFIX}signals."
# Signals on their way. A bus that takes none must not fill the memory.
_PENDING_MAX = 10_000
_PAUSE_SECONDS = 0.5


class Signals:
    """Tells and hears through a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hearers: dict[str, list[Hear]] = {}
        self._opened = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0

    def open(self) -> None:
        """The client is connected: from now on signals are heard."""
        if not self._opened:
            self._opened = True
            for channel in self._hearers:
                self._in_task(self._listen(channel))

    async def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_signal(self, channel: str, hear: Hear) -> None:
        known = channel in self._hearers
        self._hearers.setdefault(channel, []).append(hear)
        if not known and self._opened:
            self._in_task(self._listen(channel))

    def signal(self, channel: str, data: bytes) -> None:
        if self._closed or not self._opened or len(self._tasks) >= _PENDING_MAX:
            self.dropped += 1
            return
        self._in_task(self._publish(channel, data))

    async def _publish(self, channel: str, data: bytes) -> None:
        try:
            await self._client.publish(f"{_PREFIX}{channel}", data)
        except FanlogError as fault:
            self.dropped += 1
            logger.debug("a signal on %s was not sent: %s", channel, fault)

    async def _listen(self, channel: str) -> None:
        while not self._closed:
            try:
                listening = self._client.subscribe(
                    f"{_PREFIX}{channel}", policy="skip", on_gap=self._missed
                )
                async with listening:
                    async for message in listening:
                        self._hear(channel, message.value or b"")
            except ClosedError:
                return
            except FanlogError as fault:
                logger.info("signals on %s are not heard for now: %s", channel, fault)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _missed(self, gap: Gap) -> None:
        self.dropped += max(0, gap.next - gap.first)

    def _hear(self, channel: str, data: bytes) -> None:
        for hear in self._hearers[channel]:
            try:
                hear(data)
            except Exception:
                logger.exception("a signal on %s was not understood", channel)

    def _in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
