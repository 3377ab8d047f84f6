"""Signals to all processes on a broker, and from them: small, live only, and lost without a
listener. Sending never waits: a signal that can't be sent now is dropped and counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, Unpack

from fanlog.client.core.receiving import OnGap
from fanlog.client.publishing import PublishOptions, Value
from fanlog.client.subscription import Subscription
from fanlog.errors import ClosedError, FanlogError, ForbiddenError
from fanlog.format.signals import SIGNALS_TOPIC
from fanlog.model import Receipt

logger = logging.getLogger("fanlog.client")

# Signals that wait to be sent. Past it the oldest are lost, as they would be on a bad network.
_WAITING_MAX = 4096
# Before it is tried again to hear.
_PAUSE_SECONDS = 0.5
# Signals that are on their way at a time.
_SENT_AT_ONCE = 256


class SignalClient(Protocol):
    """The client, as far as signals need it."""

    @property
    def state(self) -> Literal["connected", "reconnecting", "closed"]: ...
    async def publish(
        self, topic: str, value: Value, **options: Unpack[PublishOptions]
    ) -> Receipt: ...
    def subscribe(self, topic: str, *, policy: str, on_gap: OnGap | None) -> Subscription: ...


class Signals:
    """Call `on` before `open` or after it. `lost` counts dropped signals."""

    def __init__(self, client: SignalClient) -> None:
        self._client = client
        self._hearers: dict[str, list[Callable[[bytes], None]]] = {}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._wake = asyncio.Event()
        self._opened = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.lost = 0

    def on(self, channel: str, hear: Callable[[bytes], None]) -> None:
        """Calls `hear` with each signal of a channel."""
        self._hearers.setdefault(channel, []).append(hear)

    def send(self, channel: str, data: bytes) -> None:
        """Sends a signal to all listeners of the channel, this program too."""
        if len(self._waiting) >= _WAITING_MAX:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append((channel, data))
        self._wake.set()

    async def open(self) -> None:
        """Receives signals from now on, or as soon as the broker can be reached. Raises an error if
        that is not permitted."""
        hearing = asyncio.create_task(self._hearing())
        self._tasks = [hearing, asyncio.create_task(self._sending())]
        if self._client.state == "connected":
            opened = asyncio.create_task(self._opened.wait())
            await asyncio.wait([hearing, opened], return_when=asyncio.FIRST_COMPLETED)
            opened.cancel()
            if hearing.done():
                await self.close()
                hearing.result()

    async def close(self) -> None:
        """Sends waiting signals as far as possible at once, and stops."""
        if self._tasks and self._waiting and self._client.state == "connected":
            with contextlib.suppress(FanlogError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._send_some()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hearing(self) -> None:
        while self._client.state != "closed":
            try:
                hearing = self._client.subscribe(
                    SIGNALS_TOPIC, policy="skip", on_gap=lambda gap: None
                )
                async with hearing:
                    self._opened.set()
                    async for message in hearing:
                        self._hear((message.key or b"").decode(errors="replace"), message.value)
            except (ClosedError, ForbiddenError):
                if not self._opened.is_set():
                    raise
                return
            except FanlogError as fault:
                logger.info("signals can't be received for now: %s", fault)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _hear(self, channel: str, data: bytes | None) -> None:
        for hear in self._hearers.get(channel, ()):
            try:
                hear(data or b"")
            except Exception:
                logger.exception("a signal of %s was not understood", channel)

    async def _sending(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._send_some()

    async def _send_some(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(_SENT_AT_ONCE, len(self._waiting)))]
        if self._client.state != "connected":
            self.lost += len(some)
            return
        sent = await asyncio.gather(
            *(self._client.publish(SIGNALS_TOPIC, data, key=channel) for channel, data in some),
            return_exceptions=True,
        )
        for fault in sent:
            if isinstance(fault, FanlogError):
                self.lost += 1
                logger.debug("a signal was not sent: %s", fault)
            elif isinstance(fault, BaseException):
                raise fault
