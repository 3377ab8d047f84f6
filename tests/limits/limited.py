"""A broker with limits, all its listeners on free ports, and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from fanlog.config import Config
from fanlog.config_limits import LimitOptions
from fanlog.listeners.redis.server import RedisListener
from fanlog.listeners.server import NativeListener
from fanlog.listeners.web.server import WebListener
from fanlog.node import LoopRuntime, Node

PATIENCE_SECONDS = 100.0


class HandRuntime(LoopRuntime):
    """Durations count by `passed_us`, which a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_us = 1_000_000

    def monotonic_us(self) -> int:
        return self.passed_us


class Limited:
    """What is running."""

    def __init__(self, node: Node, runtime: HandRuntime) -> None:
        self.node = node
        self.runtime = runtime
        self.native: NativeListener
        self.redis: RedisListener
        self.web: WebListener

    @property
    def url(self) -> str:
        return f"fanlog://127.0.0.1:{self.native.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.web.port}"

    @property
    def sessions(self) -> list[Any]:
        """Of the native and the Redis listener."""
        return [*self.native._connections.values(), *self.redis._connections.values()]

    def pay(self, seconds: float) -> None:
        """So much time passes, and whoever was paused is read again."""
        self.runtime.passed_us += int(seconds * 1_000_000)
        for session in self.sessions:
            if session._throttled:
                session._pay()
        for stream in self.web.streams:
            if stream._throttled:
                stream._pay()


@asynccontextmanager
async def limited(
    folder: Path | None = None, config: Config | None = None, **limits: Any
) -> AsyncIterator[Limited]:
    runtime = HandRuntime()
    config = config or Config()
    config = msgspec.structs.replace(
        config,
        listener=msgspec.structs.replace(config.listener, port=0),
        redis=msgspec.structs.replace(config.redis, port=0),
        web=msgspec.structs.replace(config.web, port=0),
        limits=LimitOptions(**limits),
    )
    node = Node(folder, config, runtime)
    node.start()
    made = Limited(node, runtime)
    try:
        made.native = node.listen()
        made.redis = node.listen_redis()
        made.web = await node.listen_web()
        yield made
    finally:
        await node.stop()


async def until(fits: Callable[[], bool]) -> None:
    """Waits for a condition, with long patience."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not fits():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)
