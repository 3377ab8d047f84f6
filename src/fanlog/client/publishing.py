"""Publishing under asyncio: the shell of `ClientOutbox`, which waits, lingers and opens topics."""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypedDict, TypeVar

from fanlog.client.core.client_outbox import ClientOutbox
from fanlog.client.core.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.core.outbox_ports import OutboxClock, Wire
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.outbox_waits import OutboxWaits, TopicOpenings, due_later
from fanlog.client.tracing import maybe_tracer
from fanlog.client.values import Encoding, Headers, Value
from fanlog.config import ClientOptions
from fanlog.errors import FanlogError, FencedError, RequestTimeoutError
from fanlog.format.frames import Ack
from fanlog.format.messages import ProducerRegistered, RegisterProducer, TopicOpened, Welcome
from fanlog.model import Durability, DurabilityName, Receipt

T = TypeVar("T")
TopicOpener = Callable[[str], Awaitable[TopicOpened]]
# Opens a topic by its name, and creates it if the flag says so.
TopicReopener = Callable[[str, bool], Awaitable[TopicOpened]]
Register = Callable[[RegisterProducer], Awaitable[ProducerRegistered]]


class PublishOptions(TypedDict, total=False):
    """The arguments of `publish` besides the value."""

    key: bytes | str | None
    headers: Headers | None
    event_time: dt.datetime | int | None
    partition: int | None
    priority: int
    encoding: Encoding | None
    timeout_seconds: float | None


class _Publish:
    """Waits for one record's acknowledgement."""

    __slots__ = ("future", "topic")

    def __init__(self, future: asyncio.Future[Receipt], topic: str) -> None:
        self.future = future
        self.topic = topic

    def stored(self, offset: int, ack: Ack) -> None:
        if not self.future.done():
            self.future.set_result(
                Receipt(
                    self.topic,
                    ack.partition,
                    offset,
                    _DURABILITY[ack.durability],
                    ack.append_time_us,
                    bool(ack.duplicate),
                )
            )

    def failed(self, error: FanlogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


_DURABILITY: dict[int, DurabilityName] = {
    Durability.MEMORY: "memory",
    Durability.OS: "os",
    Durability.FSYNC: "fsync",
}


class Publisher(ClientOutbox):
    """`open_topic` and `find_topic` ask the broker. `find_topic` creates nothing."""

    def __init__(
        self,
        wire: Wire,
        options: ClientOptions,
        open_topic: TopicOpener,
        find_topic: TopicOpener | None = None,
    ) -> None:
        # A named producer gets its id from the broker before anything is sent. 0: not numbered.
        unnamed = options.idempotent and not options.producer
        identity = ProducerIdentity(secrets.randbits(63) | 1 if unnamed else 0)
        super().__init__(wire, options, OutboxClock(time.monotonic, time.time_ns), identity)
        self._open_topic = open_topic
        # For a deleted topic: publishing must not create it again.
        self._find_topic = find_topic or open_topic
        self._moving: dict[TopicOutbox, asyncio.Task[None]] = {}
        self._openings = TopicOpenings(self, self._open)
        self._waits = OutboxWaits(self)
        self.tracer = maybe_tracer()

    def greeted(self, welcome: Welcome) -> None:
        self.tracer = maybe_tracer()
        super().greeted(welcome)

    # Topics

    async def topic(self, name: str) -> TopicOutbox:
        if self.fenced is not None:
            raise FencedError(str(self.fenced))
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        return await asyncio.shield(self._openings.begin(name))

    async def put_when_opened(
        self, name: str, partition: int | None, put: Callable[[TopicOutbox], T]
    ) -> tuple[T] | None:
        """Opens a topic and puts a record, in the order of the calls. None if it can't be put yet:
        there is no room, or no such partition yet."""
        turn: asyncio.Future[tuple[T] | None] = asyncio.get_running_loop().create_future()

        def opened(opening: asyncio.Future[TopicOutbox]) -> None:
            if turn.done():
                return
            if opening.cancelled():
                turn.cancel()
                return
            try:
                topic = opening.result()
                there = partition is None or partition < len(topic.partitions)
                room = self.buffered_bytes < self.buffer_bytes_max
                turn.set_result((put(topic),) if there and room else None)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                turn.set_exception(error)

        # These are called one right after the other, in the order in which they were added.
        self._openings.begin(name).add_done_callback(opened)
        return await turn

    async def _open(self, name: str) -> TopicOutbox:
        return self.opened(await self._open_topic(name))

    async def look_again(self, topic: TopicOutbox) -> None:
        """Asks for the number of partitions, which may have grown. If another topic has the name
        now, it waits until the publisher has moved there."""
        self.opened_again(topic, await self._open_topic(topic.name))
        await self._waits.while_true(lambda: self.is_moving(topic))

    def find_again(self, topic: TopicOutbox) -> None:
        if topic not in self._moving:
            moving = self._moving[topic] = asyncio.ensure_future(self._move(topic))
            moving.add_done_callback(lambda _: self._moving.pop(topic, None))

    async def _move(self, topic: TopicOutbox) -> None:
        try:
            opened = await self._find_topic(topic.name)
        except FanlogError as error:
            self.not_found(topic, error)
        else:
            self.moved(topic, opened)

    # Publishing and waiting

    async def room(self) -> None:
        """Waits until the buffer has room again."""
        await self._waits.room()

    def publish(
        self,
        topic: TopicOutbox,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time_us: int | None = None,
        *,
        partition: int | None = None,
        priority: int = 0,
    ) -> asyncio.Future[Receipt]:
        """Adds a record whose outcome the future will be."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        waiter = _Publish(future, topic.name)
        self.put(
            topic,
            value,
            key,
            headers,
            event_time_us,
            partition=partition,
            priority=priority,
            waiter=waiter,
        )
        return future

    def send_later(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        due_later(self, self._options.linger_ms, topic, outbox)

    async def flush(self) -> None:
        """Waits until the broker has answered everything. Raises the errors of fire-and-forget
        records since the last call."""
        self.flush_soon()
        await self._waits.idle()
        self.raise_unwatched()

    async def settle(self, names: Iterable[str]) -> None:
        """Waits until the broker has answered everything put for these topics so far: later
        requests come after that."""
        settling = self.settling(names)
        timeout = self._options.delivery_timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                await self._waits.while_true(lambda: settling.waits)
        except TimeoutError:
            raise RequestTimeoutError(
                f"Earlier messages were not acknowledged within {timeout} s, so nothing else "
                "was sent. The client keeps trying: try again when the broker runs."
            ) from None

    def changed(self) -> None:
        self._waits.changed()

    # The connection came back

    async def register(self, ask: Register) -> None:
        """Registers the producer's name, if it has one."""
        topics = self.all_topics()
        wanted = self.registering()
        if wanted is not None:
            try:
                self.registered(await ask(wanted))
            except FencedError as error:
                self.registered(error)
        self.give_up_fenced(topics)

    async def resume(self, open_topic: TopicReopener, epoch: int) -> None:
        """Opens the topics again, and sends everything that was not acknowledged, in order. `epoch`
        is the broker's."""
        for topic in self.lost():
            try:
                opened = await open_topic(topic.name, topic.may_be_lost(epoch))
            except FanlogError as error:
                self.not_reopened(topic, error)
            else:
                self.reopened(topic, opened)
