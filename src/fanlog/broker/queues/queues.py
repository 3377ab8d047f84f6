"""All queues: their workers and topics, and the effects of time, topics and jobs. A queue is a
second kind of group: each message goes to one free worker, whatever the partition. It is long
because everything from outside, be it a worker, a topic, time or an operator, comes to queues
here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fanlog.broker.messages.missing_topics import maybe_topic
from fanlog.broker.messages.positions import known_until
from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Outlet, Partition
from fanlog.broker.messages.tracing import Traces
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.names import check_not_internal, check_target
from fanlog.broker.ports import Runtime
from fanlog.broker.queues.dead_letter_moves import DeadLetterMoves
from fanlog.broker.queues.dead_letters import DeadLetterWriter
from fanlog.broker.queues.description import describe_queue, plan_queue_reset
from fanlog.broker.queues.jobs import JobFailure, Jobs
from fanlog.broker.queues.ledger import (
    QueueLedger,
    StoredQueuePartition,
    no_partition_entry,
    no_queue_entry,
    queue_entry,
)
from fanlog.broker.queues.outcomes import Outcomes, SettleAnswer
from fanlog.broker.queues.queue import Queue, QueueWorker, WorkerReader
from fanlog.broker.queues.queue_partition import QueuePartition
from fanlog.broker.queues.resets import QueueResets
from fanlog.broker.queues.rules import (
    changed_queue_settings,
    check_dead_letter,
    check_names,
    newest_number,
    start_of,
    takes_part,
)
from fanlog.broker.queues.spans import JobSpan
from fanlog.broker.queues.workers_by_name import WorkersByName
from fanlog.broker.state.ledger import Done, Entry
from fanlog.broker.threads import begun
from fanlog.config import BrokerOptions
from fanlog.errors import (
    FanlogError,
    FencedError,
    GroupActiveError,
    GroupNotFoundError,
    InvalidArgumentError,
    LeaseLostError,
    LimitError,
    allow_more,
)
from fanlog.format.header import OFFSET_MAX
from fanlog.format.messages import (
    HeldJobs,
    Joined,
    Notice,
    PartitionOffset,
    ResetGroup,
    Settle,
    Work,
)
from fanlog.format.offset_ranges import OffsetRange
from fanlog.log.partition import Block
from fanlog.model import (
    GROUP_PREFIX,
    Durability,
    Gap,
    GapReason,
    GroupInfo,
    QueueSettings,
    ResetStep,
)

if TYPE_CHECKING:
    from fanlog.broker.queues.ports import QueuePorts

logger = logging.getLogger("fanlog.broker")

# Partitions whose starts are written in one step.
_MET_A_STEP = 64


class Queues:
    def __init__(self, broker: QueuePorts, runtime: Runtime, options: BrokerOptions) -> None:
        self._broker = broker
        self.options = options
        self._queues: dict[str, Queue] = {}
        self._workers: dict[BrokerSubscription, QueueWorker] = {}
        self._outlets: dict[Outlet, list[QueueWorker]] = {}
        self._workers_by_name = WorkersByName()
        self._ledger = QueueLedger(broker.internal, runtime, self.epoch, self._everything)
        self._outcomes = Outcomes(self)
        self._resets = QueueResets(broker, self._ledger, self._is_known, self._outcomes.resume)
        self._dead_letter_moves = DeadLetterMoves(DeadLetterWriter(broker), self._ledger, runtime)
        self.monotonic_us = runtime.monotonic_us
        self.soon = runtime.soon
        self.replicated = broker.replicated
        self._ticking = False
        # Counts of deleted queues: delivered, redelivered, and dead letters.
        self._past = (0, 0, 0)

    def load(self) -> None:
        """Restores done and failed jobs. Leased jobs are handed out again."""
        for stored in self._ledger.load(self._known_until):
            queue = Queue(self, stored.name, stored.settings, stored.born)
            queue.durable = True
            queue.in_hand = stored.in_hand
            self._queues[queue.name] = queue
            for kept in stored.partitions.values():
                topic = self._broker.catalog.find(kept.topic)
                if topic is None or topic.number != kept.number:
                    continue
                if kept.partition < len(topic.partitions):
                    partition = topic.partitions[kept.partition]
                    kept.jobs.restored(partition.log.end_offset)
                    part = queue.add_partition(partition, kept.jobs, kept.sequence)
                    if kept.reach:
                        self._parted(queue, part, kept.reach)
                    # Jobs that had failed too often when the broker stopped.
                    dead = kept.jobs.mark_dead(queue.settings.max_deliveries)
                    self._dead_letter_moves.move_soon(queue, part, dead)

    def _known_until(self, name: str, number: int, index: int, epoch: int) -> int:
        topic = self._broker.catalog.find(name)
        if topic is None or topic.number != number or index >= len(topic.partitions):
            # Of another topic, or of none: the answer is not used.
            return OFFSET_MAX
        return known_until(topic.partitions[index], epoch, self._broker.epoch)

    def _parted(self, queue: Queue, part: QueuePartition, reach: int) -> None:
        """A crash lost jobs that the queue knew. Jobs with their offsets are new ones."""
        partition = part.partition
        logger.warning(
            "the queue %s was at offset %d of %s, but a crash cut off the end of that log: "
            "messages from offset %d on are new jobs",
            *(queue.name, reach, partition.name, part.jobs.next),
        )
        self._broker.drop_notes.note(
            partition, reach, part.jobs.next, GapReason.RESET, queue.name, records=0
        )

    def known_until(self, partition: Partition, epoch: int) -> int:
        return known_until(partition, epoch, self._broker.epoch)

    def epoch(self) -> int:
        return self._broker.epoch

    # Workers come and go

    def work(
        self, key: int, wanted: Work, outlet: Outlet, reader: WorkerReader, client: str = ""
    ) -> tuple[BrokerSubscription, QueueSettings, list[Joined]]:
        """Adds a worker to a queue, with its topics; `start` starts it. Its entries are already
        durable if `prepare` was called before."""
        queue, topics = self._prepared(wanted, outlet)
        worker = self._worker(queue, wanted)
        subscription = BrokerSubscription(
            key, self, outlet, reader, wanted.target, wildcard=wanted.wildcard
        )
        worker.begin(wanted, subscription, reader, client)
        self._workers[subscription] = worker
        self._outlets.setdefault(outlet, []).append(worker)
        self._workers_by_name.add(worker)
        self._broker.subscriptions.reader_came()
        joined = [self._join(worker, topic, appeared=False) for topic in topics]
        self._keep(queue, worker, wanted.holds)
        return subscription, queue.settings, joined

    def prepare(self, wanted: Work, outlet: Outlet) -> Iterator[None]:
        """Writes the entry of a future worker's queue. Raises if it may not join. The steps that it
        returns write the queue's start in each partition: there may be very many."""
        queue, topics = self._prepared(wanted, outlet)
        return chain.from_iterable(self._meeting(queue, topic, appeared=False) for topic in topics)

    def _prepared(self, wanted: Work, outlet: Outlet) -> tuple[Queue, list[BrokerTopic]]:
        check_names(wanted, self.options)
        self._check_kind(wanted.queue)
        self._check_membership(wanted, outlet)
        topics = self._topics(wanted)
        return self._open(wanted, topics), topics

    def start(self, subscription: BrokerSubscription) -> None:
        worker = self._workers.get(subscription)
        if worker is not None:
            queue = worker.queue
            queue.enlist(worker)
            steps = queue.stir_each(list(queue.partitions.values()))
            # Its answer was work enough for this turn.
            self._broker.slices.later(lambda: self._broker.slices.in_slices(steps))

    def lost(self, subscription: BrokerSubscription) -> None:
        """A worker's connection is gone. It keeps its jobs until their time is up: it may come
        back, and settle them."""
        worker = self._stand_up(subscription)
        if worker is not None:
            logger.debug("queue %s: worker %s lost its connection", worker.queue.name, worker.id)
        if worker is not None and not worker.in_hand:
            worker.queue.workers.pop(worker.id, None)

    def leave(self, subscription: BrokerSubscription) -> None:
        """A worker leaves, and releases its jobs."""
        worker = self._stand_up(subscription)
        if worker is not None:
            logger.debug("queue %s: worker %s left", worker.queue.name, worker.id)
            worker.queue.release(worker)

    def resume(self, outlet: Outlet) -> None:
        """A peer takes bytes again: its workers can have jobs."""
        for worker in self._outlets.get(outlet, ()):
            worker.queue.enlist(worker)

    def _check_kind(self, name: str) -> None:
        committed = self._broker.durable.positions(GROUP_PREFIX + name)
        if committed or self._broker.groups.find(name) is not None:
            raise GroupActiveError(
                f"{name!r} is a group that shares partitions; it can't be a queue too. Choose "
                "another name, or delete the group."
            )

    def _topics(self, wanted: Work) -> list[BrokerTopic]:
        target = check_target(wanted.target, wildcard=wanted.wildcard)
        if not wanted.wildcard:
            topic = maybe_topic(
                self._broker.catalog,
                self._broker.open_for_reader,
                check_not_internal(target),
                wanted.missing,
            )
            return [] if topic is None else [topic]
        found = self._broker.catalog.matching(target)
        return [topic for topic in found if takes_part(topic, wanted.target)]

    def _open(self, wanted: Work, topics: list[BrokerTopic]) -> Queue:
        """The queue with the worker's settings, written if they are new."""
        queue = self._queues.get(wanted.queue)
        before = QueueSettings() if queue is None else queue.settings
        settings = changed_queue_settings(before, wanted.settings)
        if not wanted.wildcard:
            # The topic may not exist yet.
            check_dead_letter(wanted.target, settings)
        for topic in topics:
            check_dead_letter(topic.name, settings)
            self._check_start(queue, topic, settings)
        if queue is None:
            born = newest_number(self._broker.catalog, in_memory=False)
            queue = Queue(self, wanted.queue, settings, born)
            queue.born_in_memory = newest_number(self._broker.catalog, in_memory=True)
            self._write_new(queue)
        elif settings != before:
            others = [worker for worker in queue.workers.values() if worker.id != wanted.worker]
            if settings.ordered != before.ordered and others:
                raise GroupActiveError(
                    f"The queue {queue.name!r} has workers; whether it is ordered can only change "
                    "while there are none. Stop them first, or ask for the same as they do."
                )
            self._write_settings(queue, settings)
        return queue

    def _check_start(
        self, queue: Queue | None, topic: BrokerTopic, settings: QueueSettings
    ) -> None:
        """Raises if the queue has no start in a partition that it meets. The first one says it for
        all of them."""
        known = {} if queue is None else queue.partitions
        new = (p for p in topic.partitions if (topic.number, p.index) not in known)
        met = 0 if queue is None else queue.met.get(topic.number, 0)
        if met < len(topic.partitions):
            start_of(next(new), settings, appeared=self._is_whole(queue, topic))

    def _write_new(self, queue: Queue) -> None:
        """Its name is taken from now on. It is invisible and has no workers before its entry is
        durable."""

        def durable(fault: FanlogError | None) -> None:
            if fault is None:
                queue.durable = True
            elif self._queues.get(queue.name) is queue:
                del self._queues[queue.name]

        self._queues[queue.name] = queue
        try:
            self._ledger.write([queue_entry(queue.name, queue.settings, queue.born)], durable)
        except BaseException:
            del self._queues[queue.name]
            raise

    def _write_settings(self, queue: Queue, settings: QueueSettings) -> None:
        def durable(fault: FanlogError | None) -> None:
            if fault is not None:
                return
            before, queue.settings = queue.settings, settings
            if settings.ordered != before.ordered:
                for part in queue.partitions.values():
                    part.jobs.release_all(ordered=settings.ordered)

        self._ledger.write([queue_entry(queue.name, settings, queue.born)], durable)

    def _check_membership(self, wanted: Work, outlet: Outlet) -> None:
        """Checks that there is room for the worker; without room nothing may change."""
        queue = self._queues.get(wanted.queue)
        if queue is None:
            if len(self._queues) >= self.options.queues_max:
                raise LimitError(
                    f"This broker has {len(self._queues)} queues, which is the limit. Delete those "
                    "that nobody needs (fanlog group delete). " + allow_more("broker.queues_max")
                )
            return
        worker = queue.workers.get(wanted.worker)
        if worker is None and len(queue.workers) >= self.options.queue_workers_max:
            raise LimitError(
                f"The queue {queue.name!r} has {len(queue.workers)} workers, which is the limit. "
                + allow_more("broker.queue_workers_max")
            )
        subscription = None if worker is None else worker.subscription
        if subscription is not None and subscription.outlet is outlet:
            raise InvalidArgumentError(
                f"This connection has a worker {wanted.worker!r} in the queue {queue.name!r} "
                "already: give the other a name of its own, or none."
            )

    def _worker(self, queue: Queue, wanted: Work) -> QueueWorker:
        """The worker, new or known. A connection with a worker of the same name loses it."""
        worker = queue.workers.get(wanted.worker)
        if worker is None:
            worker = queue.workers[wanted.worker] = QueueWorker(queue, wanted.worker)
            return worker
        subscription, reader = worker.subscription, worker.reader
        if subscription is not None:
            self._stand_up(subscription)
            if reader is not None:
                reader.ended(
                    FencedError(
                        f"Another worker {worker.id!r} has replaced this one in the queue "
                        f"{queue.name!r}. Give each a name of its own, or none."
                    )
                )
        return worker

    def _stand_up(self, subscription: BrokerSubscription) -> QueueWorker | None:
        worker = self._workers.pop(subscription, None)
        if worker is None:
            return None
        subscription.closed = True
        worker.subscription = worker.reader = None
        beside = self._outlets[subscription.outlet]
        beside.remove(worker)
        if not beside:
            del self._outlets[subscription.outlet]
        self._workers_by_name.remove(worker)
        return worker

    def _keep(self, queue: Queue, worker: QueueWorker, holds: tuple[HeldJobs, ...]) -> None:
        """Jobs that a returning worker does not have were lost on their way: others may have
        them."""
        kept: dict[tuple[int, int], list[OffsetRange]] = {}
        for held in holds:
            kept.setdefault((held.number, held.partition), []).append((held.first, held.next))
        for part in queue.leased_partitions():
            key = part.partition.topic.number, part.partition.index
            if part.jobs.release(worker.id, kept.get(key, ())):
                queue.stir(part)
        queue.enlist_freed()

    # Topics

    def wanted(self, name: str) -> bool:
        """Whether a worker waits for a topic of this name."""
        return self._workers_by_name.any_of(name)

    def topic_appeared(self, topic: BrokerTopic) -> None:
        """Workers that want a topic of this name work on it from its first record."""
        for worker in self._workers_by_name.below(topic.name):
            if worker.reader is not None:
                worker.reader.notice(Notice("parent", topic.name))
        if self._workers_by_name.any_of(topic.name):
            steps = self._appearing(topic)
            self._broker.slices.later(lambda: self._broker.slices.in_slices(steps))

    def _appearing(self, topic: BrokerTopic) -> Iterator[None]:
        """A crash in between loses no job: the topic is younger than the queue, which therefore
        begins with the first record."""
        for worker in self._workers_by_name.of(topic):
            queue = worker.queue
            if self._awaits(worker, topic):
                yield from self._meeting(queue, topic, appeared=True)
            # Much may have happened meanwhile.
            if self._awaits(worker, topic) and worker.reader is not None:
                worker.reader.joined(self._join(worker, topic, appeared=True))
                yield from queue.stir_each(queue.parts_of(topic))

    def _awaits(self, worker: QueueWorker, topic: BrokerTopic) -> bool:
        """Whether a worker has to learn of a new topic. It gets no dead letters of its own."""
        known = topic.deleted or topic.number in worker.topics
        own_dead_letters = topic.name == worker.queue.settings.dead_letter
        return worker.reader is not None and not known and not own_dead_letters

    def growing(self, topic: BrokerTopic) -> list[Queue]:
        """The queues whose start in a topic's new partitions has to be written before these are
        there: `write_starts` does it."""
        return [] if topic.settings.level is Durability.MEMORY else self._working_on(topic)

    def write_starts(self, queue: Queue, topic: BrokerTopic, new: range) -> None:
        """Records that a queue on the topic begins with the first record of new partitions. A queue
        without workers must not skip any either."""
        if self._queues.get(queue.name) is queue:
            parts = (
                StoredQueuePartition(topic.name, i, topic.number, 1, self._jobs(queue)) for i in new
            )
            self._ledger.write([self._ledger.partition_entry(queue.name, part) for part in parts])

    def topic_grew(self, topic: BrokerTopic, new: list[Partition]) -> None:
        for queue in self._working_on(topic):
            parts = [queue.add_partition(p, self._jobs(queue), sequence=1) for p in new]
            if topic.settings.level is not Durability.MEMORY:
                # Once more: a snapshot may have begun since `write_starts`, and does not have it.
                entries = [
                    self._ledger.partition_entry(queue.name, queue.stored(part)) for part in parts
                ]
                self._ledger.write_or_owe(entries)
        starts = tuple(PartitionOffset(partition.index, 0) for partition in new)
        joined = Joined(topic.number, topic.name, self._broker.epoch, starts)
        for worker in self._workers_by_name.of(topic):
            if worker.reader is not None and topic.number in worker.topics:
                worker.reader.joined(joined)
                for partition in new:
                    worker.queue.stir(worker.queue.partitions[topic.number, partition.index])

    def _working_on(self, topic: BrokerTopic) -> list[Queue]:
        """The queues that have met the topic, with workers or without."""
        return [queue for queue in self._queues.values() if topic.number in queue.met]

    def topic_vanished(self, topic: BrokerTopic) -> None:
        for worker in self._workers_by_name.of(topic):
            if worker.reader is not None and topic.number in worker.topics:
                worker.reader.left(topic.number, topic.name)
        gone = [(queue, queue.drop_topic(topic)) for queue in self._queues.values()]
        if topic.settings.level is not Durability.MEMORY:
            steps = self._clearing(topic, gone)
            self._broker.slices.later(lambda: self._broker.slices.in_slices(steps))

    def _clearing(
        self, topic: BrokerTopic, gone: list[tuple[Queue, list[QueuePartition]]]
    ) -> Iterator[None]:
        """Writes that a deleted topic's partitions are gone. A start leaves them out without that,
        too, because their topic has another number; but the ledger would keep them until then. It
        ends when the name is used again: from then on entries of that name mean the new topic."""
        for queue, parts in gone:
            for first in range(0, len(parts), _MET_A_STEP):
                known = self._is_known(queue) and not queue.ends
                if not known or self._broker.catalog.find(topic.name) is not None:
                    break
                some = parts[first : first + _MET_A_STEP]
                self._ledger.write_or_owe(
                    [no_partition_entry(queue.name, queue.stored(part)) for part in some]
                )
                yield

    def followers_of(self, topic: BrokerTopic) -> int:
        """How many workers would take a job of the topic."""
        return len(self._workers_by_name.of(topic))

    def _join(self, worker: QueueWorker, topic: BrokerTopic, *, appeared: bool) -> Joined:
        worker.topics.add(topic.number)
        for _ in self._meeting(worker.queue, topic, appeared=appeared):
            # Only what has come since the steps that went before.
            pass
        starts = (
            PartitionOffset(p.partition.index, p.jobs.floor) for p in worker.queue.parts_of(topic)
        )
        return Joined(topic.number, topic.name, self._broker.epoch, tuple(starts))

    def _meeting(self, queue: Queue, topic: BrokerTopic, *, appeared: bool) -> Iterator[None]:
        """Adds a topic's partitions to a queue, some at a time, and writes the start of new ones.
        It ends early if the topic or the queue is gone."""
        if queue.met.get(topic.number, 0) == len(topic.partitions):
            return
        for first in range(0, len(topic.partitions), _MET_A_STEP):
            if topic.deleted or self._queues.get(queue.name) is not queue:
                return
            some = topic.partitions[first : first + _MET_A_STEP]
            entries = self._meet(queue, topic, some, appeared=appeared)
            # A queue that is being deleted must not come back with them.
            if entries and not queue.ends:
                self._ledger.write_or_owe(entries)
            yield

    def _meet(
        self, queue: Queue, topic: BrokerTopic, some: list[Partition], *, appeared: bool
    ) -> list[Entry]:
        """Adds partitions that the queue does not have yet. Returns the entries to write."""
        whole = appeared or self._is_whole(queue, topic)
        entries: list[Entry] = []
        for partition in some:
            key = topic.number, partition.index
            if key in queue.partitions or key in queue.resetting:
                continue
            start = start_of(partition, queue.settings, whole)
            part = queue.add_partition(partition, self._jobs(queue, start))
            if partition.durability is not Durability.MEMORY:
                entries.append(self._ledger.partition_entry(queue.name, queue.stored(part)))
        return entries

    def _is_whole(self, queue: Queue | None, topic: BrokerTopic) -> bool:
        """Whether a queue reads all of a new topic: one that is younger than the queue, or one
        whose start the ledger may have lost."""
        newer = queue is not None and queue.is_older_than(topic)
        return newer or self._ledger.may_have_lost(topic.number)

    def _jobs(self, queue: Queue, offset: int = 0) -> Jobs:
        return Jobs(offset, queue.in_hand, ordered=queue.settings.ordered)

    # Outcomes

    def settle(
        self, subscription: BrokerSubscription, settle: Settle, answer: SettleAnswer
    ) -> None:
        """Takes a worker's outcomes; it gets an answer when they are durable."""
        worker = self._workers.get(subscription)
        if worker is None:
            raise LeaseLostError(
                "This worker is not in the queue any more: its session ended, or it left. Join "
                "again."
            )
        self._settle(worker, settle, answer)

    def settle_kept(self, settle: Settle, answer: SettleAnswer) -> None:
        """The same for jobs of a worker that left the queue and kept them. A worker without jobs is
        unknown; its outcomes still count where they can."""
        queue = self._get(settle.queue)
        worker = queue.workers.get(settle.worker) or QueueWorker(queue, settle.worker)
        self._settle(worker, settle, answer)

    def _settle(self, worker: QueueWorker, settle: Settle, answer: SettleAnswer) -> None:
        most = self.options.queue_outcomes_max
        if len(settle.outcomes) > most:
            raise LimitError(
                f"There are {len(settle.outcomes)} outcomes in one SETTLE; this broker takes "
                f"{most} (broker.queue_outcomes_max). Send them in several."
            )
        logger.debug(
            "queue %s: worker %s settles, %d outcomes",
            worker.queue.name,
            worker.id,
            len(settle.outcomes),
        )
        self._outcomes.settle(worker, settle, answer)

    def change_entry(
        self,
        queue: Queue,
        part: QueuePartition,
        done: list[OffsetRange],
        failures: list[JobFailure],
    ) -> Entry:
        return self._ledger.change_entry(queue.name, queue.stored(part), done, failures)

    def write(self, entries: list[Entry], done: Done) -> None:
        self._ledger.write(entries, done)

    def failed(
        self, queue: Queue, part: QueuePartition, again: list[JobSpan], dead: list[JobSpan]
    ) -> None:
        """Leases expired. This is written as soon as possible."""
        if part.partition.durability is not Durability.MEMORY:
            failures = [
                JobFailure(span.first, span.next, span.failures, span.due_us, span.reason)
                for span in again + dead
            ]
            self._ledger.write_or_owe([self.change_entry(queue, part, [], failures)])
        if dead:
            self._dead_letter_moves.move(queue, part, dead)

    def move(
        self, queue: Queue, part: QueuePartition, dead: list[JobSpan], done: Callable[[], None]
    ) -> None:
        self._dead_letter_moves.move(queue, part, dead, done)

    # Time

    def tick(self) -> None:
        """Lets every queue expire its leases, very many of them in slices. If the last pass is not
        over yet, it continues."""
        self._dead_letter_moves.tick()
        if not self._ticking:
            self._ticking = True
            self._broker.slices.in_slices(self._tick_each(), self._ticked)

    def _tick_each(self) -> Iterator[None]:
        for name, queue in list(self._queues.items()):
            if self._queues.get(name) is queue:
                queue.tick(self.monotonic_us())
            yield

    def _ticked(self) -> None:
        self._ticking = False

    @property
    def unpacker(self) -> Unpacker:
        return self._broker.unpacker

    @property
    def traces(self) -> Traces:
        return self._broker.traces

    def load_block(
        self, partition: Partition, offset: int, done: Callable[[Block | Exception], None]
    ) -> None:
        self._broker.reading.load_block(partition, offset, done)

    def missed(self, queue: Queue, part: QueuePartition, gap: Gap, records: int) -> None:
        self._broker.drop_notes.note(
            part.partition, gap.first, gap.next, gap.reason, queue.name, records=records
        )

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        self._broker.when_confirmed(resume)

    def when_more(self, partition: Partition, wake: Callable[[], None]) -> None:
        self._broker.reading.when_more(partition, wake)

    # For operators

    def names(self) -> list[str]:
        return sorted(queue.name for queue in self.every())

    def every(self) -> list[Queue]:
        return [queue for queue in self._queues.values() if queue.durable]

    def counted(self) -> tuple[int, int, int]:
        """Jobs delivered, redelivered and made dead letters since the start."""
        queues = self._queues.values()
        delivered, redelivered, dead_lettered = self._past
        return (
            delivered + sum(queue.delivered for queue in queues),
            redelivered + sum(queue.redelivered for queue in queues),
            dead_lettered + sum(queue.dead_lettered for queue in queues),
        )

    def find(self, name: str) -> Queue | None:
        return self._queues.get(name)

    async def describe(self, name: str) -> GroupInfo:
        return await describe_queue(self._broker, self._get(name), self.monotonic_us())

    async def reset(self, wanted: ResetGroup) -> list[ResetStep]:
        """Resets a queue without workers: jobs at or after the new position are to be done, again
        if they were done; earlier ones are done."""
        queue = self._get(wanted.group)
        self._check_idle(queue)
        if wanted.dry_run:
            return [step for _, step in await plan_queue_reset(self._broker, queue, wanted)]
        # One after the other: they must take effect in the order in which they are written.
        async with queue.resets:
            steps = await plan_queue_reset(self._broker, queue, wanted)
            reset = await self._broker.slices.result(self._resets.prepared(queue, steps))
            # That took a while: a worker may have joined meanwhile, or the queue is gone.
            self._check_idle(self._get(wanted.group))
            if not self._is_known(queue):
                raise GroupNotFoundError(f"The queue {queue.name!r} was deleted before its reset.")
            await begun(lambda done: self._resets.begin(reset, done))
        return [step for _, step in steps]

    def _is_known(self, queue: Queue) -> bool:
        """Whether the queue is not deleted, nor another of its name in its place."""
        return self._queues.get(queue.name) is queue

    def delete(self, name: str, done: Done) -> None:
        """Deletes a queue without workers. `done` is called when that has taken effect; an error
        now is raised."""
        queue = self._get(name)
        self._check_idle(queue)

        def durable(fault: FanlogError | None) -> None:
            queue.ends = False
            self._deleted(queue, fault)
            done(fault)

        self._ledger.write([no_queue_entry(name)], durable)
        queue.ends = self._queues.get(name) is queue

    def _deleted(self, queue: Queue, fault: FanlogError | None) -> None:
        if fault is not None or self._queues.get(queue.name) is not queue:
            return
        del self._queues[queue.name]
        delivered, redelivered, dead_lettered = self._past
        self._past = (
            delivered + queue.delivered,
            redelivered + queue.redelivered,
            dead_lettered + queue.dead_lettered,
        )
        # Pending dead letters must not count for a later queue of the same name.
        for part in list(queue.partitions.values()):
            queue.drop_partition(part)

    def _get(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            raise GroupNotFoundError(
                f"There is no group or queue {name!r}. List them with: fanlog group list"
            )
        return queue

    def _check_idle(self, queue: Queue) -> None:
        present = queue.present()
        if present:
            raise GroupActiveError(
                f"The queue {queue.name!r} has {len(present)} workers, {present[0].id!r} among "
                "them. Stop them first."
            )

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        for queue in list(self._queues.values()):
            if self._queues.get(queue.name) is not queue:
                continue
            yield queue_entry(queue.name, queue.settings, queue.born)
            for part in list(queue.kept_partitions()):
                # A deleted queue must not be written after the entry that deleted it.
                if self._queues.get(queue.name) is queue and queue.has(part):
                    yield self._ledger.partition_entry(queue.name, queue.stored(part))
