"""What a queue must not forget, in a ledger: its settings, and of each partition what is done and
what has failed. Outcomes are written as they come, in a few bytes; all of a partition's state is
written only when it begins anew, and in the ledger's snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from fanlog.broker.clocks import SECOND_US, Clocks
from fanlog.broker.queues.jobs import InHand, JobFailure, Jobs
from fanlog.broker.state.ledger import Entry, Ledger, LedgerHost
from fanlog.format.offset_ranges import OffsetRange, joined
from fanlog.model import QueueSettings

# The longest delay there is: an entry of an earlier version does not say its own.
_DELAY_US_MAX = 86_400 * SECOND_US


class StoredQueuePartition(NamedTuple):
    """One partition's restored jobs. The number distinguishes its topic from a later one of the
    same name."""

    topic: str
    partition: int
    number: int
    sequence: int
    jobs: Jobs
    # The ledger's last offset, if the log was truncated since.
    reach: int = 0


class StoredQueue:
    """A queue as it comes back. `born` is the number of the newest topic when it began."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings = QueueSettings()
        self.born = 0
        self.in_hand = InHand()
        self.partitions: dict[tuple[str, int], StoredQueuePartition] = {}


class _Failure(NamedTuple):
    """A `JobFailure` as it is stored: due by the wall clock, and how long that was to wait when it
    was written, so that a clock that was set back makes no job wait for longer."""

    first: int
    next: int
    failures: int
    due_us: int
    reason: str
    delay_us: int = _DELAY_US_MAX


class _PartitionEntry(msgspec.Struct, frozen=True, array_like=True):
    """Changes in a partition. With a floor it is the complete state. `epoch` is the broker's when
    it was written; 0 means before epochs were kept."""

    number: int
    floor: int | None
    done: list[OffsetRange] = []
    failures: list[_Failure] = []
    epoch: int = 0

    @property
    def reach(self) -> int:
        """The offset after the last job of this entry."""
        return max(
            self.floor or 0,
            max((next for _, next in self.done), default=0),
            max((failure.next for failure in self.failures), default=0),
        )

    def until(self, end: int) -> _PartitionEntry:
        """The same without jobs at or past an offset."""
        if self.reach <= end:
            return self
        end = max(0, end)
        return _PartitionEntry(
            self.number,
            None if self.floor is None else min(self.floor, end),
            [(first, min(next, end)) for first, next in self.done if first < end],
            [f._replace(next=min(f.next, end)) for f in self.failures if f.first < end],
            self.epoch,
        )


# The offset up to which a partition is unchanged; by topic, number, partition and epoch.
KnownUntil = Callable[[str, int, int, int], int]


class _Queue(msgspec.Struct, frozen=True, array_like=True):
    settings: QueueSettings
    born: int = 0


# A queue's own entry has no topic; each of a partition's has a sequence of its own, because each
# counts.
_PartitionKey = tuple[str, str, int, int]
# The effect of lost entries, for users.
_LOSS = (
    "jobs that were done or have failed since may be handed out again, and a queue without an "
    "entry in a topic begins with the topic's earliest message"
)
_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(_PartitionKey).decode
_decode_partition = msgspec.msgpack.Decoder(_PartitionEntry).decode
_decode_queue = msgspec.msgpack.Decoder(_Queue).decode


class QueueLedger:
    def __init__(
        self,
        host: LedgerHost,
        clocks: Clocks,
        epoch: Callable[[], int],
        everything: Callable[[], Iterable[tuple[bytes, bytes]]],
    ) -> None:
        self._clocks = clocks
        self._epoch = epoch
        self._ledger = Ledger(host, "queues", everything, _LOSS, deltas=True)
        self.may_have_lost = self._ledger.may_have_lost
        self.write = self._ledger.write
        self.write_or_owe = self._ledger.write_or_owe
        self.write_large = self._ledger.write_large
        self.has_taken_in = self._ledger.has_taken_in

    def load(self, known_until: KnownUntil) -> list[StoredQueue]:
        """Loads all queues. Entries about jobs that a crash took do not count for the new jobs at
        their offsets."""
        queues: dict[str, StoredQueue] = {}

        def take(key: bytes, value: bytes | None) -> None:
            name, topic, partition, sequence = _decode_key(key)
            if not topic:
                if value is None:
                    queues.pop(name, None)
                    return
                kept = _decode_queue(value)
                queue = queues.setdefault(name, StoredQueue(name))
                queue.settings, queue.born = kept.settings, kept.born
            elif value is None:
                if name in queues:
                    queues[name].partitions.pop((topic, partition), None)
            else:
                said = _decode_partition(value)
                # An entry without its queue. With all of a partition's state, the queue's own entry
                # is lost. A change is about a dead letter of a queue that was deleted meanwhile.
                if name in queues or said.floor is not None:
                    queue = queues.setdefault(name, StoredQueue(name))
                    end = known_until(topic, said.number, partition, said.epoch)
                    self._take_partition(queue, (topic, partition, sequence), said, end)

        self._ledger.load(take)
        return list(queues.values())

    def _take_partition(
        self, queue: StoredQueue, key: tuple[str, int, int], said: _PartitionEntry, end: int
    ) -> None:
        topic, partition, sequence = key
        known = queue.partitions.get((topic, partition))
        reach = said.reach if said.reach > end else 0
        said = said.until(end)
        if said.floor is not None:
            jobs = Jobs(said.floor, queue.in_hand, ordered=queue.settings.ordered)
        elif known is not None and known.number == said.number:
            jobs = known.jobs
            reach = max(reach, known.reach)
        else:
            return
        jobs.restore(said.done, map(self._loaded, said.failures))
        stored = StoredQueuePartition(topic, partition, said.number, sequence, jobs, reach)
        queue.partitions[topic, partition] = stored

    def _loaded(self, stored: _Failure) -> JobFailure:
        left_us = min(stored.due_us - self._clocks.now_us(), stored.delay_us)
        due_us = self._clocks.monotonic_us() + left_us if left_us > 0 else 0
        return JobFailure(stored.first, stored.next, stored.failures, due_us, stored.reason)

    def _stored(self, failure: JobFailure) -> _Failure:
        first, next, failures, due_us, reason = failure
        delay_us = max(0, due_us - self._clocks.monotonic_us())
        due_us = self._clocks.now_us() + delay_us if delay_us else 0
        return _Failure(first, next, failures, due_us, reason, delay_us)

    def partition_entry(self, name: str, stored: StoredQueuePartition) -> tuple[bytes, bytes]:
        """All of a partition's state."""
        jobs = stored.jobs
        failures = list(map(self._stored, jobs.failures()))
        state = _PartitionEntry(
            stored.number, jobs.floor, jobs.done_ranges(), failures, self._epoch()
        )
        return _entry(name, stored, state)

    def change_entry(
        self,
        name: str,
        stored: StoredQueuePartition,
        done: Sequence[OffsetRange],
        failures: Sequence[JobFailure],
    ) -> tuple[bytes, bytes]:
        """What has changed in a partition."""
        new = list(map(self._stored, failures))
        change = _PartitionEntry(stored.number, None, list(joined(done)), new, self._epoch())
        return _entry(name, stored, change)


def queue_entry(name: str, settings: QueueSettings, born: int) -> tuple[bytes, bytes]:
    return _encode((name, "", 0, 0)), _encode(_Queue(settings, born))


def no_queue_entry(name: str) -> Entry:
    return _encode((name, "", 0, 0)), None


def _entry(name: str, stored: StoredQueuePartition, state: _PartitionEntry) -> tuple[bytes, bytes]:
    return _encode((name, stored.topic, stored.partition, stored.sequence)), _encode(state)


def no_partition_entry(name: str, stored: StoredQueuePartition) -> Entry:
    return _encode((name, stored.topic, stored.partition, stored.sequence)), None
