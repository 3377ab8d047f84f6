"""A client's connection, which reconnects by itself. It passes events to the publisher and the
followers, and all of them resume on a new connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Literal, Self
from weakref import WeakValueDictionary

import msgspec

from fanlog.client.arguments import topic_name
from fanlog.client.core import events
from fanlog.client.core.decoded_batches import DecodedBatches
from fanlog.client.core.events import Event
from fanlog.client.core.follower import ClientFollower, FollowerTable
from fanlog.client.core.topic_directory import TopicDirectory, opening
from fanlog.client.kept import KeptWarnings
from fanlog.client.link import Dial
from fanlog.client.message import MessageBatch
from fanlog.client.publishing import Publisher
from fanlog.client.session import ClientSession, SessionHooks
from fanlog.client.subscription import Leaving
from fanlog.config import ClientOptions
from fanlog.errors import (
    FanlogError,
    LinkError,
    RequestTimeoutError,
)
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.codecs import UnpackLimits
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode


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
        self._followers = FollowerTable()
        # Weak: one that the broker has ended is forgotten by itself.
        self._leaving: WeakValueDictionary[int, Leaving] = WeakValueDictionary()
        self._topics = TopicDirectory()
        self._decoded = DecodedBatches()
        self._publisher = Publisher(self._session, options, self.open_topic, self._find_topic)
        self._kept_warnings = KeptWarnings()

    # The connection

    async def open(self) -> None:
        """Connects for the first time; a failure is raised after `wait_seconds`."""
        await self._session.open()

    async def close(self, *, flush: bool = True) -> None:
        """Waits for the published messages, then disconnects.

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
        """How often a lost connection was restored."""
        return self._session.reconnects

    @property
    def welcome(self) -> messages.Welcome | None:
        """The broker's WELCOME."""
        return self._session.welcome

    async def _take_leave(self) -> None:
        """The last messages before the connection is closed."""
        for key, leaving in list(self._leaving.items()):
            if self._followers.has(key):
                await leaving.close()

    # What the session brings

    async def _resume(self, welcome: messages.Welcome) -> None:
        self._topics.clear()
        self._publisher.greeted(welcome)
        await self._publisher.register(self._register_producer)
        await self._publisher.resume(self._reopen_topic, welcome.epoch)
        for follower in self._followers.attached():
            await self._resume_follower(follower)

    async def _resume_follower(self, follower: ClientFollower) -> None:
        kind, wanted = follower.resuming()
        opened = partial(self._followers.opened, follower)
        try:
            await self._session.request_now(kind, wanted, aux=follower.key, on_answer=opened)
        except FanlogError as error:
            if isinstance(error, LinkError):
                raise
            self._followers.end(follower.key, error)

    def _resumed(self) -> None:
        self._publisher.resumed()

    def _tick(self) -> None:
        self._publisher.check_overdue()

    def _gave_up(self, error: FanlogError) -> None:
        self._publisher.give_up(error)
        self._followers.end_all(error)

    def _heard(self, event: Event) -> None:
        match event:
            case events.Delivered(key, batch):
                self._followers.delivered(key, batch)
            case events.Acked(acks):
                self._publisher.acked(acks)
            case events.BatchRefused(refused):
                self._publisher.refused(refused)
            case events.TopicGrew(grew):
                self._topics.grew(grew.number, grew.partitions)
                self._publisher.grew(grew.number, grew.partitions)
            case _:
                self._followers.heard(event)

    # For what belongs to this client

    def write(self, data: bytes) -> None:
        self._session.write(data)

    async def attach(self, follower: ClientFollower, *, leaving: Leaving | None = None) -> None:
        """Sends a follower's first request. `leaving` is closed before the connection is."""
        kind, wanted = self._followers.begin(follower)
        opened = partial(self._followers.opened, follower)
        if leaving is not None:
            self._leaving[follower.key] = leaving
        try:
            await self._session.request(kind, wanted, aux=follower.key, on_answer=opened)
        except BaseException as fault:
            take_back = self._followers.given_up(follower, fault)
            # At once, because a cancelled caller may not be able to wait.
            if take_back and self._session.ready:
                self.write(take_back)
            raise

    async def detach(self, follower: ClientFollower, *, keep: bool = False) -> None:
        """Ends a follower. With `keep` a worker keeps its jobs, also those that arrive before the
        broker's answer."""
        if keep and self._followers.has(follower.key):
            await self._session.request(
                FrameKind.UNSUBSCRIBE, messages.Unsubscribe(keep=True), aux=follower.key
            )
            self._followers.remove(follower)
            return
        if self._followers.remove(follower) and self._session.ready:
            with contextlib.suppress(LinkError):
                await self._session.request_now(
                    FrameKind.UNSUBSCRIBE, messages.Goodbye(), aux=follower.key
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
        """A number for a new follower of this connection."""
        return self._followers.take_number()

    def decoded(self, batch: Batch) -> MessageBatch:
        """The batch, decoded once for all subscriptions of this client that get it."""
        return self._decoded.get(batch)

    async def open_topic(self, name: str) -> messages.TopicOpened:
        """Opens a topic to publish to it, and returns its number and settings."""
        wanted = opening(topic_name(name))
        return self._topics.take(await self._session.request(FrameKind.OPEN_TOPIC, wanted))

    async def _find_topic(self, name: str) -> messages.TopicOpened:
        """The same for an existing topic; none is created."""
        wanted = messages.OpenTopic(topic_name(name), create=False)
        return self._topics.take(await self._session.request(FrameKind.OPEN_TOPIC, wanted))

    async def _reopen_topic(self, name: str, create: bool) -> messages.TopicOpened:
        """The same while a new connection resumes."""
        wanted = opening(topic_name(name)) if create else messages.OpenTopic(name, create=False)
        return self._topics.take(await self._session.request_now(FrameKind.OPEN_TOPIC, wanted))

    async def _register_producer(
        self, wanted: messages.RegisterProducer
    ) -> messages.ProducerRegistered:
        payload = await self._session.request_now(FrameKind.REGISTER_PRODUCER, wanted)
        return decode(messages.ProducerRegistered, payload)
