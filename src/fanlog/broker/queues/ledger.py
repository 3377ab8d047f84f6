"""What a queue must not forget, in a ledger: its settings, and of each partition what is done and
what has failed. Verdicts are written as they come, in a few bytes; all of a partition's state is
written only when it begins anew, and in the ledger's snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from fanlog.broker.ledger import Entry, Ledger, LedgerHost
from fanlog.broker.queues.jobs import Failure, InHand, Jobs
from fanlog.broker.queues.spans import Range, joined
from fanlog.model import QueueSettings


class StoredLane(NamedTuple):
    """One partition's jobs, as they come back. The number tells its topic from another that has
    got its name since."""

    topic: str
    partition: int
    number: int
    sequence: int
    jobs: Jobs


class StoredQueue:
    """A queue as it comes back. `born` is the number of the newest topic when it began."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings = QueueSettings()
        self.born = 0
        self.in_hand = InHand()
        self.lanes: dict[tuple[str, int], StoredLane] = {}


class _Lane(msgspec.Struct, frozen=True, array_like=True):
    """What happened in a partition. With a floor it is all that there is to know."""

    number: int
    floor: int | None
    done: list[Range] = []
    failures: list[Failure] = []


class _Queue(msgspec.Struct, frozen=True, array_like=True):
    settings: QueueSettings
    born: int = 0


# A queue's own entry has no topic; each of a partition's has a sequence of its own, because each
# counts.
_Key = tuple[str, str, int, int]
_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(_Key).decode
_decode_lane = msgspec.msgpack.Decoder(_Lane).decode
_decode_queue = msgspec.msgpack.Decoder(_Queue).decode


class QueueLedger:
    def __init__(
        self, host: LedgerHost, everything: Callable[[], Iterable[tuple[bytes, bytes]]]
    ) -> None:
        self._ledger = Ledger(host, "queues", everything)
        self.write = self._ledger.write
        self.write_or_owe = self._ledger.write_or_owe
        self.sync_now = self._ledger.sync_now

    def load(self) -> list[StoredQueue]:
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
            elif (queue := queues.get(name)) is None:
                # A dead letter of a queue that was deleted meanwhile.
                return
            elif value is None:
                queue.lanes.pop((topic, partition), None)
            else:
                _take_lane(queue, (topic, partition, sequence), _decode_lane(value))

        self._ledger.load(take)
        return list(queues.values())


def _take_lane(queue: StoredQueue, key: tuple[str, int, int], said: _Lane) -> None:
    topic, partition, sequence = key
    known = queue.lanes.get((topic, partition))
    if said.floor is not None:
        jobs = Jobs(said.floor, queue.in_hand, ordered=queue.settings.ordered)
    elif known is not None and known.number == said.number:
        jobs = known.jobs
    else:
        return
    jobs.restore(said.done, said.failures)
    queue.lanes[topic, partition] = StoredLane(topic, partition, said.number, sequence, jobs)


def queue_entry(name: str, settings: QueueSettings, born: int) -> tuple[bytes, bytes]:
    return _encode((name, "", 0, 0)), _encode(_Queue(settings, born))


def no_queue_entry(name: str) -> Entry:
    return _encode((name, "", 0, 0)), None


def lane_entry(name: str, stored: StoredLane) -> tuple[bytes, bytes]:
    """All of a partition's state."""
    jobs = stored.jobs
    state = _Lane(stored.number, jobs.floor, jobs.done_ranges(), jobs.failures())
    return _encode((name, stored.topic, stored.partition, stored.sequence)), _encode(state)


def change_entry(
    name: str, stored: StoredLane, done: Sequence[Range], failures: Sequence[Failure]
) -> tuple[bytes, bytes]:
    """What has changed in a partition."""
    change = _Lane(stored.number, None, list(joined(done)), list(failures))
    return _encode((name, stored.topic, stored.partition, stored.sequence)), _encode(change)


def no_lane_entry(name: str, stored: StoredLane) -> Entry:
    return _encode((name, stored.topic, stored.partition, stored.sequence)), None
