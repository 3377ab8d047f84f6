"""A queue: jobs of its topics go to its workers, each to a free one, in turn.

A lease of one job costs as much as a lease of a thousand: the broker reads a batch's header, and
sends the batch unchanged.

It is long because leases, outcomes, limits and workers that leave all decide who gets the next
job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Partition
from fanlog.broker.messages.tracing import Traces
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.ports import Reader
from fanlog.broker.queues.jobs import InHand, Jobs, RetryTime
from fanlog.broker.queues.ledger import StoredQueuePartition
from fanlog.broker.queues.queue_partition import JobRun, QueuePartition
from fanlog.broker.queues.ranks import Ranks
from fanlog.broker.queues.retries import retry_delay_us
from fanlog.broker.queues.spans import JobSpan
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError
from fanlog.format.batch_cache import BatchCache
from fanlog.format.frames import Lease, lease_frame
from fanlog.format.messages import Work
from fanlog.log.partition import Block
from fanlog.model import MIB, Durability, Gap, QueueSettings

# Leases of one queue before others get their turn.
_LEASES_A_TURN = 512
# A batch is cut at a worker's room into no smaller parts than this part of its prefetch.
_SPLINTERS = 8
# Partitions that are searched for jobs in one step.
_STIRRED_A_STEP = 128
# Jobs leased by priority before one is leased because it is the oldest of its partition.
URGENT_JOBS = 9
# Bytes of one queue that may wait for followers before it makes no more leases.
_UNCONFIRMED_BYTES_MAX = 32 * MIB
_NEVER_US = 1 << 62
# Bytes collected for a worker before they are sent.
_PUSH_PIECES = 64
_PUSH_BYTES = 256 * 1024


class QueueHost(Protocol):
    """All queues together, as far as one of them needs it."""

    options: BrokerOptions

    @property
    def unpacker(self) -> Unpacker: ...
    @property
    def traces(self) -> Traces: ...
    def monotonic_us(self) -> int: ...
    def soon(self, call: Callable[[], None], /) -> object: ...
    def load_block(
        self, partition: Partition, offset: int, done: Callable[[Block | Exception], None]
    ) -> None: ...
    def when_more(self, partition: Partition, wake: Callable[[], None]) -> None: ...
    @property
    def replicated(self) -> bool: ...
    def when_confirmed(self, resume: Callable[[], None]) -> None:
        """Resumes when workers may learn of leases that were made before this call."""
        ...

    def missed(self, queue: Queue, part: QueuePartition, gap: Gap, records: int) -> None: ...
    def failed(
        self, queue: Queue, part: QueuePartition, again: list[JobSpan], dead: list[JobSpan]
    ) -> None:
        """Leases expired: the host records the failures, and moves dead jobs."""
        ...


class WorkerReader(Reader, Protocol):
    """Receives the events of a worker."""

    def ended(self, error: FanlogError) -> None:
        """It has lost its membership."""
        ...


class QueueWorker:
    """A worker. While its connection is lost it has no subscription, and keeps its jobs until their
    leases expire. A worker that let a lease expire is `doubted`: it gets a single job at a time
    until it reports an outcome."""

    __slots__ = (
        "_bytes",
        "_pieces",
        "batch_cache",
        "client",
        "doubted",
        "id",
        "listed",
        "named",
        "prefetch",
        "queue",
        "reader",
        "subscription",
        "target",
        "topics",
        "wildcard",
    )

    def __init__(self, queue: Queue, id: str) -> None:
        self.queue = queue
        self.id = id
        self.client = ""
        self.target = ""
        self.wildcard = False
        self.named = False
        self.prefetch = 1
        self.subscription: BrokerSubscription | None = None
        self.reader: WorkerReader | None = None
        self.topics: set[int] = set()
        self.batch_cache: BatchCache[bool] = BatchCache()
        self.listed = False
        self.doubted = False
        self._pieces: list[memoryview] = []
        self._bytes = 0

    def begin(
        self, wanted: Work, subscription: BrokerSubscription, reader: WorkerReader, client: str
    ) -> None:
        """Joins on a connection that has none of its batches yet."""
        self.subscription = subscription
        self.reader = reader
        self.client = client
        self.target = wanted.target
        self.wildcard = wanted.wildcard
        self.named = wanted.named
        self.prefetch = wanted.prefetch
        self.topics = set()
        self.batch_cache = BatchCache()
        self.doubted = False

    def room(self) -> int:
        """How many jobs it can take now."""
        subscription = self.subscription
        if subscription is None or subscription.closed or subscription.outlet.blocked:
            return 0
        return (1 if self.doubted else self.prefetch) - self.in_hand

    def would_splinter(self, run: JobRun) -> bool:
        """Whether so little room is left that it is better to wait for more than to cut off a
        small piece of a batch: pieces are never put together again."""
        count, room = run.next - run.first, self.room()
        cut = run.next < run.found.header.next_offset and count == room
        return cut and not self.doubted and room < self.prefetch // _SPLINTERS

    @property
    def in_hand(self) -> int:
        return self.queue.in_hand.counts.get(self.id, 0)

    def send(self, part: QueuePartition, run: JobRun, deliveries: int) -> None:
        """A lease, and its batch if the worker does not have it; collected until `flush`."""
        if self.subscription is None:
            return
        header = run.found.header
        number, partition = part.partition.topic.number, part.partition.index
        key = (number, partition, header.base_offset)
        fresh = self.batch_cache.get(key) is None
        lease = Lease(number, partition, deliveries, header.base_offset, run.first, run.next, fresh)
        self._pieces.append(memoryview(lease_frame(self.subscription.key, lease)))
        traces = self.queue.traces
        if traces.following:
            traces.leased(
                part.partition,
                run.first,
                run.next,
                queue=self.queue.name,
                worker=self.id,
                times=deliveries,
            )
        if fresh:
            self.batch_cache.put(key, True, header.length)
            self._pieces.append(run.found.view)
            self._bytes += header.length
        if len(self._pieces) >= _PUSH_PIECES or self._bytes >= _PUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if pieces and self.subscription is not None and not self.subscription.closed:
            if self.queue.unconfirmed is None:
                self.subscription.outlet.push(self.subscription, pieces)
            else:
                self.queue.unconfirmed.pushes.append((self.subscription, pieces))


class Unconfirmed:
    """Leases that no worker has heard of, and the frames that say so."""

    __slots__ = ("leases", "pushes")

    def __init__(self) -> None:
        # Each with its worker, and the first and next offset.
        self.leases: list[tuple[QueuePartition, str, int, int]] = []
        self.pushes: list[tuple[BrokerSubscription, list[memoryview]]] = []

    @property
    def bytes(self) -> int:
        return sum(len(piece) for _, pieces in self.pushes for piece in pieces)


class Queue:
    """`partitions` has its partitions by topic number and index, and `met` their count by number;
    `born` is the number of the newest topic when it began. It has many fields, because leases,
    limits, order and counters all belong to the queue and not to a partition."""

    def __init__(self, host: QueueHost, name: str, settings: QueueSettings, born: int) -> None:
        self._host = host
        self.traces = host.traces
        self.name = name
        self.settings = settings
        self.born = born
        # Whether its entry is.
        self.durable = False
        # Whether the entry that deletes it is written.
        self.ends = False
        # One reset at a time, and the partitions that begin anew now.
        self.resets = asyncio.Lock()
        self.resetting: frozenset[tuple[int, int]] = frozenset()
        self.born_in_memory = 0
        self.workers: dict[str, QueueWorker] = {}
        self.partitions: dict[tuple[int, int], QueuePartition] = {}
        self.met: dict[int, int] = {}
        self.in_hand = InHand()
        self.delivered = 0
        self.redelivered = 0
        self.dead_lettered = 0
        self._ring: deque[QueueWorker] = deque()
        self._stirred: dict[QueuePartition, None] = {}
        self._timed: dict[QueuePartition, None] = {}
        self._scheduled = False
        # What is leased, and not confirmed: with replicas only. How many bytes wait for that.
        self.unconfirmed = Unconfirmed() if host.replicated else None
        self._unconfirmed_bytes = 0
        # Of each round that leases wait for, in order: what has to come after them.
        self._behind_leases: deque[list[Callable[[], None]]] = deque()
        # Whether priorities count now, and how many jobs went out by theirs since the last that
        # went out by its age.
        self._ranked = False
        self._ranks: Ranks | None = None
        self._ranked_partitions: dict[QueuePartition, None] = {}
        self._urgent_jobs = 0

    def is_older_than(self, topic: BrokerTopic) -> bool:
        """Whether the topic is newer than the queue. Memory topics are numbered separately, and
        again with each start."""
        in_memory = topic.settings.level is Durability.MEMORY
        return topic.number > (self.born_in_memory if in_memory else self.born)

    @property
    def leased(self) -> int:
        return sum(self.in_hand.counts.values())

    def present(self) -> list[QueueWorker]:
        return [worker for worker in self.workers.values() if worker.subscription is not None]

    # Partitions

    def add_partition(self, partition: Partition, jobs: Jobs, sequence: int = 0) -> QueuePartition:
        part = QueuePartition(self, partition, jobs, self._host.options)
        part.sequence = sequence
        number = partition.topic.number
        self.partitions[number, partition.index] = part
        self.met[number] = self.met.get(number, 0) + 1
        if jobs.waiting:
            self._timed[part] = None
        if part.is_ranked:
            self._ranked_partitions[part] = None
        return part

    def drop_partition(self, part: QueuePartition) -> None:
        for worker in self.workers.values() if part.jobs.leased else ():
            part.jobs.release(worker.id)
        number = part.partition.topic.number
        del self.partitions[number, part.partition.index]
        self.met[number] -= 1
        if not self.met[number]:
            del self.met[number]
        self._stirred.pop(part, None)
        self._timed.pop(part, None)
        self._ranked_partitions.pop(part, None)

    def drop_topic(self, topic: BrokerTopic) -> list[QueuePartition]:
        """Drops a deleted topic. Returns its partitions."""
        gone = self.parts_of(topic)
        for part in gone:
            self.drop_partition(part)
        for worker in self.workers.values():
            worker.topics.discard(topic.number)
        self.enlist_freed()
        return gone

    def parts_of(self, topic: BrokerTopic) -> list[QueuePartition]:
        """Those of a topic's partitions that it has met."""
        if topic.number not in self.met:
            return []
        found = (self.partitions.get((topic.number, p.index)) for p in topic.partitions)
        return [part for part in found if part is not None]

    def leased_partitions(self) -> list[QueuePartition]:
        """Partitions with jobs that workers have."""
        return [part for part in self._timed if part.jobs.leased]

    def stored(self, part: QueuePartition) -> StoredQueuePartition:
        """The queue partition as the ledger has it, under a key of its own."""
        part.sequence += 1
        topic = part.partition.topic
        return StoredQueuePartition(
            topic.name, part.partition.index, topic.number, part.sequence, part.jobs
        )

    def kept_partitions(self) -> Iterable[QueuePartition]:
        """Partitions whose state outlives the broker; a log in memory does not."""
        return (
            part
            for part in self.partitions.values()
            if part.partition.durability is not Durability.MEMORY
        )

    @property
    def unpacker(self) -> Unpacker:
        return self._host.unpacker

    def load_block(
        self, partition: Partition, offset: int, done: Callable[[Block | Exception], None]
    ) -> None:
        self._host.load_block(partition, offset, done)

    def missed(self, part: QueuePartition, gap: Gap, records: int) -> None:
        self._host.missed(self, part, gap, records)

    def soon(self, call: Callable[[], None], /) -> object:
        return self._host.soon(call)

    def has(self, part: QueuePartition) -> bool:
        """Whether this queue still has it: its topic may be deleted, or it may be reset."""
        key = part.partition.topic.number, part.partition.index
        return self.partitions.get(key) is part

    def stir(self, part: QueuePartition) -> None:
        if self.has(part):
            self._stirred[part] = None
            self.schedule()

    def stir_each(self, parts: list[QueuePartition]) -> Iterator[None]:
        """The same with very many, some at a time. Those without jobs rest at once, so that the
        next lease need not look at them."""
        for first in range(0, len(parts), _STIRRED_A_STEP):
            now_us = self._host.monotonic_us()
            for part in parts[first : first + _STIRRED_A_STEP]:
                if not self.has(part):
                    continue
                if self._look(part, now_us):
                    self.stir(part)
                else:
                    self._rest(part)
            yield

    def _look(self, part: QueuePartition, now_us: int) -> int:
        """About how many of its jobs can be handed out, and whether priorities count among
        them."""
        if part.partition.ranked_from is not None and part.is_ranked:
            self._ranked = True
            self._ranked_partitions[part] = None
        return part.available(now_us)

    def _rest(self, part: QueuePartition) -> None:
        """Nothing can be handed out of a queue partition; it is stirred again when that changes."""
        self._stirred.pop(part, None)
        if part.paused_until_us:
            self._timed[part] = None
        if not part.watching and not part.partition.topic.deleted:
            part.watching = True

            def wake() -> None:
                part.watching = False
                self.stir(part)

            self._host.when_more(part.partition, wake)

    # Workers

    def enlist(self, worker: QueueWorker) -> None:
        """Puts a worker that has room into the ring."""
        if not worker.listed and worker.room() > 0:
            worker.listed = True
            self._ring.append(worker)
            self.schedule()

    def enlist_freed(self) -> None:
        """The same with all workers that have fewer jobs than before. An absent worker without jobs
        is forgotten."""
        freed, self.in_hand.freed = self.in_hand.freed, set()
        for id in freed:
            worker = self.workers.get(id)
            if worker is None:
                continue
            if worker.subscription is None and not worker.in_hand:
                del self.workers[id]
            else:
                self.enlist(worker)

    def release(self, worker: QueueWorker) -> None:
        """A worker has left: its jobs go to others, as if it had never had them."""
        self.workers.pop(worker.id, None)
        worker.subscription = None
        for part in self.leased_partitions():
            if part.jobs.release(worker.id):
                self.stir(part)
        self.enlist_freed()

    # Handing out

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._host.soon(self.dispatch)

    def dispatch(self) -> None:
        """Leases jobs to workers with room, one lease each in turn. A lease is at most a fair share
        of the available jobs, so that one large batch is spread over all idle workers."""
        self._scheduled = False
        if not self._ring or not self._stirred or self.resetting:
            return
        if self._unconfirmed_bytes > _UNCONFIRMED_BYTES_MAX:
            return
        now_us = self._host.monotonic_us()
        share = max(1, -(-self._available(now_us) // len(self._ring)))
        leases, jobs_max = 0, self._host.options.queue_in_flight_max - self.leased
        served: dict[QueueWorker, None] = {}
        idle: list[QueueWorker] = []
        while self._ring and self._stirred and jobs_max > 0:
            if leases == _LEASES_A_TURN:
                self.schedule()
                break
            worker = self._ring.popleft()
            room = worker.room()
            if room <= 0:
                worker.listed = False
                continue
            taken = self._hand_out(worker, min(room, share, jobs_max), now_us)
            if not taken:
                idle.append(worker)
                continue
            self._ring.append(worker)
            served[worker] = None
            leases += 1
            jobs_max -= taken
        self._ranks = None
        self._ring.extendleft(reversed(idle))
        for worker in served:
            worker.flush()
        if self.unconfirmed is not None and self.unconfirmed.leases:
            self._confirm(self.unconfirmed)

    def _confirm(self, leased: Unconfirmed) -> None:
        """Sends these leases to their workers when this broker is known to be the primary still.
        Their time begins then."""
        self.unconfirmed = Unconfirmed()
        size = leased.bytes
        self._unconfirmed_bytes += size
        self._behind_leases.append([])

        def confirmed() -> None:
            self._unconfirmed_bytes -= size
            behind = self._behind_leases.popleft()
            deadline_us = self._host.monotonic_us() + round(self.settings.visibility_seconds * 1e6)
            for part, worker, first, next in leased.leases:
                if self.has(part):
                    part.jobs.extend(worker, first, next, deadline_us)
            for subscription, pieces in leased.pushes:
                if not subscription.closed:
                    subscription.outlet.push(subscription, pieces)
            for resume in behind:
                resume()
            self.schedule()

        self._host.when_confirmed(confirmed)

    def after_leases(self, resume: Callable[[], None]) -> None:
        """Continues when workers have been sent the leases that they have been given so far. An ack
        that is sent again after a failover may be for a job that is leased once more: its answer
        comes behind that lease, so that the worker knows what to drop."""
        if self._behind_leases:
            self._behind_leases[-1].append(resume)
        else:
            resume()

    def _available(self, now_us: int) -> int:
        available = 0
        self._ranked = False
        for part in list(self._stirred):
            found = self._look(part, now_us)
            available += found
            if not found:
                self._rest(part)
        return available

    def _hand_out(self, worker: QueueWorker, share: int, now_us: int) -> int:
        """Makes one lease, from the next partition. Returns its number of jobs."""
        oldest = self._ranked and self._urgent_jobs >= URGENT_JOBS
        if oldest:
            share = min(share, self._urgent_jobs // URGENT_JOBS)
        by_rank = self._ranked and not oldest
        for part in self._by_rank(now_us) if by_rank else list(self._stirred):
            if part.partition.topic.number not in worker.topics or part not in self._stirred:
                continue
            del self._stirred[part]
            run = part.run(now_us, share, oldest=oldest)
            # Without priorities a retried job is found among the others.
            priority = 0 if run is None or not part.is_ranked else run.found.header.priority
            if run is not None and not priority and worker.would_splinter(run):
                self._stirred[part] = None
                continue
            if run is None:
                # A read that was answered at once has stirred it again already.
                if part not in self._stirred:
                    self._rest(part)
                self._rank(part, now_us)
                continue
            self._stirred[part] = None
            self._timed[part] = None
            deadline_us = now_us + round(self.settings.visibility_seconds * 1e6)
            if self.unconfirmed is not None:
                deadline_us = _NEVER_US
                self.unconfirmed.leases.append((part, worker.id, run.first, run.next))
            failures = part.jobs.lease(
                run.first, run.next, worker.id, deadline_us, priority=priority, now_us=now_us
            )
            count = run.next - run.first
            if oldest:
                self._urgent_jobs -= URGENT_JOBS * count
            elif priority and part.is_ranked:
                self._urgent_jobs += count
            self.delivered += count
            if failures:
                self.redelivered += count
            worker.send(part, run, failures + 1)
            self._rank(part, now_us)
            return count
        return 0

    def _by_rank(self, now_us: int) -> Ranks:
        """The partitions with the most urgent jobs first; of equal ones, the next in turn."""
        if self._ranks is None:
            self._ranks = Ranks()
            for part in list(self._stirred):
                self._ranks.put(part, now_us)
        return self._ranks

    def _rank(self, part: QueuePartition, now_us: int) -> None:
        """The available jobs of a partition have changed."""
        if self._ranks is not None and part in self._stirred:
            self._ranks.put(part, now_us)
        elif self._ranks is not None:
            self._ranks.drop(part)

    # Time

    def due(self, part: QueuePartition, now_us: int) -> RetryTime:
        """When jobs of a partition that fail now may be tried again, by the queue's rule."""
        settings = self.settings
        number, partition = part.partition.topic.number, part.partition.index

        def due(failures: int, first: int) -> int:
            return now_us + retry_delay_us(settings, failures, (number, partition, first))

        return due

    def tick(self, now_us: int) -> None:
        """Expires leases, and makes delayed jobs available."""
        self._look_ahead(now_us)
        if not self._timed or self.resetting:
            return
        for part in list(self._timed):
            jobs = part.jobs
            due = self.due(part, now_us)
            expired = jobs.expire(now_us, due, self.settings.max_deliveries)
            if expired.workers:
                self._doubt(expired.workers)
                self._host.failed(self, part, expired.again, expired.dead)
            due_us = jobs.next_due_us()
            if due_us is not None and due_us <= now_us:
                self.stir(part)
            if 0 < part.paused_until_us <= now_us:
                part.paused_until_us = 0
                self.stir(part)
            if not jobs.leased and not jobs.waiting and not part.paused_until_us:
                del self._timed[part]
        self.enlist_freed()

    def _look_ahead(self, now_us: int) -> None:
        """Looks for priorities also while no worker has room: the first with room gets the urgent
        jobs."""
        if self.workers:
            for part in self._ranked_partitions:
                part.look_ahead(now_us)

    def _doubt(self, ids: Iterable[str]) -> None:
        for id in ids:
            worker = self.workers.get(id)
            if worker is not None:
                worker.doubted = True
