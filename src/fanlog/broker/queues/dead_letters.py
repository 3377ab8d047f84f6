"""The way of a job into its dead-letter topic: its record is read, dressed with what happened to
it, and published by the broker itself. Only once it is stored does the job count as done."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.queues.spans import Range
from fanlog.broker.topics import Partition, Topic
from fanlog.errors import DamagedError, FanlogError, FormatError, OffsetOutOfRangeError
from fanlog.format.batch import Batch, encode_batch, read_header
from fanlog.format.dead_letters import TOPIC_PREFIX, Death, death_headers
from fanlog.format.frames import ACK_ENTRY, Ack
from fanlog.model import KIB, MIB, Durability

if TYPE_CHECKING:
    from fanlog.broker.core import Broker

logger = logging.getLogger("fanlog.broker")

Done = Callable[[FanlogError | None], None]
# What a dead letter may be longer than its job, for what its headers say.
_HEADERS_BYTES_MAX = 64 * KIB
_REASON_CHARACTERS_MAX = 4096


class Grave:
    """Jobs of one queue and partition that are to be buried together, for one reason."""

    __slots__ = ("deliveries", "first", "next", "partition", "queue", "reason", "topic")

    def __init__(self, queue: str, topic: str, partition: Partition, range: Range) -> None:
        self.queue = queue
        self.topic = topic or TOPIC_PREFIX + partition.topic.name
        self.partition = partition
        self.first, self.next = range
        self.deliveries = 0
        self.reason = ""


class _Letters(NamedTuple):
    """Records to be, column by column."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Mapping[str, bytes] | None]
    times_us: list[int]

    def add(
        self, value: bytes | None, death: Death, headers: Mapping[str, bytes], time_us: int
    ) -> None:
        # A letter without a value would be one that was taken back.
        self.values.append(value or b"")
        self.keys.append(death.letter_key)
        self.headers.append({**headers, **death_headers(death)})
        self.times_us.append(time_us)

    def encode(self, topic: int, number: int) -> bytes:
        return encode_batch(
            self.values,
            keys=self.keys,
            headers=self.headers,
            event_times_us=self.times_us,
            topic=topic,
            first_sequence=number,
        )


class DeadLetters:
    """Buries jobs. It is the broker's own publisher: a letter's number is its first sequence, by
    which the answer finds it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[int, Done] = {}
        self._number = 0

    def bury(self, grave: Grave, done: Done) -> None:
        """Publishes the jobs of a grave as dead letters; `done` hears when they are stored, or
        why they could not be."""
        self._bury_from(grave, grave.first, done)

    def _bury_from(self, grave: Grave, first: int, done: Done) -> None:
        """A grave's jobs may lie in several batches: one after the other."""

        def read(got: list[memoryview] | FanlogError) -> None:
            if isinstance(got, DamagedError | OffsetOutOfRangeError):
                logger.error("jobs of %s died unread: %s", grave.partition.name, got)
                # Those behind the damage, or behind what was deleted, are there to be buried.
                damaged = isinstance(got, DamagedError)
                after = got.next if damaged else grave.partition.log.start_offset
                if first < after < grave.next:
                    self._bury_from(grave, after, done)
                else:
                    done(None)
            elif isinstance(got, FanlogError):
                done(got)
            elif not got:
                done(None)
            else:
                self._publish(grave, first, got[0], done)

        self._broker.fetch(grave.partition, first, 1, read)

    def _publish(self, grave: Grave, first: int, data: memoryview, done: Done) -> None:
        try:
            header = read_header(data)
            batch = Batch(data[: header.length], header)
            topic = self._topic(grave)
            try:
                letters = self._letters(grave, first, batch)
            except FormatError as fault:
                letters = self._unreadable(grave, first, batch, fault)
        except FanlogError as fault:
            done(fault)
            return
        next_offset = batch.next_offset

        def stored(fault: FanlogError | None) -> None:
            if fault is not None or next_offset >= grave.next:
                done(fault)
            else:
                self._bury_from(grave, next_offset, done)

        if not letters.values:
            stored(None)
            return
        self._number += 1
        self._waiting[self._number] = stored
        try:
            self._broker.take(letters.encode(topic.number, self._number), 0, self)
        except FanlogError as fault:
            self._answer(self._number, fault)

    def _letters(self, grave: Grave, first: int, batch: Batch) -> _Letters:
        """The records of a batch that belong into the grave."""
        letters = _Letters([], [], [], [])
        columns = batch.columns
        for i, offset in enumerate(batch.offsets):
            if not first <= offset < grave.next:
                continue
            value = columns.value_column[i]
            key = None if columns.key_column is None else columns.key_column[i]
            given = columns.event_times_us
            time_us = batch.append_time_us if given is None else given[i]
            death = self._death(grave, offset, grave.reason, key)._replace(null=value is None)
            letters.add(value, death, columns.headers(i), time_us)
        return letters

    def _unreadable(self, grave: Grave, first: int, batch: Batch, fault: FormatError) -> _Letters:
        """Letters without their jobs' content, where a publisher sent what nobody can read."""
        letters = _Letters([], [], [], [])
        for offset in range(first, min(grave.next, batch.next_offset)):
            death = self._death(grave, offset, f"{grave.reason} ({fault})", None)
            letters.add(None, death._replace(null=True), {}, batch.append_time_us)
        return letters

    def _death(self, grave: Grave, offset: int, reason: str, key: bytes | None) -> Death:
        return Death(
            topic=grave.partition.topic.name,
            partition=grave.partition.index,
            offset=offset,
            queue=grave.queue,
            reason=reason[:_REASON_CHARACTERS_MAX],
            deliveries=grave.deliveries,
            time=dt.datetime.fromtimestamp(self._broker.now_us() / 1e6, tz=dt.UTC),
            key=key,
        )

    def _topic(self, grave: Grave) -> Topic:
        known = self._broker.catalog.find(grave.topic)
        if known is not None:
            return known
        source = grave.partition.topic.settings
        in_memory = source.level is Durability.MEMORY
        return self._broker.create_topic(
            grave.topic,
            {
                "partitions": 1,
                "durability": source.durability,
                "cleanup": "delete" if in_memory else "compact",
                "retention_seconds": 0,
                "retention_bytes": 0,
                "message_bytes_max": min(64 * MIB, source.message_bytes_max + _HEADERS_BYTES_MAX),
                "role": "dead-letter",
            },
            exist_ok=True,
        )

    # The broker's Origin

    def acknowledge(self, entries: list[bytes]) -> None:
        for entry in entries:
            self._answer(Ack._make(ACK_ENTRY.unpack(entry)).first_sequence, None)

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None:
        self._answer(first_sequence, error)

    def _answer(self, number: int, fault: FanlogError | None) -> None:
        done = self._waiting.pop(number, None)
        if done is not None:
            done(fault)
