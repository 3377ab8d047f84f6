"""Batches on their way into a transaction: numbered once, sent in order, and sent again after a
loss until each is answered. The broker knows a stager by its identity and a batch by its number, so
that one that comes twice is staged once.
"""

from __future__ import annotations

from collections import deque

from fanlog.client.core.outbox import ProducerIdentity
from fanlog.errors import FanlogError, FormatError


class StagingFrame:
    """The payload of one STAGE frame, in parts. `size` is what its batches take of the buffer, and
    `request` the number that it was sent under last."""

    __slots__ = ("parts", "request", "size")

    def __init__(self, parts: tuple[bytes, ...], size: int) -> None:
        self.parts = parts
        self.size = size
        self.request = 0


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

    def maybe_next_frame(self) -> StagingFrame | None:
        """A frame to send, which is unanswered from now on."""
        if not self._waiting or self.is_full():
            return None
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
        frame = StagingFrame(tuple(parts), size)
        self._unanswered.append(frame)
        return frame

    def unanswered(self) -> tuple[StagingFrame, ...]:
        """What was sent and is not answered, oldest first: to send again on a new connection."""
        return tuple(self._unanswered)

    def answered(self, frame: StagingFrame) -> None:
        self._rounds = 0
        self._unanswered.remove(frame)

    def lost(self, error: FanlogError) -> None:
        """The connection is lost. Raises the error if a new one would not help."""
        if isinstance(error.__cause__, FormatError) or self._rounds == self._rounds_max:
            raise error
        self._rounds += 1

    def clear(self) -> None:
        """Drops everything: the transaction has ended."""
        self._waiting.clear()
        self._unanswered.clear()
