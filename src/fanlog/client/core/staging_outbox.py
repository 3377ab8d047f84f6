"""What a transaction stages, without I/O: records are collected into batches as for publishing, and
go into frames of a transaction instead of a log. A shell sends the frames, and says what became of
them.

Law: after the first error the transaction can't be complete any more: nothing else is staged, and
every later call raises that error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque

from fanlog.client.core.client_outbox import ClientOutbox
from fanlog.client.core.outbox import PartitionOutbox, ProducerIdentity
from fanlog.client.core.outbox_ports import OutboxClock, Wire
from fanlog.client.core.staging import StagedBatches, StagingFrame
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FanlogError
from fanlog.format.messages import TopicOpened
from fanlog.model import MIB

# Waiting batches are joined into frames of about this size, and at most this number of frames waits
# for answers.
_FRAME_BYTES = 1 * MIB
_FRAMES_IN_FLIGHT = 4
# Batches are numbered for the transaction, and never for a log.
_NOT_NUMBERED = ProducerIdentity(0)


class StagingOutbox(ClientOutbox):
    """`stager` is who stages: the broker drops a batch of it that comes twice. `error` is the first
    error of a batch."""

    def __init__(
        self, wire: Wire, options: ClientOptions, clock: OutboxClock, stager: ProducerIdentity
    ) -> None:
        super().__init__(wire, options, clock, _NOT_NUMBERED)
        self._staged = StagedBatches(stager, frame_bytes=_FRAME_BYTES, frames_max=_FRAMES_IN_FLIGHT)
        self.error: FanlogError | None = None

    @abstractmethod
    def stage_soon(self) -> None:
        """Sends `frames` until nothing `is_waiting`."""

    def find_again(self, topic: TopicOutbox) -> None:
        """Nothing is refused on its way into a transaction."""

    def begin(self, ticket: str, frame_bytes_max: int) -> None:
        """The transaction has begun."""
        self._staged.ticket = bytes.fromhex(ticket)
        if frame_bytes_max:
            self.limit(frame_bytes_max)

    def replaced(self, topic: TopicOutbox, opened: TopicOpened) -> None:
        """Nothing is in flight to a topic."""
        self.moved(topic, opened)

    def _send(self, topic: TopicOutbox, outbox: PartitionOutbox) -> None:
        """Takes over what the outbox has."""
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
        if staged:
            self.stage_soon()

    # Frames out, and their answers

    @property
    def is_waiting(self) -> bool:
        """Whether something is not staged yet."""
        return bool(self._staged)

    def frames(self) -> tuple[StagingFrame, ...]:
        """What to send now on the current connection, in order."""
        return self._staged.frames_due()

    def staged(self, frame: StagingFrame) -> None:
        """The broker has the batches of a frame."""
        self._staged.answered(frame)
        self.buffered_bytes -= frame.size

    def not_staged(self, error: BaseException, *, comes_back: bool) -> None:
        """A frame has no answer. Raises the error, unless `frames` has it again for a connection
        that `comes_back`."""
        if not isinstance(error, ConnectionLostError):
            raise error
        self._staged.lost(error, comes_back=comes_back)

    # The end

    def raise_error(self) -> None:
        if self.error is not None:
            raise type(self.error)(str(self.error))

    def drop(self, error: FanlogError) -> None:
        """Drops messages that are not staged yet: the transaction has ended."""
        self.error = self.error or error
        self._staged.clear()
        for topic in self.topics.values():
            for outbox in topic.partitions:
                outbox.sealed.clear()
                outbox.open = None
        self.buffered_bytes = 0
        self.changed()
