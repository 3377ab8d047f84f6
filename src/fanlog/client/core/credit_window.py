"""The window of a subscription: how many bytes the broker may send. Law: the broker is granted as
many bytes more as are done with, in steps of half a window, so that a slow application holds up
nothing but itself. Bytes that came on a connection before this one are stale: they were granted
there."""

from __future__ import annotations

from collections.abc import Callable


class CreditWindow:
    """Counts bytes. `grant` tells the broker up to where it may send."""

    __slots__ = ("_consumed", "_grant", "_granted", "_size", "queued_bytes", "stale_bytes")

    def __init__(self, size: int, grant: Callable[[int], None]) -> None:
        self._size = size
        self._grant = grant
        self._consumed = 0
        self._granted = size
        self.queued_bytes = 0
        self.stale_bytes = 0

    def consume(self, size: int) -> None:
        """Bytes of this connection are done with."""
        self._consumed += size
        window = self._size
        if window and self._consumed + window - self._granted >= window // 2:
            self._granted = self._consumed + window
            self._grant(self._granted)

    def take(self, size: int) -> bool:
        """Takes a batch of this size out of the queue. True if it came on this connection: then the
        caller consumes it."""
        self.queued_bytes -= size
        if self.stale_bytes > 0:
            self.stale_bytes -= size
            return False
        return True

    def free(self, size: int) -> None:
        """A batch is not queued any more, and done with; as `take`, for every batch."""
        self.queued_bytes -= size
        if self.stale_bytes > 0:
            self.stale_bytes -= size
        else:
            self.consume(size)

    def reconnect(self) -> None:
        """All that is queued came on a connection before."""
        self.stale_bytes = self.queued_bytes
        self._consumed = 0
        self._granted = self._size
