"""Batches on their way into a transaction: numbered once, sent in order, and sent again after a
loss until each is answered. The broker knows a stager by its identity and a batch by its number, so
that one that comes twice is staged once.

This decides what goes out on which connection, for the client and for Spark. A shell sends the
`frames_due`, and says which are `answered` and when a connection is `lost`.
"""

from __future__ import annotations

from collections import deque

from fanlog.client.core.outbox import ProducerIdentity
from fanlog.errors import FanlogError, FormatError


class StagingFrame:
    """The payload of one STAGE frame, in parts. `size` is what its batches take of the buffer, and
    `request` the number that it was sent under last. `out`: the current connection has it."""

    __slots__ = ("out", "parts", "request", "size")

    def __init__(self, parts: tuple[bytes, ...], size: int) -> None:
        self.parts = parts
        self.size = size
        self.request = 0
        self.out = False


class StagedBatches:
    """Batches of one stager. They are joined into frames of about `frame_bytes`. At most
    `frames_max` frames wait for answers. After `rounds_max` losses in a row without an answer
    between them it gives up."""

    __slots__ = (
        "_frame_bytes",
        "_frames_max",
        "_rounds",
        "_rounds_max",
        "_unanswered",
        "_waiting",
        "identity",
        "number",
        "ticket",
    )

    def __init__(
        self,
        identity: ProducerIdentity,
        *,
        frame_bytes: int,
        frames_max: int,
        rounds_max: int | None = None,
        ticket: bytes = b"",
    ) -> None:
        self.identity = identity
        # The number to encode the next batch with.
        self.number = 0
        self.ticket = ticket
        self._frame_bytes = frame_bytes
        self._frames_max = frames_max
        self._rounds_max = rounds_max
        self._rounds = 0
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._unanswered: list[StagingFrame] = []

    def __bool__(self) -> bool:
        """Whether something is not staged yet."""
        return bool(self._waiting or self._unanswered)

    def add(self, data: bytes, size: int = 0) -> None:
        """A batch that was encoded with `identity` and `number`."""
        self.number += 1
        self._waiting.append((data, size))

    def is_full(self) -> bool:
        """Whether an answer has to come before another frame may go out."""
        return len(self._unanswered) >= self._frames_max

    def frames_due(self) -> tuple[StagingFrame, ...]:
        """What to send now on the current connection, in order: what a lost one had, and then as
        many new frames as may wait for answers."""
        while self._waiting and not self.is_full():
            self._unanswered.append(self._next_frame())
        due = tuple(frame for frame in self._unanswered if not frame.out)
        for frame in due:
            frame.out = True
        return due

    def _next_frame(self) -> StagingFrame:
        parts = [self.ticket]
        size = length = 0
        while self._waiting:
            data, collected = self._waiting[0]
            if length and length + len(data) > self._frame_bytes:
                break
            self._waiting.popleft()
            parts.append(data)
            length += len(data)
            size += collected
        return StagingFrame(tuple(parts), size)

    @property
    def oldest(self) -> StagingFrame:
        """The frame whose answer comes next."""
        return self._unanswered[0]

    def answered(self, frame: StagingFrame) -> None:
        self._rounds = 0
        self._unanswered.remove(frame)

    def lost(self, error: FanlogError, *, comes_back: bool = True) -> None:
        """The connection is lost: all frames without an answer are due on the next one. Raises the
        error if there will be none, or if it would not help. It may be called for each frame."""
        if not comes_back or isinstance(error.__cause__, FormatError):
            raise error
        if not any(frame.out for frame in self._unanswered):
            return
        if self._rounds == self._rounds_max:
            raise error
        self._rounds += 1
        for frame in self._unanswered:
            frame.out = False

    def clear(self) -> None:
        """Drops everything: the transaction has ended."""
        self._waiting.clear()
        self._unanswered.clear()
