"""Moves dead jobs to the dead-letter topic: at once, or again and again until the topic takes
them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fanlog.broker.clocks import Clocks
from fanlog.broker.queues.dead_letters import DeadJobs, DeadLetterWriter
from fanlog.broker.queues.ledger import QueueLedger
from fanlog.broker.queues.queue import Queue
from fanlog.broker.queues.queue_partition import QueuePartition
from fanlog.broker.queues.spans import JobSpan
from fanlog.errors import FanlogError, UnavailableError
from fanlog.format.offset_ranges import OffsetRange
from fanlog.model import Durability

logger = logging.getLogger("fanlog.broker")

# Dead letters that could not be stored are tried again after this.
_AGAIN_US = 5_000_000


class DeadLetterMoves:
    def __init__(self, letters: DeadLetterWriter, ledger: QueueLedger, clocks: Clocks) -> None:
        self._letters = letters
        self._ledger = ledger
        self._clocks = clocks
        # When to try again, what, and what follows.
        self._later: list[tuple[int, Queue, QueuePartition, JobSpan, Callable[[], None]]] = []

    def move(
        self,
        queue: Queue,
        part: QueuePartition,
        dead: list[JobSpan],
        done: Callable[[], None] | None = None,
    ) -> None:
        """Stores dead jobs as dead letters, and then counts them as done. Calls `done` when that is
        durable, or when it has to try again later. If only the replicas are missing, it calls
        `done` after the later try: the next primary knows nothing of one."""
        left = len(dead)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if not left and done is not None:
                done()

        for span in dead:
            self._move(queue, part, span, one_less)

    def move_soon(self, queue: Queue, part: QueuePartition, dead: list[JobSpan]) -> None:
        """The same at the next tick."""
        now_us = self._clocks.monotonic_us()
        self._later += [(now_us, queue, part, span, _nothing) for span in dead]

    def tick(self) -> None:
        now_us = self._clocks.monotonic_us()
        due = [waiting for waiting in self._later if waiting[0] <= now_us]
        if due:
            self._later = [waiting for waiting in self._later if waiting[0] > now_us]
        for _, queue, part, span, done in due:
            self._move(queue, part, span, done)

    def _move(
        self, queue: Queue, part: QueuePartition, span: JobSpan, done: Callable[[], None]
    ) -> None:
        if not queue.has(part):
            done()
            return
        first, next = span.first, span.next
        dead = DeadJobs(queue.name, queue.settings.dead_letter, part.partition, (first, next))
        dead.deliveries, dead.reason = span.failures, span.reason
        dead.worker = span.worker

        def stored(fault: FanlogError | None) -> None:
            if not queue.has(part):
                done()
                return
            if fault is not None:
                logger.error("dead letters of queue %s are not stored: %s", queue.name, fault)
                waits = isinstance(fault, UnavailableError)
                again_us = self._clocks.monotonic_us() + _AGAIN_US
                self._later.append((again_us, queue, part, span, done if waits else _nothing))
                if not waits:
                    done()
                return
            self._write(queue, part, (first, next), noted)

        def noted() -> None:
            if queue.has(part):
                part.jobs.dead_letter_stored(first, next)
                queue.dead_lettered += next - first
                queue.stir(part)
            done()

        self._letters.store(dead, stored)

    def _write(
        self, queue: Queue, part: QueuePartition, range: OffsetRange, noted: Callable[[], None]
    ) -> None:
        """Writes that jobs are done; `noted` is called when that is durable, or has to be written
        later."""
        if part.partition.durability is Durability.MEMORY:
            noted()
            return
        entry = self._ledger.change_entry(queue.name, queue.stored(part), [range], ())
        try:
            self._ledger.write([entry], lambda fault: noted())
        except FanlogError:
            self._ledger.write_or_owe([entry])
            noted()


def _nothing() -> None:
    pass
