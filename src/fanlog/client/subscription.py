"""A subscription: an async iterator of messages, or of whole batches. `core/subscription_core.py`
decides; this waits, and asks the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Protocol, Self

from fanlog.client.core.follower import ClientFollower
from fanlog.client.core.receiving import ReceivingHost
from fanlog.client.core.subscription_core import MessageSource, SubscriptionCore
from fanlog.client.message import Message, MessageBatch
from fanlog.client.waiting import begin, wait_for
from fanlog.errors import ClosedError
from fanlog.format.messages import Position


class Leaving(Protocol):
    """Leaves the broker in an orderly way before the connection is closed."""

    async def close(self) -> None: ...


class SubscriptionHost(ReceivingHost, Protocol):
    """The client, as far as a subscription needs it."""

    async def attach(self, follower: ClientFollower, *, leaving: Leaving | None = None) -> None: ...
    async def detach(self, follower: ClientFollower) -> None: ...
    async def commit(self, durable: str, positions: tuple[Position, ...]) -> None: ...


async def next_batch(source: MessageSource) -> MessageBatch:
    """The next batch that can be read."""
    batch = source.maybe_next()
    while batch is None:
        await wait_for(source.receiving.arrivals)
        batch = source.receiving.maybe_take(source)
    return batch


class Subscription:
    """Made by `client.subscribe(...)`; use it with `async with`, then iterate.

    >>> async with client.subscribe("orders.>", start="earliest") as orders:  # doctest: +SKIP
    ...     async for message in orders:
    ...         print(message.topic, message.offset, message.text)
    """

    def __init__(self, host: SubscriptionHost, core: SubscriptionCore) -> None:
        self._host = host
        self._core = core
        self._source = core.source
        self._receiving = core.receiving
        self._arrivals = core.arrivals
        self._begun: Iterator[Message] = iter(())
        self.notices = core.notices

    # The life of it

    @property
    def target(self) -> str:
        """The topic or the pattern."""
        return self._core.wanted.target

    @property
    def gaps(self) -> int:
        """How often messages were missed."""
        return self._receiving.gaps

    @property
    def missed(self) -> int:
        """How many messages were missed."""
        return self._receiving.missed

    async def start(self) -> None:
        """Begins to receive; `async with` and iterating do it by themselves.

        >>> orders = client.subscribe("orders")
        >>> await orders.start()
        """
        if not self._arrivals.started:
            await begin(self._arrivals, lambda: self._host.attach(self._core))

    async def close(self) -> None:
        """Ends the subscription. `async with` does it.

        >>> await orders.close()
        """
        if self._arrivals.closed is None:
            self._core.end(ClosedError("The subscription was closed: call subscribe() again."))
            if self._arrivals.started:
                await self._host.detach(self._core)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        self.check_open()
        await self.start()
        receiving = self._receiving
        while True:
            for message in self._begun:
                receiving.current = message
                yield message
            try:
                self._begun = await self._next_run()
            except ClosedError:
                return

    def check_open(self) -> None:
        """A loop ends when its subscription is closed. One that begins after that is a mistake."""
        self._arrivals.check_open()

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Whole batches, for speed: iterate each, or take its `values`.

        >>> async for batch in orders.batches():
        ...     print(batch.topic, batch.base_offset, len(batch))
        """
        self.check_open()
        await self.start()
        while True:
            try:
                batch = await next_batch(self._source)
            except ClosedError:
                return
            yield batch

    async def next(self, timeout_seconds: float | None = None) -> Message:
        """The next message. Raises TimeoutError when none comes in time.

        >>> message = await orders.next(timeout_seconds=5)
        """
        while True:
            for message in self._begun:
                self._receiving.current = message
                return message
            async with asyncio.timeout(timeout_seconds):
                await self.start()
                self._begun = await self._next_run()

    async def next_batch(self, timeout_seconds: float | None = None) -> MessageBatch:
        """The next batch as a whole. Raises TimeoutError when none comes in time.

        >>> batch = await orders.next_batch(timeout_seconds=5)
        """
        async with asyncio.timeout(timeout_seconds):
            await self.start()
            return await next_batch(self._source)

    async def next_run(self, timeout_seconds: float | None = None) -> Iterator[Message]:
        """The messages of the next batch, one by one, for a reader in another thread."""
        async with asyncio.timeout(timeout_seconds):
            await self.start()
            return await self._next_run()

    async def _next_run(self) -> Iterator[Message]:
        return self._source.run(await next_batch(self._source))

    def took(self, message: Message) -> None:
        """Counts one message of a batch as taken, where someone else iterates over it."""
        self._receiving.current = message

    # Positions

    @property
    def positions(self) -> tuple[Position, ...]:
        """Up to where the application has taken messages, as the next offset of each partition."""
        return self._source.positions()

    async def commit(self, message: Message | None = None) -> None:
        """Commits offsets: the durable name resumes after this message, or after all taken
        messages.

        >>> async with client.subscribe("orders", durable="billing") as orders:
        ...     async for message in orders:
        ...         await orders.commit()
        """
        positions = self._core.positions_for_commit(message)
        if positions:
            await self._host.commit(self._core.wanted.durable, positions)
