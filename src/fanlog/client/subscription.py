"""A subscription: an async iterator of messages, or of whole batches. It knows its position in
every partition, so that it resumes there after a lost connection, and it grants the broker a
window, so that a slow application holds up nothing but itself."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

import msgspec

from fanlog.client.follower import ClientFollower
from fanlog.client.message import Message, MessageBatch
from fanlog.client.notices import Notices
from fanlog.client.reached import Partings, Reached, as_positions, reached
from fanlog.errors import (
    ClosedError,
    FanlogError,
    InvalidArgumentError,
    MessagesLostError,
    UnreadableError,
)
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, Lease, credit_frame
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
from fanlog.model import Gap, GapReason, SlowPolicy, TopicPartition

logger = logging.getLogger("fanlog.client")

OnGap = Callable[[Gap], None]
Item = MessageBatch | FanlogError


class SubscriptionHost(Protocol):
    """The client, as far as a subscription needs it."""

    def write(self, data: bytes) -> None: ...
    async def attach(self, follower: ClientFollower, *, again: bool = False) -> None: ...
    async def detach(self, subscription: ClientFollower) -> None: ...
    async def commit(self, durable: str, positions: tuple[Position, ...]) -> None: ...
    def decoded(self, batch: Batch) -> MessageBatch: ...


class Subscription:
    """Made by `client.subscribe(...)`; use it with `async with`, then iterate.

    >>> async with client.subscribe("orders.>", start="earliest") as orders:  # doctest: +SKIP
    ...     async for message in orders:
    ...         print(message.topic, message.offset, message.text)
    """

    def __init__(
        self, host: SubscriptionHost, key: int, wanted: Subscribe, on_gap: OnGap | None
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._on_gap = on_gap
        self._items: deque[Item] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._next: dict[TopicPartition, int] = {}
        # Partitions of which nothing is to be given, whatever is still on its way.
        self._muted: set[TopicPartition] = set()
        self._epochs: dict[TopicPartition, int] = {}
        self._partings = Partings()
        self._begun: Iterator[Message] = iter(())
        self._current: Message | None = None
        self._seen: dict[TopicPartition, Reached] = {}
        self._consumed = 0
        self._granted = wanted.window_bytes
        self._queued_bytes = 0
        self._stale_bytes = 0
        self._started = False
        # Offsets below it are left out: those of a topic that did not exist when it was asked for.
        self._floor = 0
        self.notices = Notices(wanted.target)
        self.attached = False
        self._closed: FanlogError | None = None
        self.key = key
        self.gaps = 0
        self.missed = 0

    # The life of it

    @property
    def target(self) -> str:
        """The topic or the pattern."""
        return self._wanted.target

    async def start(self) -> None:
        """Begins to receive; `async with` and iterating do it by themselves.

        >>> orders = client.subscribe("orders")
        >>> await orders.start()
        """
        if not self._started:
            self._started = True
            try:
                await self._host.attach(self)
            except BaseException:
                self._started = False
                raise

    async def close(self) -> None:
        """Ends the subscription. `async with` does it.

        >>> await orders.close()
        """
        if self._closed is None:
            self.end(ClosedError("The subscription was closed: call subscribe() again."))
            if self._started:
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
        while True:
            for message in self._begun:
                self._current = message
                yield message
            try:
                self._begun = await self._next_run()
            except ClosedError:
                return

    def check_open(self) -> None:
        """A loop ends when its subscription is closed. One that begins after that is a mistake."""
        if self._closed is not None:
            raise self._closed

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Whole batches, for speed: iterate each, or take its `values`.

        >>> async for batch in orders.batches():
        ...     print(batch.topic, batch.base_offset, len(batch))
        """
        self.check_open()
        await self.start()
        while True:
            try:
                batch = await self._next_batch()
            except ClosedError:
                return
            yield batch

    async def next(self, timeout_seconds: float | None = None) -> Message:
        """The next message. Raises TimeoutError when none comes in time.

        >>> message = await orders.next(timeout_seconds=5)
        """
        while True:
            for message in self._begun:
                self._current = message
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
            return await self._next_batch()

    async def next_run(self, timeout_seconds: float | None = None) -> Iterator[Message]:
        """The messages of the next batch, one by one, for who takes them in another thread."""
        async with asyncio.timeout(timeout_seconds):
            await self.start()
            return await self._next_run()

    async def _next_run(self) -> Iterator[Message]:
        """The messages of the next batch, for who takes them one by one."""
        return iter((await self._next_batch()).messages)

    async def _next_batch(self) -> MessageBatch:
        while True:
            while not self._items:
                if self._closed is not None:
                    raise self._closed
                self._wake = asyncio.get_running_loop().create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
            batch = self._take_item()
            if batch is not None:
                return batch

    def _take_item(self) -> MessageBatch | None:
        """The next batch, all of which can be read. One that can't is a gap: it is raised, or, if
        that is what `on_gap` is for, left out."""
        item = self._items.popleft()
        if not isinstance(item, MessageBatch):
            raise item
        self._took(item)
        try:
            item.batch.check()
        except UnreadableError as fault:
            gap = Gap(
                item.topic, item.partition, item.base_offset, fault.next, GapReason.UNREADABLE
            )
            self.gaps += 1
            self.missed += len(item)
            if self._on_gap is None:
                raise lost_error(gap) from fault
            logger.warning("%s", fault)
            self._on_gap(gap)
            return None
        return item

    def _took(self, batch: MessageBatch) -> None:
        """Counts a batch as seen by the application."""
        self._current = None
        if not self._partings.is_stale(batch.batch):
            self._seen[TopicPartition(batch.topic, batch.partition)] = reached(
                batch.batch, batch.next_offset
            )
        self._free(batch.batch.header.length)

    def _free(self, size: int) -> None:
        """A batch of this size is not queued any more: the broker may send as much again."""
        self._queued_bytes -= size
        if self._stale_bytes > 0:
            self._stale_bytes -= size
        else:
            self._consume(size)

    def _consume(self, size: int) -> None:
        """Bytes of this connection that are done with; the broker may send as many more."""
        self._consumed += size
        window = self._wanted.window_bytes
        due = window and self._consumed + window - self._granted >= window // 2
        if due and self._closed is None:
            self._granted = self._consumed + window
            self._host.write(credit_frame(self.key, self._granted))

    def took(self, message: Message) -> None:
        """Counts one message of a batch as taken, where someone else iterates over it."""
        self._current = message

    # Positions

    @property
    def positions(self) -> tuple[Position, ...]:
        """Up to where the application has taken messages, as the next offset of each partition."""
        seen = dict(self._seen)
        current = self._current
        if current is not None and not self._partings.is_stale(current.batch):
            seen[TopicPartition(current.topic, current.partition)] = reached(
                current.batch, current.offset + 1
            )
        return as_positions(seen)

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
        before = self._numbers.get(joined.name)
        if before is not None and self._names.get(before) == joined.name:
            del self._names[before]
        self._names[joined.number] = joined.name
        self._numbers[joined.name] = joined.number
        for start in joined.starts:
            place = TopicPartition(joined.name, start.partition)
            last = None
            if place in self._next:
                last = Reached(self._next[place], self._epochs.get(place, 0), before or 0)
            self._place(place, Reached(start.offset, joined.epoch, joined.number), last)

    def noticed(self, notice: Notice) -> None:
        self.notices.take(notice, was_there=bool(self._next))
        if notice.kind == "missing" and self._wanted.start.kind == "offset" and not self._next:
            self._floor = self._wanted.start.value

    def _place(self, place: TopicPartition, start: Reached, last: Reached | None) -> None:
        """The broker begins at `start`; `last` is where this reader was, if it comes back."""
        self._next[place] = start.offset
        self._epochs[place] = start.epoch
        if last is not None and (last.offset, last.number) != (start.offset, start.number):
            self._partings.note(place, last, start)
            self._seen[place] = start
        # Committed as well: or what comes there while nobody reads would be skipped.
        self._seen.setdefault(place, start)

    def left(self, left: Left) -> None:
        self.notices.left(left.name)
        self._floor = 0
        self._names.pop(left.number, None)
        self._numbers.pop(left.name, None)
        for known in (self._next, self._seen, self._epochs):
            for place in [place for place in known if place[0] == left.name]:
                del known[place]

    def delivered(self, batch: Batch) -> None:
        header = batch.header
        name = self._names.get(header.topic)
        if name is None or (place := TopicPartition(name, header.partition)) in self._muted:
            self._consume(header.length)
            return
        wanted = self._next.get(place, 0)
        end = batch.next_offset
        if wanted >= end:
            self._consume(header.length)
            return
        self._next[place] = end
        if self._floor > wanted:
            wanted = self._floor
            if wanted >= end:
                self._consume(header.length)
                return
        batch.topic_name = name
        self._queued_bytes += header.length
        self._put(self._host.decoded(batch).from_offset(wanted))

    def missed_some(self, notice: GapNotice) -> None:
        name = self._names.get(notice.number, "")
        gap = Gap(name, notice.partition, notice.first, notice.next, notice.reason)
        self._next[TopicPartition(name, notice.partition)] = notice.next
        self.gaps += 1
        self.missed += max(0, notice.next - notice.first)
        if self._on_gap is not None:
            self._on_gap(gap)
        elif self._wanted.policy is SlowPolicy.SKIP and gap.reason is GapReason.SKIPPED:
            logger.warning("%s", lost_error(gap))
        else:
            self._put(lost_error(gap))

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        """The request that continues this subscription on a new connection."""
        self._stale_bytes = self._queued_bytes
        self._consumed = 0
        self._granted = self._wanted.window_bytes
        resume = tuple(
            Position(*place, offset, self._epochs.get(place, 0), self._numbers.get(place[0], 0))
            for place, offset in self._next.items()
        )
        wanted = msgspec.structs.replace(self._wanted, resume=resume, missing="wait")
        return FrameKind.SUBSCRIBE, wanted

    def _drop_queued(self, place: TopicPartition) -> None:
        """Drops what has come of a partition and was not given yet. What came on a connection
        before this one had its bytes counted there."""
        if not self._items:
            return
        stale_bytes = self._stale_bytes
        freed = 0
        kept: deque[Item] = deque()
        for item in self._items:
            if not isinstance(item, MessageBatch):
                kept.append(item)
                continue
            size = item.batch.header.length
            stale = stale_bytes > 0
            stale_bytes -= size if stale else 0
            if (item.topic, item.partition) != place:
                kept.append(item)
                continue
            self._queued_bytes -= size
            if stale:
                self._stale_bytes -= size
            else:
                freed += size
        self._items = kept
        # Last: a broker in this program sends more at once.
        self._consume(freed)

    def end(self, error: FanlogError) -> None:
        """No more will come; what is here can still be taken."""
        if self._closed is None:
            self._closed = error
            if self._wake is not None and not self._wake.done():
                self._wake.set_result(None)

    def _put(self, item: Item) -> None:
        self._items.append(item)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def lost_error(gap: Gap) -> MessagesLostError:
    where = f"partition {gap.partition} of {gap.topic!r}"
    if gap.reason is GapReason.RESET:
        text = (
            f"The log of {where} is not the one that was read up to offset {gap.first - 1}: a "
            f"power cut took its end, the topic was created again, or it lives in memory and the "
            f"broker was restarted. What came after that is unknown; reading continues at offset "
            f"{gap.next}."
        )
    else:
        because = {
            GapReason.SKIPPED: "the reader was too slow and its policy is to skip",
            GapReason.RETENTION: "they were deleted before they were read",
            GapReason.DAMAGED: "they are damaged on disk",
            GapReason.UNREADABLE: "their producer made a batch that does not decode",
        }[gap.reason]
        text = f"Offsets {gap.first} to {gap.next - 1} of {where} will not come: {because}."
    return MessagesLostError(
        text,
        topic=gap.topic,
        partition=gap.partition,
        first=gap.first,
        next=gap.next,
        reason=gap.reason.value,
    )
