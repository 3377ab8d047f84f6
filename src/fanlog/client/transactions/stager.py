"""Staging: records are collected into batches as for publishing, but go into a transaction. A
batch carries who staged it and its number, so that one that is sent again is staged once."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable
from typing import Protocol

import msgspec

from fanlog.client.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.publishing import Publisher, TopicOpener
from fanlog.client.topic_outbox import TopicOutbox
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FanlogError, FormatError, TopicNotFoundError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import TopicOpened
from fanlog.model import MIB

# Batches that wait are joined into frames of about this size, and so many frames go out at once.
_FRAME_BYTES = 1 * MIB
_FRAMES_IN_FLIGHT = 4


class StagingWire(Protocol):
    """The connection, as far as staging needs it."""

    @property
    def ready(self) -> bool: ...
    @property
    def comes_back(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    async def connection(self) -> None: ...
    def request_now(self, kind: FrameKind, message: bytes) -> Awaitable[bytes]: ...


class KnownTopics:
    """Topics that were opened on this connection, so that not every transaction opens them."""

    def __init__(self, open_topic: TopicOpener) -> None:
        self._open_topic = open_topic
        self._opened: dict[str, TopicOpened] = {}

    async def open(self, name: str) -> TopicOpened:
        opened = self._opened.get(name)
        if opened is None:
            opened = self._opened[name] = await self._open_topic(name)
        return opened

    def grew(self, number: int, partitions: int) -> None:
        """Transactions that begin from now on use a topic's new partitions."""
        for name, opened in self._opened.items():
            if opened.number == number:
                self._opened[name] = with_partitions(opened, partitions)

    def forget(self) -> None:
        """The connection is another, or a topic has another number than it had."""
        self._opened.clear()


def with_partitions(opened: TopicOpened, partitions: int) -> TopicOpened:
    """A topic as it is known, with so many partitions if that is more."""
    if partitions <= opened.settings.partitions:
        return opened
    settings = msgspec.structs.replace(opened.settings, partitions=partitions)
    return msgspec.structs.replace(opened, settings=settings)


class TransactionStager(Publisher):
    """A publisher whose batches are staged, behind what its client has `sent`. `error` is what the
    first of them ran into: the transaction can't be whole any more."""

    def __init__(
        self, wire: StagingWire, options: ClientOptions, known: KnownTopics, sent: Publisher
    ) -> None:
        super().__init__(wire, options, known.open)
        self._sent = sent
        self._known = known
        self._staging_wire = wire
        self._stager = ProducerIdentity(secrets.randbits(63) | 1)
        self._number = 0
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.ticket = b""
        self.error: FanlogError | None = None

    def _send(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        """Takes over what the outbox has; nothing of it is ever numbered for a log here."""
        outbox.seal()
        taken, outbox.sealed = outbox.sealed, deque()
        for records in taken:
            data = records.encode(
                topic.number, outbox.index, self._stager, self._number, topic.codec
            )
            self._number += 1
            self._waiting.append((data, records.bytes))
            # It has an offset only when the transaction is committed.
            records.end_spans(None)
        # They are stored in this order, whatever their partitions: nothing has to wait for them.
        topic.answered(taken)
        if self._waiting and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stage_all())

    async def look_again(self, topic: TopicOutbox) -> None:
        self._known.forget()
        await super().look_again(topic)

    async def flush(self) -> None:
        """Waits until all is staged; raises what it ran into. What the client sent to these topics
        is stored by then: a commit would overtake it."""
        self.flush_soon()
        while self.buffered_bytes > 0:
            self._idle.clear()
            await self._idle.wait()
        self.raise_error()
        await self._sent.settle(self.topics)

    def raise_error(self) -> None:
        if self.error is not None:
            raise type(self.error)(str(self.error))

    def stop(self, error: FanlogError) -> None:
        """Drops what is not staged yet: nobody wants it any more."""
        self.error = self.error or error
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if isinstance(error, TopicNotFoundError):
            self._known.forget()
        for topic in self.topics.values():
            for outbox in topic.partitions:
                outbox.sealed.clear()
                outbox.open = None
        self.buffered_bytes = 0
        self._tell()

    async def _stage_all(self) -> None:
        try:
            while self._waiting:
                frames: list[bytes] = []
                size = 0
                while self._waiting and len(frames) < _FRAMES_IN_FLIGHT:
                    frame, collected = self._next_frame()
                    frames.append(frame)
                    size += collected
                await self._exchange(frames)
                self.buffered_bytes -= size
                self._tell()
            self._task = None
        except FanlogError as error:
            self._task = None
            self.stop(error)

    def _next_frame(self) -> tuple[bytes, int]:
        """A frame's payload, and how much of the buffer it is."""
        parts = [self.ticket]
        size = length = 0
        while self._waiting:
            data, collected = self._waiting[0]
            if length and length + len(data) > _FRAME_BYTES:
                break
            self._waiting.popleft()
            parts.append(data)
            length += len(data)
            size += collected
        return b"".join(parts), size

    async def _exchange(self, frames: list[bytes]) -> None:
        """Sends frames in order until each is answered, over as many connections as it takes."""
        wire = self._staging_wire
        while frames:
            await wire.connection()
            asked = [self._ask(frame) for frame in frames]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            again: list[bytes] = []
            for frame, answer in zip(frames, answers, strict=True):
                if isinstance(answer, ConnectionLostError) and wire.comes_back:
                    if isinstance(answer.__cause__, FormatError):
                        raise answer
                    again.append(frame)
                elif isinstance(answer, BaseException):
                    raise answer
            frames = again

    async def _ask(self, frame: bytes) -> bytes:
        if not self._staging_wire.ready:
            # It was a moment ago.
            raise ConnectionLostError("The connection was lost before the frame was sent.")
        return await self._staging_wire.request_now(FrameKind.STAGE, frame)
