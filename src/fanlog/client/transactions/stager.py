"""Staging under asyncio: records are collected into batches as for publishing, but go into a
transaction (`core/staging.py`)."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable
from typing import Protocol

from fanlog.client.core.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.core.staging import StagedBatches, StagingFrame
from fanlog.client.core.topic_directory import TopicDirectory
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.publishing import Publisher, TopicOpener
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FanlogError, TopicNotFoundError
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


class TransactionStager(Publisher):
    """A publisher whose batches are staged, behind what its client has `sent`. `error` is the first
    error of a batch: the transaction can't be complete any more."""

    def __init__(
        self,
        wire: StagingWire,
        options: ClientOptions,
        open_topic: TopicOpener,
        directory: TopicDirectory,
        sent: Publisher,
    ) -> None:
        async def open_once(name: str) -> TopicOpened:
            """Not every transaction asks for its topics."""
            return directory.maybe_kept(name) or directory.keep(await open_topic(name))

        super().__init__(wire, options, open_once)
        self._sent = sent
        self._directory = directory
        self._staging_wire = wire
        self._staged = StagedBatches(
            ProducerIdentity(secrets.randbits(63) | 1),
            frame_bytes=_FRAME_BYTES,
            frames_max=_FRAMES_IN_FLIGHT,
        )
        self._task: asyncio.Task[None] | None = None
        self.error: FanlogError | None = None

    def begin(self, ticket: str, frame_bytes_max: int) -> None:
        """The transaction has begun."""
        self._staged.ticket = bytes.fromhex(ticket)
        if frame_bytes_max:
            self.limit(frame_bytes_max)

    def _send(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        """Takes over what the outbox has; nothing of it is ever numbered for a log here."""
        staged = self._staged
        outbox.seal()
        taken, outbox.sealed = outbox.sealed, deque()
        for records in taken:
            data = records.encode(
                topic.number, outbox.index, staged.identity, staged.number, topic.codec
            )
            staged.add(data, records.bytes)
            # It has an offset only when the transaction is committed.
            records.end_spans(None)
        # They are stored in this order, whatever their partitions: nothing has to wait for them.
        topic.answered(taken)
        if staged and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stage_all())

    async def look_again(self, topic: TopicOutbox) -> None:
        self._directory.forget(topic.name)
        await super().look_again(topic)

    async def flush(self) -> None:
        """Waits until all is staged, and raises errors. Earlier messages of the client to these
        topics are stored by then: otherwise the transaction commit would overtake them."""
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
        """Drops messages that are not staged yet: the transaction has ended."""
        self.error = self.error or error
        self._staged.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for topic in self.topics.values():
            if isinstance(error, TopicNotFoundError):
                self._directory.forget(topic.name)
            for outbox in topic.partitions:
                outbox.sealed.clear()
                outbox.open = None
        self.buffered_bytes = 0
        self.changed()

    async def _stage_all(self) -> None:
        """Sends frames in order until each is answered, over as many connections as it takes."""
        wire, staged = self._staging_wire, self._staged
        try:
            while staged:
                await wire.connection()
                while staged.maybe_next_frame() is not None:
                    pass
                frames = staged.unanswered()
                answers = await asyncio.gather(*map(self._ask, frames), return_exceptions=True)
                for frame, answer in zip(frames, answers, strict=True):
                    self._take_answer(frame, answer)
                self.changed()
            self._task = None
        except FanlogError as error:
            self._task = None
            self.stop(error)

    async def _ask(self, frame: StagingFrame) -> bytes:
        if not self._staging_wire.ready:
            # It was a moment ago.
            raise ConnectionLostError("The connection was lost before the frame was sent.")
        return await self._staging_wire.request_now(FrameKind.STAGE, b"".join(frame.parts))

    def _take_answer(self, frame: StagingFrame, answer: bytes | BaseException) -> None:
        if isinstance(answer, ConnectionLostError) and self._staging_wire.comes_back:
            self._staged.lost(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            self._staged.answered(frame)
            self.buffered_bytes -= frame.size
