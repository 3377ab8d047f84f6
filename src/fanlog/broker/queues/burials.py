"""Doomed jobs on their way to the dead letters: buried at once, or again and again until the
dead-letter topic takes them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fanlog.broker.clocks import Clocks
from fanlog.broker.queues.dead_letters import DeadLetterWriter, Grave
from fanlog.broker.queues.lanes import Lane
from fanlog.broker.queues.ledger import QueueLedger
from fanlog.broker.queues.queue import Queue
from fanlog.broker.queues.spans import JobSpan
from fanlog.errors import FanlogError
from fanlog.model import Durability

logger = logging.getLogger("fanlog.broker")

# Dead letters that could not be stored are tried again after this.
_AGAIN_US = 5_000_000


class Burials:
    def __init__(self, letters: DeadLetterWriter, ledger: QueueLedger, clocks: Clocks) -> None:
        self._letters = letters
        self._ledger = ledger
        self._clocks = clocks
        self._later: list[tuple[int, Queue, Lane, JobSpan]] = []

    def bury(
        self,
        queue: Queue,
        lane: Lane,
        doomed: list[JobSpan],
        done: Callable[[], None] | None = None,
    ) -> None:
        """Makes dead letters of doomed jobs, and then counts them as done. `done` is called when
        they are, or when it has to be tried again later."""
        left = len(doomed)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if not left and done is not None:
                done()

        for span in doomed:
            self._bury(queue, lane, span, one_less)

    def bury_soon(self, queue: Queue, lane: Lane, doomed: list[JobSpan]) -> None:
        """The same at the next tick."""
        now_us = self._clocks.monotonic_us()
        self._later += [(now_us, queue, lane, span) for span in doomed]

    def tick(self) -> None:
        now_us = self._clocks.monotonic_us()
        due = [waiting for waiting in self._later if waiting[0] <= now_us]
        if due:
            self._later = [waiting for waiting in self._later if waiting[0] > now_us]
        for _, queue, lane, span in due:
            self.bury(queue, lane, [span])

    def _bury(self, queue: Queue, lane: Lane, span: JobSpan, done: Callable[[], None]) -> None:
        if not queue.has(lane):
            done()
            return
        first, next = span.first, span.next
        grave = Grave(queue.name, queue.settings.dead_letter, lane.partition, (first, next))
        grave.deliveries, grave.reason = span.failures, span.reason
        grave.worker = span.worker

        def buried(fault: FanlogError | None) -> None:
            if not queue.has(lane):
                done()
                return
            if fault is not None:
                logger.error("dead letters of queue %s are not stored: %s", queue.name, fault)
                self._later.append((self._clocks.monotonic_us() + _AGAIN_US, queue, lane, span))
                done()
                return
            if lane.partition.durability is not Durability.MEMORY:
                entry = self._ledger.change_entry(
                    queue.name, queue.stored(lane), [(first, next)], ()
                )
                self._ledger.write_or_owe([entry])
            lane.jobs.buried(first, next)
            queue.dead_lettered += next - first
            queue.stir(lane)
            done()

        self._letters.bury(grave, buried)
