"""A broker in memory with a web listener, and an HTTP client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.config import Config
from fanlog.listeners.web.server import WebListener


@dataclass
class Site:
    """`http` sends requests to the listener by their path alone."""

    broker: fanlog.Broker
    listener: WebListener
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.listener.port}"


Serving = Callable[..., AbstractAsyncContextManager[Site]]


@asynccontextmanager
async def _serving(
    config: Config | None = None, path: Path | None = None, **web: object
) -> AsyncIterator[Site]:
    config = config or Config()
    options = msgspec.structs.replace(config.web, port=0, **web)
    config = msgspec.structs.replace(config, web=options)
    async with fanlog.Broker(path, config) as broker:
        listener = await broker.listen_web()
        base = f"http://127.0.0.1:{listener.port}"
        async with aiohttp.ClientSession(base) as http:
            yield Site(broker, listener, http)


@pytest.fixture
def serving() -> Serving:
    """`async with serving(body_bytes_max=1024) as site:` with settings of the section `web`."""
    return _serving
