"""Brokers for tests: in the test's own process, in memory unless they get a folder, with a clock
that tests move, and with assertions. One for asyncio, and one for blocking code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fanlog import embedded, node
from fanlog.client.message import Message
from fanlog.config import Config
from fanlog.testing.clock import Clock, ClockedRuntime
from fanlog.testing.published import ANY, Expected, assert_published, published

# A test that leaves a connection open should not wait for it.
_DRAIN_SECONDS = 0.2


class BrokerForTests(node.Broker):
    """`fanlog.Broker` for tests. Made by `fanlog.testing.broker()`.

    `clock` moves its time. `url` and `redis_url` are for code that connects: the first use of one
    opens its listener on a free port.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        config: Config | None = None,
        *,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, _on_free_ports(config or Config()), **options)
        self.clock = clock or Clock()
        self._url = ""
        self._redis_url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def _make_node(self) -> node.Node:
        return node.Node(self._folder, self._node_config, ClockedRuntime(self.clock))

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.clock.attach(self._attend)

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop = None
            self.clock.detach(self._attend)
        await super().stop()

    def _attend(self) -> None:
        """Does all due work, on the broker's loop, from whichever thread the clock was moved."""
        loop, running = self._loop, self._node
        if loop is None or running is None:
            return
        if threading.get_ident() == self._thread:
            running.attend()
            return

        async def attend() -> None:
            running.attend()

        asyncio.run_coroutine_threadsafe(attend(), loop).result()

    @property
    def url(self) -> str:
        """Where clients connect to."""
        if not self._url:
            self._url = f"fanlog://127.0.0.1:{self.listen().port}"
        return self._url

    @property
    def redis_url(self) -> str:
        """Where Redis clients connect to."""
        if not self._redis_url:
            self._redis_url = f"redis://127.0.0.1:{self.listen_redis().port}"
        return self._redis_url

    async def published(self, topic: str) -> list[Message]:
        """All messages of a topic, or of the topics that fit a pattern, in the order in which they
        were published; none if there is no such topic."""
        return await published(self, topic)

    async def assert_published(
        self,
        topic: str,
        *,
        key: bytes | str | None = ANY,
        value: Any = ANY,
        json: Any = ANY,
        headers: Mapping[str, bytes | str] | None = None,
        count: int | None = None,
        timeout_seconds: float = 1.0,
    ) -> list[Message]:
        """Waits until a message with this key, value and headers is there, or exactly `count` of
        them, and returns them. Otherwise it raises AssertionError, which shows the messages of the
        topic.

        `value` is bytes, str, None for a tombstone, or an object, which is compared with what
        `message.decode(type(value))` gives. `json` is compared with `message.decode()`.

        >>> await broker.assert_published("orders", key="alice", json={"tea": 1})  # doctest: +SKIP
        """
        expected = Expected(
            topic=topic, key=key, value=value, json=json, headers=headers, count=count
        )
        return await assert_published(self, expected, timeout_seconds)


class SyncBroker(embedded.BlockingBroker):
    """`fanlog.sync.Broker` for tests: a blocking client, a clock, and assertions. Made by
    `fanlog.testing.sync_broker()`. Code under test may use it from any thread, or connect to `url`
    with any client, an asyncio one too."""

    _broker: BrokerForTests

    def __init__(
        self,
        folder: str | Path | None = None,
        config: Config | None = None,
        *,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or Clock()
        super().__init__(folder, config, **options)

    def _make(
        self, folder: str | Path | None, config: Config | None, options: dict[str, Any]
    ) -> node.Broker:
        return BrokerForTests(folder, config, clock=self.clock, **options)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self._on_loop(lambda: self._broker.url)

    @property
    def redis_url(self) -> str:
        """Where Redis clients connect to."""
        return self._on_loop(lambda: self._broker.redis_url)

    def published(self, topic: str) -> list[Message]:
        """All messages of a topic, or of the topics that fit a pattern, in the order in which they
        were published; none if there is no such topic."""
        return self._loop.call(self._broker.published(topic))

    def assert_published(
        self,
        topic: str,
        *,
        key: bytes | str | None = ANY,
        value: Any = ANY,
        json: Any = ANY,
        headers: Mapping[str, bytes | str] | None = None,
        count: int | None = None,
        timeout_seconds: float = 1.0,
    ) -> list[Message]:
        """Waits until such a message is there, or exactly `count` of them, and returns them; see
        `Broker.assert_published`."""
        return self._loop.call(
            self._broker.assert_published(
                topic,
                key=key,
                value=value,
                json=json,
                headers=headers,
                count=count,
                timeout_seconds=timeout_seconds,
            )
        )


@asynccontextmanager
async def broker(
    folder: str | Path | None = None,
    config: Config | None = None,
    *,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncGenerator[BrokerForTests]:
    """A broker for one test, on the test's own event loop.

    >>> async with fanlog.testing.broker() as broker:  # doctest: +SKIP
    ...     await take_order(broker)
    ...     await broker.assert_published("orders", key="alice")
    """
    async with BrokerForTests(folder, config, clock=clock, **options) as made:
        assert isinstance(made, BrokerForTests)
        yield made


@contextmanager
def sync_broker(
    folder: str | Path | None = None,
    config: Config | None = None,
    *,
    clock: Clock | None = None,
    **options: Any,
) -> Generator[SyncBroker]:
    """A broker for one test, in a thread of its own.

    >>> with fanlog.testing.sync_broker() as broker:  # doctest: +SKIP
    ...     take_order(broker)
    ...     broker.assert_published("orders", key="alice")
    """
    with SyncBroker(folder, config, clock=clock, **options) as made:
        assert isinstance(made, SyncBroker)
        yield made


def _on_free_ports(config: Config) -> Config:
    """Several tests may run at the same time."""
    replace = msgspec.structs.replace
    return replace(
        config,
        listener=replace(config.listener, port=0, drain_seconds=_DRAIN_SECONDS),
        redis=replace(config.redis, port=0),
    )
