"""An edge's connections to Redis: one for subscriptions, which comes back by itself, and those for
commands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from fanlog.config import EdgeOptions
from fanlog.edge.cancelling import end_all
from fanlog.errors import ConnectionLostError, FanlogError, RequestTimeoutError

logger = logging.getLogger("fanlog.edge")

_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 2.0
_PING_SECONDS = 5.0
_SILENT_SECONDS = 15.0
_ANSWER_SECONDS = 10.0
# Heard by every edge, so that there is always a subscription.
_CONTROL = b"fanlog:signal:"

# Pattern (None for a channel by its name), channel, data.
Heard = Callable[[bytes | None, bytes, bytes], None]


def _tls_arguments(options: EdgeOptions) -> dict[str, Any]:
    """The library's names for the settings. By default it would not check the host name."""
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_3,
        "ssl_ca_certs": options.tls_ca_file or None,
        "ssl_certfile": options.tls_certificate_file or None,
        "ssl_keyfile": options.tls_key_file or options.tls_certificate_file or None,
    }


class RedisConnections:
    """`on_fresh` runs on each new connection before it receives anything, and `on_back` when
    everything is subscribed to again, before the connection counts as `up`."""

    def __init__(
        self,
        url: str,
        heard: Heard,
        on_fresh: Callable[[], None],
        on_back: Callable[[], Awaitable[None]],
        options: EdgeOptions,
    ) -> None:
        # A command that was sent twice would be done twice.
        library: Any = Redis  # partly without types
        self.redis: Any = library.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_ANSWER_SECONDS,
            client_name="edge",
            **(_tls_arguments(options) if url.startswith("rediss:") else {}),
        )
        self._heard = heard
        self._on_fresh = on_fresh
        self._on_back = on_back
        self._pubsub: Any = None
        self._channels: dict[bytes, None] = {_CONTROL: None}
        self._patterns: dict[bytes, None] = {}
        self._confirming: dict[tuple[str, bytes], asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._came_up = asyncio.Event()
        self.on_state: Callable[[bool], None] | None = None
        self.up = False
        # Another with each start of Redis.
        self.run = ""

    def open(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._task is not None:
            await end_all([self._task])
        await self.redis.aclose()

    async def ready(self, timeout_seconds: float | None = None) -> None:
        """Waits until Redis can be reached."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._came_up.wait()
        except TimeoutError:
            raise ConnectionLostError(
                "The edge's Redis can't be reached: try again when it runs."
            ) from None

    # Commands

    async def ask(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """The answer of Redis; its errors become ours."""
        await self.ready(_ANSWER_SECONDS)
        try:
            return await command()
        except RedisTimeoutError as fault:
            raise RequestTimeoutError(
                f"Redis did not answer in time: {fault}. The outcome is unknown."
            ) from fault
        except (RedisConnectionError, OSError) as fault:
            raise ConnectionLostError(
                f"The edge lost its Redis: {fault}. The outcome is unknown."
            ) from fault
        except RedisError as fault:
            raise FanlogError(f"Redis refused it: {fault}.") from fault

    # Subscriptions

    async def subscribe(self, channels: list[bytes], patterns: list[bytes]) -> None:
        """Returns when they are confirmed: from then on nothing is missed."""
        new = [c for c in channels if c not in self._channels]
        new_patterns = [p for p in patterns if p not in self._patterns]
        self._channels.update(dict.fromkeys(channels))
        self._patterns.update(dict.fromkeys(patterns))
        await self.ready(_ANSWER_SECONDS)
        await self._send(new, new_patterns)

    async def _send(self, channels: list[bytes], patterns: list[bytes]) -> None:
        waiting = [self._confirmation("subscribe", channel) for channel in channels]
        waiting += [self._confirmation("psubscribe", pattern) for pattern in patterns]
        try:
            if channels:
                await self._pubsub.subscribe(*channels)
            if patterns:
                await self._pubsub.psubscribe(*patterns)
            async with asyncio.timeout(_ANSWER_SECONDS):
                await asyncio.gather(*waiting)
        except (RedisError, OSError, TimeoutError) as fault:
            raise ConnectionLostError(f"The edge lost its Redis: {fault}.") from fault

    def _confirmation(self, kind: str, name: bytes) -> asyncio.Future[None]:
        key = (kind, name)
        known = self._confirming.get(key)
        if known is None or known.done():
            known = self._confirming[key] = asyncio.get_running_loop().create_future()
        return known

    async def unsubscribe(self, channels: list[bytes], patterns: list[bytes]) -> None:
        for channel in channels:
            self._channels.pop(channel, None)
        for pattern in patterns:
            self._patterns.pop(pattern, None)
        if self._pubsub is not None and self.up:
            with contextlib.suppress(RedisError, OSError):
                if channels:
                    await self._pubsub.unsubscribe(*channels)
                if patterns:
                    await self._pubsub.punsubscribe(*patterns)

    async def level(self) -> None:
        """Returns when everything published by now was received. At once if Redis is away."""
        if not self.up:
            return
        answer = self._confirmation("pong", b"")
        try:
            await self._pubsub.ping()
            async with asyncio.timeout(_ANSWER_SECONDS):
                await answer
        except (RedisError, OSError, TimeoutError, ConnectionLostError) as fault:
            logger.debug("readers begin before Redis has answered: %s", fault)

    # The connection

    async def _keep(self) -> None:
        backoff = _BACKOFF_FIRST_SECONDS
        while True:
            hearing: asyncio.Task[None] | None = None
            try:
                info = await self.redis.info("server")
                self.run = str(info["run_id"])
                self._pubsub = self.redis.pubsub()
                await self._pubsub.subscribe(_CONTROL)
                self._on_fresh()
                hearing = asyncio.create_task(self._hear())
                await self._send([c for c in self._channels if c != _CONTROL], list(self._patterns))
                self._came_up.set()
                await self._on_back()
                self._changed(True)
                backoff = _BACKOFF_FIRST_SECONDS
                await hearing
            except (RedisError, OSError, TimeoutError, FanlogError) as fault:
                logger.info("Redis can't be reached: %s", fault)
            finally:
                self._came_up.clear()
                if hearing is not None:
                    hearing.cancel()
                    await asyncio.gather(hearing, return_exceptions=True)
                await self._end_pubsub()
                self._changed(False)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _BACKOFF_MAX_SECONDS)

    async def _end_pubsub(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        confirming, self._confirming = self._confirming, {}
        for waiting in confirming.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLostError("The edge lost its Redis."))
                waiting.exception()
        if pubsub is not None:
            with contextlib.suppress(RedisError, OSError, asyncio.CancelledError):
                await pubsub.aclose()

    def _changed(self, up: bool) -> None:
        if up != self.up:
            self.up = up
            if self.on_state is not None:
                self.on_state(up)

    async def _hear(self) -> None:
        """Passes messages on. Raises when the connection is lost, or silent."""
        loop = asyncio.get_running_loop()
        heard_at = pinged_at = loop.time()
        while True:
            message = cast(
                "dict[str, Any] | None", await self._pubsub.get_message(timeout=_PING_SECONDS)
            )
            now = loop.time()
            if message is not None:
                heard_at = now
                self._take(message)
            if now - heard_at > _SILENT_SECONDS:
                raise TimeoutError("Redis went silent")
            if now - pinged_at > _PING_SECONDS:
                pinged_at = now
                await self._pubsub.ping()

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "message":
            self._heard(None, message["channel"], message["data"])
        elif kind == "pmessage":
            self._heard(message["pattern"], message["channel"], message["data"])
        else:
            name = b"" if kind == "pong" else message["channel"]
            waiting = self._confirming.pop((kind, name), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
