"""The leases that a worker of a queue has in hand: runs of jobs of one batch.

Law: a lease is kept from running out as long as the application has its jobs, and no longer."""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_left
from collections.abc import Iterator

from fanlog.client.message import Message, MessageBatch
from fanlog.format.frames import Lease

logger = logging.getLogger("fanlog.client")

# Topic number, partition, and the broker's epoch when the jobs were handed out.
Stretch = tuple[int, int, int]


class LeaseInHand:
    """A run of jobs of one batch. `left` counts those without an outcome."""

    __slots__ = (
        "__weakref__",
        "batch",
        "deliveries",
        "first",
        "lease",
        "left",
        "next",
        "stretch",
    )

    def __init__(self, lease: Lease, batch: MessageBatch, epoch: int) -> None:
        self.lease = lease
        self.batch = batch
        self.stretch: Stretch = (lease.number, lease.partition, epoch)
        self.first = lease.first
        self.next = lease.next
        self.deliveries = lease.deliveries
        self.left = lease.next - lease.first

    @property
    def messages(self) -> list[Message]:
        offsets = self.batch.batch.offsets
        begin, end = bisect_left(offsets, self.first), bisect_left(offsets, self.next)
        return self.batch.messages[begin:end]

    def is_empty(self) -> bool:
        """Whether compaction has left nothing of it."""
        offsets = self.batch.batch.offsets
        if isinstance(offsets, range):
            return False
        return bisect_left(offsets, self.first) == bisect_left(offsets, self.next)

    def extent(self, offset: int) -> tuple[int, int]:
        """The offsets of one job's outcome: its own, and neighbouring ones whose records compaction
        has removed. Otherwise those would never be settled."""
        offsets = self.batch.batch.offsets
        if isinstance(offsets, range):
            return offset, offset + 1
        i = bisect_left(offsets, offset)
        is_first = i == 0 or offsets[i - 1] < self.first
        is_last = i + 1 == len(offsets) or offsets[i + 1] >= self.next
        return self.first if is_first else offset, self.next if is_last else offsets[i + 1]

    def part(self, first: int, next: int) -> LeaseInHand:
        """Some jobs of it, as a lease of their own."""
        lease = self.lease._replace(first=first, next=next)
        return LeaseInHand(lease, self.batch, self.stretch[2])


class HeldLeases:
    """The leases of one worker of a queue."""

    __slots__ = ("_held", "_prefetch", "_queue", "_stuck_with", "_warned")

    def __init__(self, queue: str, prefetch: int) -> None:
        self._queue = queue
        self._prefetch = prefetch
        # Weak: jobs that the application has dropped run out, and go to others. A dictionary keeps
        # their order, which a set does not.
        self._held: weakref.WeakKeyDictionary[LeaseInHand, None] = weakref.WeakKeyDictionary()
        # The jobs in hand when the application waited in vain, and whether that was logged.
        self._stuck_with: set[tuple[Stretch, int, int]] = set()
        self._warned = False

    def add(self, lease: LeaseInHand) -> None:
        self._held[lease] = None

    def discard(self, lease: LeaseInHand) -> None:
        self._held.pop(lease, None)

    def count(self, lease: LeaseInHand, jobs: int) -> None:
        """Counts jobs with an outcome; a negative number takes outcomes back."""
        lease.left -= jobs
        if lease.left <= 0:
            self._held.pop(lease, None)
        elif jobs < 0:
            self._held[lease] = None

    def ranges(self) -> Iterator[tuple[Stretch, int, int]]:
        for lease in self._held:
            yield lease.stretch, lease.first, lease.next

    def warn_if_stuck(self, *, waited: bool) -> None:
        """Logs once when the application has `waited` for a job and can't get one, because it has
        reported no outcome for its jobs for a long time: it may have forgotten to."""
        held = list(self._held)
        left = sum(lease.left for lease in held)
        before, self._stuck_with = (
            self._stuck_with,
            (
                {(lease.stretch, lease.first, lease.left) for lease in held}
                if waited and left >= self._prefetch
                else set()
            ),
        )
        if before and before == self._stuck_with and not self._warned:
            self._warned = True
            logger.warning(
                "a worker of queue %s waits for a job, but %d jobs that it has received have "
                "no outcome yet, which is its whole prefetch: ack the jobs that are done, or "
                "use `async with job`",
                self._queue,
                left,
            )
