"""A subscription: an async iterator of messages, or of whole batches. It knows its position in
every partition, so that it resumes there after a lost connection, and it grants the broker a
window, so that a slow application holds up nothing but itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from fanlog.client.follower import ClientFollower
from fanlog.client.message import Message, MessageBatch
from fanlog.client.notices import Notices
from fanlog.client.reached import Reached, as_positions, reached
from fanlog.client.receiving import OnGap, ReaderProgress, Receiving, ReceivingHost
from fanlog.errors import ClosedError, FanlogError, InvalidArgumentError
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import (
    GapNotice,
    Joined,
    Left,
    Notice,
    Position,
    Revoke,
    Subscribe,
    Subscribed,
    decode,
)
from fanlog.model import TopicPartition


class SubscriptionHost(ReceivingHost, Protocol):
    """The client, as far as a subscription needs it."""

    async def attach(self, follower: ClientFollower, *, again: bool = False) -> None: ...
    async def detach(self, subscription: ClientFollower) -> None: ...
    async def commit(self, durable: str, positions: tuple[Position, ...]) -> None: ...


class MessageSource(ReaderProgress, Protocol):
    """Where a subscription gets its messages: as they come, or as a group hands them out."""

    @property
    def receiving(self) -> Receiving: ...
    def next_batch(self) -> Coroutine[Any, Any, MessageBatch]: ...
    async def next_run(self) -> Iterator[Message]:
        """The messages of the next batch, for who takes them one by one."""
        ...

    def positions(self) -> tuple[Position, ...]:
        """Up to where the application has taken messages."""
        ...

    def left(self, topic: str) -> None:
        """The topic is gone."""
        ...


class SeenMessages:
    """The source of a plain subscription: all that has been given counts as seen."""

    def __init__(self, receiving: Receiving) -> None:
        self.receiving = receiving
        self._seen: dict[TopicPartition, Reached] = {}

    def next_batch(self) -> Coroutine[Any, Any, MessageBatch]:
        return self.receiving.next_batch(self)

    async def next_run(self) -> Iterator[Message]:
        return iter((await self.receiving.next_batch(self)).messages)

    def took(self, batch: MessageBatch) -> None:
        receiving = self.receiving
        receiving.current = None
        if not receiving.partings.is_stale(batch.batch):
            self._seen[TopicPartition(batch.topic, batch.partition)] = reached(
                batch.batch, batch.next_offset
            )
        receiving.window.free(batch.batch.header.length)

    def unreadable(self, batch: MessageBatch) -> None:
        """It was counted as seen."""

    def placed(self, place: TopicPartition, start: Reached, last: Reached | None) -> None:
        receiving = self.receiving
        receiving.next[place] = start.offset
        receiving.epochs[place] = start.epoch
        if last is not None and (last.offset, last.number) != (start.offset, start.number):
            receiving.partings.note(place, last, start)
            self._seen[place] = start
        # Committed as well: or what comes there while nobody reads would be skipped.
        self._seen.setdefault(place, start)

    def left(self, topic: str) -> None:
        for place in [place for place in self._seen if place[0] == topic]:
            del self._seen[place]

    def positions(self) -> tuple[Position, ...]:
        seen = dict(self._seen)
        current = self.receiving.current
        if current is not None and not self.receiving.partings.is_stale(current.batch):
            place = TopicPartition(current.topic, current.partition)
            seen[place] = reached(current.batch, current.offset + 1)
        return as_positions(seen)


class Subscription:
    """Made by `client.subscribe(...)`; use it with `async with`, then iterate.

    >>> async with client.subscribe("orders.>", start="earliest") as orders:  # doctest: +SKIP
    ...     async for message in orders:
    ...         print(message.topic, message.offset, message.text)
    """

    def __init__(
        self,
        host: SubscriptionHost,
        key: int,
        wanted: Subscribe,
        on_gap: OnGap | None,
        source: MessageSource | None = None,
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._source = source or SeenMessages(Receiving(host, key, wanted, on_gap))
        self._receiving = self._source.receiving
        self._arrivals = self._receiving.arrivals
        # Without a step between: every batch comes by here.
        self.delivered = self._receiving.delivered
        self._begun: Iterator[Message] = iter(())
        self.notices = Notices(wanted.target)
        self.attached = False
        self.key = key

    # The life of it

    @property
    def target(self) -> str:
        """The topic or the pattern."""
        return self._wanted.target

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
            await self._arrivals.begin(lambda: self._host.attach(self))

    async def close(self) -> None:
        """Ends the subscription. `async with` does it.

        >>> await orders.close()
        """
        if self._arrivals.closed is None:
            self.end(ClosedError("The subscription was closed: call subscribe() again."))
            if self._arrivals.started:
                await self._host.detach(self)

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
                self._begun = await self._source.next_run()
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
                batch = await self._source.next_batch()
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
                self._begun = await self._source.next_run()

    async def next_batch(self, timeout_seconds: float | None = None) -> MessageBatch:
        """The next batch as a whole. Raises TimeoutError when none comes in time.

        >>> batch = await orders.next_batch(timeout_seconds=5)
        """
        async with asyncio.timeout(timeout_seconds):
            await self.start()
            return await self._source.next_batch()

    async def next_run(self, timeout_seconds: float | None = None) -> Iterator[Message]:
        """The messages of the next batch, one by one, for who takes them in another thread."""
        async with asyncio.timeout(timeout_seconds):
            await self.start()
            return await self._source.next_run()

    def took(self, message: Message) -> None:
        """Counts one message of a batch as taken, where someone else iterates over it."""
        self._receiving.current = message

    # Positions

    @property
    def positions(self) -> tuple[Position, ...]:
        """Up to where the application has taken messages, as the next offset of each partition."""
        return self._source.positions()

    async def commit(self, message: Message | None = None) -> None:
        """Makes the durable name continue after this message, or after all that were taken.

        >>> async with client.subscribe("orders", durable="billing") as orders:
        ...     async for message in orders:
        ...         await orders.commit()
        """
        if not self._wanted.durable:
            raise InvalidArgumentError(
                "This subscription has no durable name to commit to: give subscribe(durable=...)."
            )
        if message is None:
            positions = self.positions
        else:
            place = TopicPartition(message.topic, message.partition)
            positions = as_positions({place: reached(message.batch, message.offset + 1)})
        if positions:
            await self._host.commit(self._wanted.durable, positions)

    # From the link

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.SUBSCRIBE, self._wanted

    def opened(self, payload: bytes) -> None:
        for topic in decode(Subscribed, payload).joined:
            self.joined(topic)

    def revoked(self, revoke: Revoke) -> None:
        """Only a group's member is told so."""

    def leased(self, lease: Lease) -> None:
        """Only a queue's worker is told so."""

    def joined(self, joined: Joined) -> None:
        self._receiving.joined(joined, self._source)

    def left(self, left: Left) -> None:
        self.notices.left(left.name)
        self._receiving.left(left)
        self._source.left(left.name)

    def noticed(self, notice: Notice) -> None:
        self.notices.take(notice, was_there=bool(self._receiving.next))
        self._receiving.noticed(notice)

    def missed_some(self, notice: GapNotice) -> None:
        self._receiving.missed_some(notice)

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        """The request that continues this subscription on a new connection."""
        receiving = self._receiving
        receiving.window.reconnect()
        resume = tuple(receiving.position(place) for place in receiving.next)
        wanted = msgspec.structs.replace(self._wanted, resume=resume, missing="wait")
        return FrameKind.SUBSCRIBE, wanted

    def end(self, error: FanlogError) -> None:
        """No more will come; what is here can still be taken."""
        self._arrivals.close(error)
