"""Staging under asyncio: `core/staging_outbox.py` decides; this opens topics, sends frames, and
waits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable
from typing import Protocol

from fanlog.client.core.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.core.outbox_ports import OutboxClock
from fanlog.client.core.staging import StagingFrame
from fanlog.client.core.staging_outbox import StagingOutbox
from fanlog.client.core.topic_directory import TopicDirectory
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.outbox_waits import OutboxWaits, TopicOpenings, due_later
from fanlog.client.publishing import Publisher, TopicOpener
from fanlog.client.tracing import maybe_tracer
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FanlogError, TopicNotFoundError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import TopicOpened


class StagingWire(Protocol):
    """The connection, as far as staging needs it."""

    @property
    def ready(self) -> bool: ...
    @property
    def comes_back(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    async def connection(self) -> None: ...
    def request_now(self, kind: FrameKind, message: bytes) -> Awaitable[bytes]: ...


class TransactionStager(StagingOutbox):
    """Stages behind what its client has `sent`."""

    def __init__(
        self,
        wire: StagingWire,
        options: ClientOptions,
        open_topic: TopicOpener,
        directory: TopicDirectory,
        sent: Publisher,
    ) -> None:
        clock = OutboxClock(time.monotonic, time.time_ns)
        super().__init__(wire, options, clock, ProducerIdentity(secrets.randbits(63) | 1))
        self._sent = sent
        self._open_topic = open_topic
        self._directory = directory
        self._staging_wire = wire
        self._openings = TopicOpenings(self, self._open)
        self._waits = OutboxWaits(self)
        self._task: asyncio.Task[None] | None = None
        self.tracer = maybe_tracer()

    # Topics

    async def topic(self, name: str) -> TopicOutbox:
        return self.topics.get(name) or await asyncio.shield(self._openings.begin(name))

    async def _open(self, name: str) -> TopicOutbox:
        return self.opened(await self._ask_for(name))

    async def _ask_for(self, name: str) -> TopicOpened:
        """Not every transaction asks for its topics."""
        kept = self._directory.maybe_kept(name)
        return kept or self._directory.keep(await self._open_topic(name))

    async def look_again(self, topic: TopicOutbox) -> None:
        """Asks for the number of partitions, which may have grown."""
        self._directory.forget(topic.name)
        self.opened_again(topic, await self._ask_for(topic.name))

    # Waiting

    def send_later(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        due_later(self, self._options.linger_ms, topic, outbox)

    def changed(self) -> None:
        self._waits.changed()

    async def room(self) -> None:
        """Waits until the buffer has room again."""
        await self._waits.room()

    async def flush(self) -> None:
        """Waits until all is staged, and raises errors. It also waits until earlier messages of the
        client to these topics are stored: otherwise the transaction commit would overtake them."""
        self.flush_soon()
        await self._waits.idle()
        self.raise_error()
        await self._sent.settle(self.topics)

    # Sending

    def stage_soon(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stage_all())

    async def _stage_all(self) -> None:
        """Sends frames, over as many connections as it takes."""
        wire = self._staging_wire
        try:
            while self.is_waiting:
                await wire.connection()
                frames = self.frames()
                answers = await asyncio.gather(*map(self._ask, frames), return_exceptions=True)
                for frame, answer in zip(frames, answers, strict=True):
                    if isinstance(answer, BaseException):
                        self.not_staged(answer, comes_back=wire.comes_back)
                    else:
                        self.staged(frame)
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

    def stop(self, error: FanlogError) -> None:
        """Drops messages that are not staged yet: the transaction has ended."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if isinstance(error, TopicNotFoundError):
            for name in self.topics:
                self._directory.forget(name)
        self.drop(error)
