"""An edge's connection to NATS, which reconnects by itself: requests, signals, and answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError as NatsNoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from fanlog.broker.names import check_name
from fanlog.client.tls import shared_context
from fanlog.config import ClientOptions, EdgeOptions
from fanlog.edge.cancelling import end_all
from fanlog.edge.nats_messages import SIGNAL, body_of, check_subject, headers_of
from fanlog.errors import (
    ConnectionLostError,
    FanlogError,
    NoRespondersError,
    RequestTimeoutError,
)
from fanlog.listeners.web.ports import Hear, Incoming, MessageToPublish

logger = logging.getLogger("fanlog.edge")

_ANSWER_SECONDS = 10.0
_RECONNECT_SECONDS = 0.25


class NatsConnection:
    """`on_back` runs when a lost connection is there again, before it counts as `up`."""

    def __init__(
        self, url: str, on_back: Callable[[], Awaitable[None]], options: EdgeOptions
    ) -> None:
        self._url = url
        self._options = options
        self._on_back = on_back
        # The library is partly without types.
        self.client: Any = None
        self.jetstream: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._signals: dict[str, list[Hear]] = {}
        self.on_state: Callable[[bool], None] | None = None
        self.up = False

    # The connection

    async def connect(self) -> None:
        """Waits until NATS is there."""
        library: Any = nats
        while True:
            try:
                self.client = await library.connect(
                    self._url,
                    name="edge",
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_SECONDS,
                    disconnected_cb=self._lost,
                    reconnected_cb=self._back,
                    error_cb=self._failed,
                    ping_interval=10,
                    max_outstanding_pings=2,
                    **self._tls_arguments(),
                )
                break
            except (NatsError, OSError, TimeoutError) as fault:
                logger.info("NATS can't be reached: %s", fault)
                await asyncio.sleep(_RECONNECT_SECONDS)
        self.jetstream = self.client.jetstream(timeout=_ANSWER_SECONDS)
        self._changed(True)
        for channel in self._signals:
            await self._listen(channel)

    def _tls_arguments(self) -> dict[str, Any]:
        """The library uses them if the server wants TLS, or the address says so."""
        options = self._options
        if not self._url.startswith("tls:") and not options.tls_ca_file:
            return {}
        client = ClientOptions(
            tls_ca_file=options.tls_ca_file,
            tls_certificate_file=options.tls_certificate_file,
            tls_key_file=options.tls_key_file,
        )
        name = options.tls_server_name or urlsplit(self._url).hostname
        return {"tls": shared_context(client), "tls_hostname": name}

    async def _failed(self, fault: Exception) -> None:
        logger.debug("NATS: %s", fault)

    async def _lost(self) -> None:
        self._changed(False)

    async def _back(self) -> None:
        await self._on_back()
        self._changed(True)

    def _changed(self, up: bool) -> None:
        if up != self.up:
            self.up = up
            if self.on_state is not None:
                self.on_state(up)

    async def close(self) -> None:
        await end_all(self._tasks)
        if self.client is not None:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await self.client.close()

    async def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The answer of NATS; its errors become ours."""
        try:
            return await work
        except NotFoundError:
            raise
        except JetStreamError as fault:
            raise FanlogError(f"NATS refused it: {fault}.") from fault
        except (NatsError, OSError, TimeoutError) as fault:
            raise ConnectionLostError(
                f"NATS did not answer: {fault!r}. The outcome is unknown."
            ) from fault

    # Requests and signals

    async def request(
        self, topic: str, message: MessageToPublish, timeout_seconds: float
    ) -> Incoming:
        check_subject(check_name(topic))
        try:
            answer = await self.client.request(
                topic, message.value or b"", timeout=timeout_seconds, headers=headers_of(message)
            )
        except NatsNoRespondersError as fault:
            raise NoRespondersError(f"No client answers requests to {topic!r} on NATS.") from fault
        except (TimeoutError, NatsTimeoutError) as fault:
            raise RequestTimeoutError(
                f"No client answered within {timeout_seconds} s. The outcome is unknown."
            ) from fault
        except (NatsError, OSError) as fault:
            raise ConnectionLostError(f"NATS can't be reached: {fault}.") from fault
        body = body_of(answer.data, answer.headers)
        return Incoming(body.value, body.headers)

    def signal(self, channel: str, data: bytes) -> None:
        self.in_task(self._signal(channel, data))

    async def _signal(self, channel: str, data: bytes) -> None:
        if self.client is not None and self.up:
            await self.ask(self.client.publish(SIGNAL + channel, data))

    def on_signal(self, channel: str, hear: Hear) -> None:
        known = channel in self._signals
        self._signals.setdefault(channel, []).append(hear)
        if not known and self.client is not None:
            self.in_task(self._listen(channel))

    async def _listen(self, channel: str) -> None:
        async def heard(message: Any) -> None:
            for hear in self._signals[channel]:
                hear(message.data)

        await self.ask(self.client.subscribe(SIGNAL + channel, cb=heard))

    def in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            if isinstance(fault, FanlogError | NatsError):
                logger.info("%s", fault)
            else:
                logger.error("the edge's own work failed", exc_info=fault)
