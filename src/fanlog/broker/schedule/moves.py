"""Messages that fall due go to their topics, exactly once.

Some that are due are one transaction of the broker's own: it publishes them, and writes that they
are over, both or neither. A crash before its intent is durable has moved nothing. A crash after
that is made good by the next start, which does again what the intent says; the transaction's
producer id keeps the logs from storing it twice.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fanlog.broker.messages.intake import Intake
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.names import check_public_name
from fanlog.broker.schedule.outgoing import (
    DEAD_TOPIC,
    DueMessage,
    dead_letter_of,
    encode_messages,
    key_of,
    message_of,
    pick_partition,
)
from fanlog.broker.schedule.pending import DueEntry, Pending, PendingEntry, split_key
from fanlog.broker.schedule.records import DelayedRecord, DelayedRecordsFound, ScheduleRecords
from fanlog.errors import (
    DiskFullError,
    FanlogError,
    FormatError,
    InvalidArgumentError,
    InvalidNameError,
    MessageTooLargeError,
    OutOfResourcesError,
    OverloadedError,
    TopicNotFoundError,
    UnreadableError,
)
from fanlog.format.batch import encode_batch
from fanlog.format.messages import TransactionCommitted
from fanlog.format.schedules import Delayed, decode_delayed
from fanlog.model import KIB, MIB, PRODUCER_ID_MAX

if TYPE_CHECKING:
    from fanlog.broker.schedule.ports import SchedulePorts

logger = logging.getLogger("fanlog.broker")

# Messages moved together: about 2 ms of the loop.
_MOVE_RECORDS = 250
_MOVE_BYTES = 512 * KIB
# Bytes read at once, unless a single message is larger.
_READ_BYTES = 4 * MIB
# Messages that were replaced, and whose end a move writes with its own.
SUPERSEDED_MAX = 4000
# Transactions under way. One that waits for the disk does not hold up the next.
_MOVES_MAX = 8
# The wait before another try to move messages, and a longer one if only an operator can help.
_RETRY_SECONDS = 1.0
_REFUSED_SECONDS = 10.0
# Faults of a message, or of its topic's settings: no retry helps.
_FINAL = (
    TopicNotFoundError,
    InvalidNameError,
    InvalidArgumentError,
    MessageTooLargeError,
    UnreadableError,
    FormatError,
)

# The record that follows one that is over, key, value and event time: a schedule's next run.
Next = tuple[bytes, bytes, int]


class _Over(NamedTuple):
    """A record that ends with this move, and the one that follows it."""

    id: bytes
    entry: PendingEntry
    record: DelayedRecord
    next: Next | None = None


class Runs(Protocol):
    """What a schedule does when a run is due; see `recurring.py`."""

    def run(self, record: DelayedRecord, delayed: Delayed, /) -> tuple[bool, Next | None]:
        """Whether the run happens, and the next run."""
        ...


class Moves:
    """`moving` has the offsets of messages that can't be cancelled any more."""

    def __init__(
        self,
        broker: SchedulePorts,
        intake: Intake,
        pending: Pending,
        records: ScheduleRecords,
        runs: Runs,
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._pending = pending
        self._records = records
        self._runs = runs
        self._under_way = 0
        self.moving: set[int] = set()
        # Messages that could not be moved, and are due again later.
        self._held: set[int] = set()
        # Keys of replaced messages. Tombstones for them are still to be written.
        self.superseded: dict[bytes, None] = {}
        # Why messages are late, by their topic.
        self.held_up: dict[str, str] = {}

    def begin(self, partition: Partition) -> bool:
        """Starts to move some due messages; False if none is due, or enough moves are under way."""
        if self._under_way >= _MOVES_MAX:
            return False
        taken = self._pending.take_due(_MOVE_RECORDS)
        if not taken:
            return False
        self.moving.update(taken)
        self._under_way += 1

        def read(got: DelayedRecordsFound | FanlogError) -> None:
            if isinstance(got, FanlogError):
                logger.error("%d delayed messages can't be read now: %s", len(taken), got)
                self.held_up[""] = str(got)
                self._put_back(taken, taken)
                self._held.update(taken)
                self._ended(taken)
                return
            self._put_back(taken, got.unread)
            self.moving.difference_update(got.unread)
            self._report_lost(len(taken) - len(got.records) - len(got.unread))
            self._move(partition, taken, got.records)

        self._records.read(partition, list(taken), _READ_BYTES, read)
        return True

    def _put_back(self, taken: dict[int, DueEntry], offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._pending.put_back(taken[offset])

    def _report_lost(self, count: int) -> None:
        if count:
            logger.error("%d delayed messages are damaged, and can't be moved", count)

    def _move(
        self, partition: Partition, taken: Iterable[int], records: list[DelayedRecord]
    ) -> None:
        """Moves records, in as many transactions as their size asks for."""
        left = set(taken)
        move = _Move(self._broker, self._intake, self._runs)
        for record in records:
            _, id = split_key(record.key)
            entry = self._pending.find(id)
            if entry is None or entry.offset != record.offset:
                # Another message has replaced it since it was due.
                self.superseded[record.key] = None
                continue
            over = _Over(id, entry, record)
            try:
                move.add(over)
            except FanlogError as fault:
                self._hold_up(over, fault)
                # It waits again from now on, and not only once the others have gone out: then it
                # may be in another move.
                left.discard(record.offset)
                self.moving.discard(record.offset)
                self._held.discard(record.offset)
            if move.bytes >= _MOVE_BYTES:
                left -= move.offsets
                self._under_way += 1
                self._commit(partition, move, move.offsets)
                move = _Move(self._broker, self._intake, self._runs)
        self._commit(partition, move, left)

    def _commit(self, partition: Partition, move: _Move, offsets: set[int]) -> None:
        if not move.over:
            self._ended(offsets)
            return

        def done(outcome: TransactionCommitted | FanlogError) -> None:
            if isinstance(outcome, FanlogError):
                # It is committed, and the next start stores it. Until then they are moving.
                logger.error("delayed messages are not stored yet: %s", outcome)
                self._ended(())
                return
            for over in move.over:
                self._pending.remove(over.id, over.entry.nonce)
            for key in superseded:
                self.superseded.pop(key, None)
            for topic in move.topics:
                self.held_up.pop(topic, None)
            self._ended(offsets)

        # With it: they must not come back when those that replaced them are over.
        superseded = list(self.superseded)
        try:
            self._broker.check_room()
            data, keys, count = move.encode(partition, superseded, self._broker.now_us())
            self._broker.transactions.commit_own(data, move.producer_id, count, keys, done)
        except FanlogError as fault:
            for over in move.over:
                self._hold_up(over, fault)
            self._ended(offsets)

    def _hold_up(self, over: _Over, fault: FanlogError) -> None:
        """It can't be moved now, and is tried again in a while."""
        temporary = isinstance(fault, DiskFullError | OverloadedError | OutOfResourcesError)
        topic = "" if temporary else decode_delayed(over.record.value).topic
        if topic not in self.held_up:
            logger.error("delayed messages are late: %s", fault)
        self.held_up[topic] = str(fault)
        self._held.add(over.record.offset)
        seconds = _RETRY_SECONDS if temporary else _REFUSED_SECONDS
        self._pending.postpone(over.id, over.entry, seconds)

    def _ended(self, offsets: Iterable[int]) -> None:
        self._under_way -= 1
        for offset in offsets:
            self.moving.discard(offset)
            if offset not in self._held:
                self._records.forget(offset)
        self._held.difference_update(offsets)


class _Move:
    """Messages that are moved together, by the partitions that they go to."""

    def __init__(self, broker: SchedulePorts, intake: Intake, runs: Runs) -> None:
        self._broker = broker
        self._intake = intake
        self._runs = runs
        # By partition and priority: a batch has one of each.
        self._messages: dict[tuple[Partition, int], list[DueMessage]] = {}
        self.over: list[_Over] = []
        self.offsets: set[int] = set()
        self.topics: set[str] = {""}
        self.bytes = 0
        self.producer_id = PRODUCER_ID_MAX + 1 + secrets.randbits(63)

    def add(self, over: _Over) -> None:
        """Adds a message. Raises if it can't be moved now."""
        try:
            delayed = decode_delayed(over.record.value)
        except FormatError:
            # Nobody could have published it: the intake checks every batch.
            logger.exception("a delayed message is not understood, and is dropped")
        else:
            happens = True
            if delayed.repeat is not None:
                happens, following = self._runs.run(over.record, delayed)
                over = over._replace(next=following)
            if happens:
                self._send(message_of(over.record, delayed))
            self.topics.add(delayed.topic)
        self.over.append(over)
        self.offsets.add(over.record.offset)

    def _send(self, message: DueMessage) -> None:
        topic = message.delayed.topic
        try:
            # A deleted topic is created again, as publishing would do.
            target = self._broker.open_topic(check_public_name(topic), create=True)
            partition, priority = pick_partition(target, message), message.delayed.priority
            _check(partition, message)
        except _FINAL as fault:
            logger.warning("a delayed message goes to %s: %s", DEAD_TOPIC, fault)
            message = dead_letter_of(message, str(fault), self._broker.now_us())
            partition, priority = self._dead_letters().partitions[0], 0
            _check(partition, message)
        self._messages.setdefault((partition, priority), []).append(message)
        self.bytes += message.bytes

    def _dead_letters(self) -> BrokerTopic:
        in_memory = self._broker.in_memory
        return self._broker.catalog.find(DEAD_TOPIC) or self._broker.create_topic(
            DEAD_TOPIC,
            {
                "partitions": 1,
                "durability": "memory" if in_memory else "fsync",
                "cleanup": "delete" if in_memory else "compact",
                "retention_seconds": 0,
                "retention_bytes": 0,
                "message_bytes_max": 64 * MIB,
                "role": "dead-letter",
            },
        )

    def _apart(
        self, partition: Partition, priority: int, messages: list[DueMessage], fault: FanlogError
    ) -> list[tuple[tuple[Partition, int], list[DueMessage]]]:
        """What to send instead of a batch that its topic refuses: its two halves, or a single
        message as a dead letter. So a refused message does not keep others from their topic."""
        if len(messages) > 1:
            half = len(messages) // 2
            return [((partition, priority), some) for some in (messages[:half], messages[half:])]
        dead_letters = self._dead_letters().partitions[0]
        if partition is dead_letters:
            raise fault
        logger.warning("a delayed message goes to %s: %s", DEAD_TOPIC, fault)
        letter = dead_letter_of(messages[0], str(fault), self._broker.now_us())
        return [((dead_letters, 0), [letter])]

    def encode(
        self, scheduled: Partition, superseded: list[bytes], now_us: int
    ) -> tuple[bytes, tuple[int, ...], int]:
        """The batches, the partitions that they are for, and how many records they hold. Raises
        what a publisher would be refused with."""
        parts: list[bytes] = []
        sequences: dict[Partition, int] = {}
        left = deque(self._messages.items())
        while left:
            (partition, priority), messages = left.popleft()
            sequence = sequences.get(partition, 0)
            batch = encode_messages(
                partition,
                messages,
                self.producer_id,
                now_us,
                first_sequence=sequence,
                priority=priority,
            )
            try:
                self._intake.inspect(batch, 0)
            except _FINAL as fault:
                left.extendleft(reversed(self._apart(partition, priority, messages, fault)))
                continue
            parts.append(batch)
            sequences[partition] = sequence + len(messages)
        ends = [*superseded, *(over.record.key for over in self.over)]
        following = [over.next for over in self.over if over.next is not None]
        parts.append(
            encode_batch(
                [*repeat(None, len(ends)), *(value for _, value, _ in following)],
                keys=[*ends, *(key for key, _, _ in following)],
                event_times_us=[*repeat(0, len(ends)), *(time_us for *_, time_us in following)],
                topic=scheduled.topic.number,
                partition=scheduled.index,
                producer_id=self.producer_id,
            )
        )
        count = sum(map(len, self._messages.values())) + len(ends) + len(following)
        keys = (*map(key_of, sequences), key_of(scheduled))
        return b"".join(parts), keys, count


def _check(partition: Partition, message: DueMessage) -> None:
    """Raises the error of a message for its topic, or of the topic."""
    settings, failure = partition.topic.settings, partition.log.failure
    if failure is not None:
        raise type(failure)(str(failure))
    if message.own_bytes > settings.message_bytes_max:
        raise MessageTooLargeError(
            f"A message has {message.own_bytes} bytes; topic {partition.topic.name!r} takes "
            f"{settings.message_bytes_max} (message_bytes_max)."
        )
    if message.key is None and settings.cleanup == "compact":
        raise InvalidArgumentError(
            f"Topic {partition.topic.name!r} is compacted, and the message has no key."
        )
