"""The three ways to the one API: a broker inside the program, a connection, and the blocking client
behind a thin coat of asyncio, so that the same test runs over each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import fanlog
from fanlog.broker.broker_core import BrokerCore as Core
from fanlog.client.blocking.client import BlockingSubscription
from fanlog.client.blocking.groups import BlockingGroupMember as BlockingMember
from fanlog.config import ListenerOptions
from fanlog.node import Node

WAYS = ("embedded", "networked", "blocking")
# With the embedded broker for plain code, for suites that are about the API itself.
ALL_WAYS = (*WAYS, "blocking-embedded")
# Nothing here takes so long, on a slow machine either; past it a test fails instead of hanging.
PATIENCE_SECONDS = 40.0
_THREADS = 64
FREE_PORT = ListenerOptions(port=0)


class Blocking:
    """`fanlog.sync.Client`, each call in a thread."""

    def __init__(self, client: fanlog.sync.Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def in_thread(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(call, *given, **named)

        return in_thread

    def subscribe(self, topic: str, **given: Any) -> Reading:
        return Reading(self._client.subscribe(topic, **given))

    def transaction(self, id: str = "", **given: Any) -> Staging:
        return Staging(self._client.transaction(id, **given))

    def join_transaction(self, ticket: str) -> Staging:
        return Staging(self._client.join_transaction(ticket))

    def consume(self, topic: str, handler: Any = None, **given: Any) -> Any:
        if handler is not None:
            return asyncio.to_thread(self._client.consume, topic, handler, **given)
        return Consuming(self._client.consume(topic, **given))

    def topic(self, *given: Any, **named: Any) -> TypedInThreads:
        return TypedInThreads(self._client.topic(*given, **named))

    @property
    def groups(self) -> InThreads:
        return InThreads(self._client.groups)


class InThreads:
    """Something blocking, each call in a thread."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._blocking, name)

        async def in_thread(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(call, *given, **named)

        return in_thread


class TypedInThreads(InThreads):
    """`fanlog.sync.Topic`, each call in a thread."""

    def subscribe(self, **given: Any) -> Reading:
        return Reading(self._blocking.subscribe(**given))

    def consume(self, **given: Any) -> Reading:
        return Reading(self._blocking.consume(**given))


class Reading:
    """`fanlog.sync.Subscription`, each call in a thread."""

    def __init__(self, subscription: BlockingSubscription | Any) -> None:
        self._subscription = subscription

    async def __aenter__(self) -> Reading:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        await asyncio.to_thread(self._subscription.start)

    async def close(self) -> None:
        await asyncio.to_thread(self._subscription.close)

    async def next(self, timeout_seconds: float | None = None) -> fanlog.Message:
        return await asyncio.to_thread(self._subscription.next, timeout_seconds)

    async def next_batch(self, timeout_seconds: float | None = None) -> fanlog.MessageBatch:
        return await asyncio.to_thread(self._subscription.next_batch, timeout_seconds)

    async def commit(self, message: fanlog.Message | None = None) -> None:
        await asyncio.to_thread(self._subscription.commit, message)

    async def __aiter__(self) -> AsyncIterator[fanlog.Message]:
        async for message in self._over(iter(self._subscription)):
            yield message

    async def batches(self) -> AsyncIterator[fanlog.MessageBatch]:
        async for batch in self._over(self._subscription.batches()):
            yield batch

    async def _over(self, items: Any) -> AsyncIterator[Any]:
        while (item := await asyncio.to_thread(next, items, None)) is not None:
            yield item

    @property
    def gaps(self) -> int:
        return self._subscription.gaps

    @property
    def missed(self) -> int:
        return self._subscription.missed

    @property
    def positions(self) -> Any:
        return self._subscription.positions


class Consuming(Reading):
    """`fanlog.sync.GroupMember`, each call in a thread."""

    def __init__(self, member: BlockingMember) -> None:
        super().__init__(member)
        self._member = member

    async def seek(self, *given: Any, **named: Any) -> Any:
        return await asyncio.to_thread(self._member.seek, *given, **named)

    def commit_soon(self, message: fanlog.Message | None = None) -> None:
        self._member.commit_soon(message)

    def offsets_for_commit(self, *given: Any) -> Any:
        return self._member.offsets_for_commit(*given)

    @property
    def partitions(self) -> Any:
        return self._member.partitions


class Staging:
    """`fanlog.sync.Transaction`, each call in a thread."""

    def __init__(self, transaction: fanlog.sync.Transaction) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        """What is asked for and not called is looked up at once."""
        call = getattr(self._transaction, name)
        if not callable(call):
            return call

        async def in_thread(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(call, *given, **named)

        return in_thread

    def commit_offsets(self, member: Any, taken: Any = None) -> None:
        self._transaction.commit_offsets(member, taken)

    async def __aenter__(self) -> Staging:
        await asyncio.to_thread(self._transaction.__enter__)
        return self

    async def __aexit__(self, *given: Any) -> None:
        await asyncio.to_thread(self._transaction.__exit__, *given)


class Way:
    """One way to a broker in `folder`. `open` starts the broker and gives its client; leaving it
    stops both, so that opening again is a restart."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        # The broker itself, for tests that wait for what only it knows.
        self.core: Core

    @asynccontextmanager
    async def open(
        self,
        config: fanlog.Config | None = None,
        *,
        in_memory: bool = False,
        **options: Any,
    ) -> AsyncIterator[Any]:
        config = msgspec.structs.replace(config or fanlog.Config(), listener=FREE_PORT)
        folder = None if in_memory else self.folder
        if self.name == "embedded":
            async with fanlog.Broker(folder, config, **options) as broker:
                assert broker._node is not None
                self.core = broker._node.core
                yield broker
            return
        if self.name == "blocking-embedded":
            async with self._open_blocking(folder, config, options) as client:
                yield client
            return
        node = Node(folder, config)
        node.start()
        self.core = node.core
        url = f"fanlog://127.0.0.1:{node.listen().port}"
        try:
            if self.name == "networked":
                async with fanlog.connect(url, **options) as client:
                    yield client
                return
            # A thread for every call that may wait at once, or readers would hold up publishers.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
            blocking = await asyncio.to_thread(fanlog.sync.connect, url, **options)
            try:
                yield Blocking(blocking)
            finally:
                await asyncio.to_thread(blocking.close)
        finally:
            await node.stop()

    @asynccontextmanager
    async def _open_blocking(
        self, folder: Path | None, config: fanlog.Config, options: dict[str, Any]
    ) -> AsyncIterator[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        broker = await asyncio.to_thread(fanlog.sync.Broker, folder, config, **options)
        assert broker._broker._node is not None
        self.core = broker._broker._node.core
        try:
            yield Blocking(broker)
        finally:
            await asyncio.to_thread(broker.close)


class BrokerClock:
    """The time that brokers go by where a test hands it out (`broker_clock`): leases, sessions and
    graces are over when it says so, however slow the machine is."""

    def __init__(self) -> None:
        self.now_us = time.time_ns() // 1000
        self.monotonic_us = 1_000_000

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)
        self.monotonic_us += round(seconds * 1e6)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what is bound to happen."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the state is the broker's
            await asyncio.sleep(0.002)


async def take(subscription: Any, count: int) -> list[fanlog.Message]:
    """The next messages, so many of them."""
    return [await subscription.next(PATIENCE_SECONDS) for _ in range(count)]


async def take_values(subscription: Any, count: int) -> list[bytes]:
    return [message.value for message in await take(subscription, count)]
