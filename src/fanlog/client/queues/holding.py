"""The leases that a worker has in hand. Law: a lease is kept from running out as long as the
application has its jobs, and no longer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator

from fanlog.client.core.arrivals import Arrivals
from fanlog.client.queues.jobs import LeaseInHand
from fanlog.client.queues.settling import JobSettling, Stretch
from fanlog.format.messages import JobOutcome, OutcomeKind

logger = logging.getLogger("fanlog.client")


class HeldLeases:
    """Those of one worker of a queue."""

    def __init__(
        self, queue: str, prefetch: int, settling: JobSettling, arrivals: Arrivals[LeaseInHand]
    ) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._settling = settling
        self._arrivals = arrivals
        # Weak: jobs that the application has dropped run out, and go to others.
        self._held: weakref.WeakSet[LeaseInHand] = weakref.WeakSet()
        # The jobs in hand when the application waited in vain, and whether that was logged.
        self._stuck_with: set[tuple[Stretch, int, int]] = set()
        self._warned = False
        self._keeping: asyncio.Task[None] | None = None

    def add(self, lease: LeaseInHand) -> None:
        self._held.add(lease)

    def discard(self, lease: LeaseInHand) -> None:
        self._held.discard(lease)

    def ranges(self) -> Iterator[tuple[Stretch, int, int]]:
        for lease in self._held:
            yield lease.stretch, lease.first, lease.next

    # More time

    def keep(self, visibility_seconds: Callable[[], float]) -> None:
        """From now on extends the leases of all jobs in hand, long before they expire."""
        self._keeping = asyncio.ensure_future(self._keep(visibility_seconds))

    def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    async def stopped(self) -> None:
        """Stops, and waits until it has."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self, visibility_seconds: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(visibility_seconds() / 2)
            self._extend()

    def _extend(self) -> None:
        """Apart from `_keep`: a lease in a variable that outlives the turn would be in hand for
        good, also after the application has dropped its jobs."""
        held = list(self._held)
        self._warn_if_stuck(held)
        if held:
            turn = self._settling.turn()
            for lease in held:
                number, partition, epoch = lease.stretch
                extend = JobOutcome(
                    number, partition, OutcomeKind.EXTEND, lease.first, lease.next, -1
                )
                turn.say(epoch, extend)

    def _warn_if_stuck(self, held: list[LeaseInHand]) -> None:
        """Logs once when the application waits for a job and can't get one, because it has reported
        no outcome for its jobs for a long time: it may have forgotten to."""
        waits = self._arrivals.wanted
        left = sum(lease.left for lease in held)
        before, self._stuck_with = (
            self._stuck_with,
            (
                {(lease.stretch, lease.first, lease.left) for lease in held}
                if waits and left >= self._prefetch
                else set()
            ),
        )
        if before and before == self._stuck_with and not self._warned:
            self._warned = True
            logger.warning(
                "a worker of queue %s waits for a job, and has given no outcome on %d that it has "
                "got, as many as its prefetch: if nobody works on them any more, ack them, or use "
                "`async with job`",
                self._queue,
                left,
            )
