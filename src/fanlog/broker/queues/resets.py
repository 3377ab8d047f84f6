"""Resets of queues: all partitions of a reset begin anew, or none.

A queue may have tens of thousands of partitions. So a reset is prepared in slices, written as one
batch, and takes effect in slices once that is durable. From the write on nothing else may happen to
the queue's jobs: outcomes wait until the reset has taken effect, no job is handed out, and no lease
runs out. Otherwise the ledger, in which all of that comes after the reset, would say something else
than the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.messages.topics import Partition
from fanlog.broker.queues.jobs import Jobs
from fanlog.broker.queues.ledger import QueueLedger, StoredQueuePartition
from fanlog.broker.queues.queue import Queue
from fanlog.broker.state.ledger import Done
from fanlog.errors import FanlogError
from fanlog.format.large_batch import LargeBatch
from fanlog.model import Durability, ResetStep

if TYPE_CHECKING:
    from fanlog.broker.queues.ports import QueuePorts

# Partitions that are prepared, or begin anew, in one step.
_RESET_A_STEP = 64


class _Start(NamedTuple):
    """Where a partition begins anew. The sequence is that of its entry."""

    partition: Partition
    offset: int
    sequence: int


class QueueReset:
    """One reset. `keys` are the queue partitions that it is about, by topic number and index."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.starts: list[_Start] = []
        self.keys: set[tuple[int, int]] = set()
        self.batch = LargeBatch()


class QueueResets:
    """`is_known` says whether a queue still exists. `ended` is called when the jobs of a queue can
    change again."""

    def __init__(
        self,
        broker: QueuePorts,
        ledger: QueueLedger,
        is_known: Callable[[Queue], bool],
        ended: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._is_known = is_known
        self._ended = ended

    def prepared(
        self, queue: Queue, steps: list[tuple[Partition, ResetStep]]
    ) -> Generator[None, None, QueueReset]:
        """Encodes a reset, some partitions at a time. Topics that are gone are left out."""
        reset = QueueReset(queue)
        for first in range(0, len(steps), _RESET_A_STEP):
            entries = [
                self._ledger.partition_entry(queue.name, kept)
                for partition, step in steps[first : first + _RESET_A_STEP]
                if (kept := _anew(reset, partition, step.after)) is not None
            ]
            reset.batch.add([key for key, _ in entries], [value for _, value in entries])
            yield
        return reset

    def begin(self, reset: QueueReset, done: Done) -> None:
        """Writes a reset. `done` is called when it has taken effect."""
        queue = reset.queue
        written: set[bytes] = set()

        def end(fault: FanlogError | None = None) -> None:
            queue.resetting = frozenset()
            self._ledger.has_taken_in(written)
            queue.enlist_freed()
            if queue.present():
                # They came meanwhile.
                parts = list(queue.partitions.values())
                self._broker.slices.in_slices(queue.stir_each(parts))
            self._ended()
            done(fault)

        def durable(fault: FanlogError | None) -> None:
            if fault is None:
                self._broker.slices.in_slices(self._take_in(reset), end)
            else:
                end(fault)

        queue.resetting = frozenset(reset.keys)
        if not reset.batch.count:
            durable(None)
            return
        try:
            self._ledger.write_large(reset.batch, written, durable)
        except FanlogError as fault:
            end(fault)

    def _take_in(self, reset: QueueReset) -> Iterator[None]:
        queue = reset.queue
        for first in range(0, len(reset.starts), _RESET_A_STEP):
            if not self._is_known(queue):
                return
            for partition, offset, sequence in reset.starts[first : first + _RESET_A_STEP]:
                if partition.topic.deleted:
                    continue
                old = queue.partitions.get((partition.topic.number, partition.index))
                if old is not None:
                    queue.drop_partition(old)
                jobs = Jobs(offset, queue.in_hand, ordered=queue.settings.ordered)
                queue.add_partition(partition, jobs, sequence)
            yield


def _anew(reset: QueueReset, partition: Partition, offset: int) -> StoredQueuePartition | None:
    """Adds a partition to a reset. Returns what is written of it; None if its log is in memory, or
    its topic is gone."""
    topic = partition.topic
    if topic.deleted:
        return None
    key = topic.number, partition.index
    old = reset.queue.partitions.get(key)
    sequence = 1 if old is None else old.sequence + 1
    reset.starts.append(_Start(partition, offset, sequence))
    reset.keys.add(key)
    if partition.durability is Durability.MEMORY:
        return None
    return StoredQueuePartition(topic.name, partition.index, topic.number, sequence, Jobs(offset))
