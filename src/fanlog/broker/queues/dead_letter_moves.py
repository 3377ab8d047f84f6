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
from fanlog.errors import FanlogError
from fanlog.model import Durability

logger = logging.getLogger("fanlog.broker")

# Dead letters that could not be stored are tried again after this.
_AGAIN_US = 5_000_000


class DeadLetterMoves:
    def __init__(self, letters: DeadLetterWriter, ledger: QueueLedger, clocks: Clocks) -> None:
        self._letters = letters
        self._ledger = ledger
        self._clocks = clocks
        self._later: list[tuple[int, Queue, QueuePartition, JobSpan]] = []

    def move(
        self,
        queue: Queue,
        part: QueuePartition,
        dead: list[JobSpan],
        done: Callable[[], None] | None = None,
    ) -> None:
        """Stores dead jobs as dead letters, and then counts them as done. Calls `done` when they
        are stored, or when it has to try again later."""
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
        self._later += [(now_us, queue, part, span) for span in dead]

    def tick(self) -> None:
        now_us = self._clocks.monotonic_us()
        due = [waiting for waiting in self._later if waiting[0] <= now_us]
        if due:
            self._later = [waiting for waiting in self._later if waiting[0] > now_us]
        for _, queue, part, span in due:
            self.move(queue, part, [span])

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
                self._later.append((self._clocks.monotonic_us() + _AGAIN_US, queue, part, span))
                done()
                return
            if part.partition.durability is not Durability.MEMORY:
                entry = self._ledger.change_entry(
                    queue.name, queue.stored(part), [(first, next)], ()
                )
                self._ledger.write_or_owe([entry])
            part.jobs.dead_letter_stored(first, next)
            queue.dead_lettered += next - first
            queue.stir(part)
            done()

        self._letters.store(dead, stored)
