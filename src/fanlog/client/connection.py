"""A client's connection, which reconnects by itself. It passes events to the publisher and the
followers, and all of them resume on a new connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

import msgspec

from fanlog.client.arguments import (
    topic_name,
)
from fanlog.client.core import events
from fanlog.client.core.events import Event
from fanlog.client.core.topic_directory import TopicDirectory, opening
from fanlog.client.follower import ClientFollower
from fanlog.client.kept import KeptWarnings
from fanlog.client.link import Dial
from fanlog.client.message import MessageBatch
from fanlog.client.publishing import Publisher
from fanlog.client.session import ClientSession, SessionHooks
from fanlog.config import ClientOptions
from fanlog.errors import (
    FanlogError,
    LinkError,
    RequestTimeoutError,
    UnreadableError,
)
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.codecs import UnpackLimits
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import decode

_SHARED_BYTES_MAX = 4 * 1024 * 1024


class ClientConnection:
    """The base of every part of a client. `on_lost` is called with the reason when the connection
    is lost, and `on_back` when everything has resumed."""

    def __init__(self, dial: Dial, options: ClientOptions, *, verify: bool = True) -> None:
        self._options = options
        self._verify = verify
        self._limits = UnpackLimits(options.batch_unpacked_bytes_max)
        hooks = SessionHooks(
            resume=self._resume,
            resumed=self._resumed,
            heard=self._heard,
            tick=self._tick,
            gave_up=self._gave_up,
            lost=lambda error: self.on_lost(error) if self.on_lost is not None else None,
            back=lambda: self.on_back() if self.on_back is not None else None,
        )
        self.on_lost: Callable[[FanlogError], None] | None = None
        self.on_back: Callable[[], None] | None = None
        self._session = ClientSession(hooks, dial, options, verify=verify)
        self._subscriptions: dict[int, ClientFollower] = {}
        self._subscription_number = 0
        self._topics = TopicDirectory()
        self._shared: OrderedDict[tuple[int, int, int], MessageBatch] = OrderedDict()
        self._shared_bytes = 0
        self._publisher = Publisher(self._session, options, self.open_topic, self._find_topic)
        self._kept_warnings = KeptWarnings()

    # The connection

    async def open(self) -> None:
        """Connects for the first time; a failure is raised after `wait_seconds`."""
        await self._session.open()

    async def close(self, *, flush: bool = True) -> None:
        """Waits for what was published, then says goodbye.

        >>> await client.close()
        """
        try:
            if flush and self._session.ready:
                async with asyncio.timeout(self._options.request_timeout_seconds):
                    await self._publisher.flush()
                    await self._take_leave()
        except TimeoutError:
            raise RequestTimeoutError(
                "The broker did not acknowledge everything within "
                f"{self._options.request_timeout_seconds} s (request_timeout_seconds) before the "
                "close: the last messages may or may not be stored."
            ) from None
        finally:
            await self._session.shut()
        if flush:
            self._publisher.raise_unwatched()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    @property
    def connected(self) -> bool:
        """Whether the client is connected to the broker."""
        return self._session.ready

    @property
    def state(self) -> Literal["connected", "reconnecting", "closed"]:
        """`closed` is final: `close()` was called, or the connection is lost and `reconnect` is
        off."""
        if self._session.closed is not None:
            return "closed"
        return "connected" if self._session.ready else "reconnecting"

    @property
    def reconnects(self) -> int:
        """How often a lost connection was brought back."""
        return self._session.reconnects

    @property
    def welcome(self) -> messages.Welcome | None:
        """The broker's WELCOME."""
        return self._session.welcome

    async def _take_leave(self) -> None:
        """The last messages before the connection is closed."""

    # What the session brings

    async def _resume(self, welcome: messages.Welcome) -> None:
        self._topics.clear()
        self._publisher.greeted(welcome)
        await self._publisher.register(self._register_producer)
        await self._publisher.resume(self._reopen_topic)
        for subscription in list(self._subscriptions.values()):
            if subscription.attached:
                await self._resubscribe(subscription)

    async def _resubscribe(self, subscription: ClientFollower) -> None:
        try:
            await self.attach(subscription, again=True)
        except FanlogError as error:
            if isinstance(error, LinkError):
                raise
            self._subscriptions.pop(subscription.key, None)
            subscription.end(error)

    def _resumed(self) -> None:
        self._publisher.resumed()

    def _tick(self) -> None:
        self._publisher.check_overdue()

    def _gave_up(self, error: FanlogError) -> None:
        self._publisher.give_up(error)
        for subscription in list(self._subscriptions.values()):
            subscription.end(error)

    def _heard(self, event: Event) -> None:
        match event:
            case events.Delivered(key, batch):
                subscription = self._subscriptions.get(key)
                if subscription is not None:
                    subscription.delivered(batch)
            case events.Acked(acks):
                self._publisher.acked(acks)
            case events.BatchRefused(refused):
                self._publisher.refused(refused)
            case events.TopicGrew(grew):
                self._topics.grew(grew.number, grew.partitions)
                self._publisher.grew(grew.number, grew.partitions)
            case events.MessagesMissed(key, gap) if key in self._subscriptions:
                self._subscriptions[key].missed_some(gap)
            case events.TopicJoined(key, joined) if key in self._subscriptions:
                self._subscriptions[key].joined(joined)
            case events.TopicLeft(key, left) if key in self._subscriptions:
                self._subscriptions[key].left(left)
            case events.Noticed(key, notice) if key in self._subscriptions:
                self._subscriptions[key].noticed(notice)
            case events.Revoked(key, revoke) if key in self._subscriptions:
                self._subscriptions[key].revoked(revoke)
            case events.Leased(key, lease) if key in self._subscriptions:
                self._subscriptions[key].leased(lease)
            case events.Ended(key, error) if key in self._subscriptions:
                self._subscriptions.pop(key).end(error)
            case events.RequestFailed(_, error, key) if key in self._subscriptions:
                self._subscriptions.pop(key).end(error)
            case _:
                pass

    # For what belongs to this client

    def write(self, data: bytes) -> None:
        self._session.write(data)

    async def attach(self, follower: ClientFollower, *, again: bool = False) -> None:
        """Sends a follower's request: its first, or the one that continues it."""

        def opened(payload: bytes) -> None:
            follower.attached = True
            follower.opened(payload)

        kind, wanted = follower.resuming() if again else follower.opening()
        ask = self._session.request_now if again else self._session.request
        self._subscriptions[follower.key] = follower
        try:
            await ask(kind, wanted, aux=follower.key, on_answer=opened)
        except BaseException as fault:
            if not again:
                self._subscriptions.pop(follower.key, None)
                follower.attached = False
                if isinstance(fault, RequestTimeoutError) or not isinstance(fault, FanlogError):
                    self._take_back(follower)
            raise

    def _take_back(self, follower: ClientFollower) -> None:
        """Ends a follower that was given up: the broker may have started it, and would keep
        partitions and jobs for a client that does not take them. Written at once, because a
        cancelled caller may not be able to wait. Request 0 drops the answer."""
        if self._session.ready:
            self.write(message_frame(FrameKind.UNSUBSCRIBE, messages.Goodbye(), aux=follower.key))

    async def detach(self, subscription: ClientFollower, *, keep: bool = False) -> None:
        """Ends a follower. With `keep` a worker keeps its jobs, also those that arrive before the
        broker's answer."""
        if keep and self._subscriptions.get(subscription.key) is subscription:
            await self._session.request(
                FrameKind.UNSUBSCRIBE, messages.Unsubscribe(keep=True), aux=subscription.key
            )
            self._subscriptions.pop(subscription.key, None)
            return
        if self._subscriptions.pop(subscription.key, None) is not None and self._session.ready:
            with contextlib.suppress(LinkError):
                await self._session.request_now(
                    FrameKind.UNSUBSCRIBE, messages.Goodbye(), aux=subscription.key
                )

    async def ask(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        repeat: bool = True,
        on_answer: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """Sends a request and returns the answer, for parts of this client. `repeat` is off for
        requests that must not be sent again when the connection is lost."""
        return await self._session.request(
            kind, message, aux=aux, repeat=repeat, on_answer=on_answer
        )

    def take_number(self) -> int:
        """A number for one more follower of this connection."""
        self._subscription_number += 1
        return self._subscription_number

    def decoded(self, batch: Batch) -> MessageBatch:
        """The batch, decoded once for all subscriptions of this client that get it."""
        header = batch.header
        place = (header.topic, header.partition, header.base_offset)
        shared = self._shared.get(place)
        # Compaction may have left less of it since.
        if shared is None or _checksums(shared.batch) != _checksums(batch):
            if shared is not None:
                self._shared_bytes -= _size(shared.batch)
            shared = self._shared[place] = MessageBatch(batch)
            self._shared_bytes += _size(batch)
            while self._shared_bytes > _SHARED_BYTES_MAX and len(self._shared) > 1:
                _, oldest = self._shared.popitem(last=False)
                self._shared_bytes -= _size(oldest.batch)
        return shared

    async def open_topic(self, name: str) -> messages.TopicOpened:
        """Opens a topic to publish to it, and returns its number and settings."""
        wanted = opening(topic_name(name))
        return self._topics.take(await self._session.request(FrameKind.OPEN_TOPIC, wanted))

    async def _find_topic(self, name: str) -> messages.TopicOpened:
        """The same for an existing topic; none is created."""
        wanted = messages.OpenTopic(topic_name(name), create=False)
        return self._topics.take(await self._session.request(FrameKind.OPEN_TOPIC, wanted))

    async def _reopen_topic(self, name: str) -> messages.TopicOpened:
        """The same while a new connection resumes."""
        wanted = opening(topic_name(name))
        return self._topics.take(await self._session.request_now(FrameKind.OPEN_TOPIC, wanted))

    async def _register_producer(
        self, wanted: messages.RegisterProducer
    ) -> messages.ProducerRegistered:
        payload = await self._session.request_now(FrameKind.REGISTER_PRODUCER, wanted)
        return decode(messages.ProducerRegistered, payload)


def _size(batch: Batch) -> int:
    """The size of a batch when decoded; its own size if it can't be decoded."""
    try:
        return batch.unpacked_bytes
    except UnreadableError:
        return batch.header.length


def _checksums(batch: Batch) -> tuple[int, int]:
    return batch.header.header_crc, batch.header.body_crc
