"""Stores dead letters: reads a job's record, adds what happened to it, and publishes it to the
dead-letter topic. Only when the letter is stored does the job count as done."""

from __future__ import annotations

import datetime as dt
import logging
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.messages.restrictions import Unrestricted
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.errors import (
    DamagedError,
    FanlogError,
    FormatError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
)
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.dead_letters import (
    REASON_CHARACTERS_MAX,
    TOPIC_PREFIX,
    Death,
    death_headers,
    letter_topic_settings,
)
from fanlog.format.frames import ACK_ENTRY, Ack
from fanlog.format.header import read_header
from fanlog.format.offset_ranges import OffsetRange
from fanlog.log.group_commit import Done
from fanlog.model import MIB

if TYPE_CHECKING:
    from fanlog.broker.queues.ports import DeadLetterPorts

logger = logging.getLogger("fanlog.broker")

# A batch of letters is no larger, unless a single letter is. A lease may have a million jobs.
_LETTERS_MAX = 1000
_LETTERS_BYTES = 1 * MIB


class DeadJobs:
    """Jobs of one queue and partition that become dead letters together, for one reason."""

    __slots__ = ("deliveries", "first", "next", "partition", "queue", "reason", "topic", "worker")

    def __init__(self, queue: str, topic: str, partition: Partition, range: OffsetRange) -> None:
        self.queue = queue
        self.topic = topic or TOPIC_PREFIX + partition.topic.name
        self.partition = partition
        self.first, self.next = range
        self.deliveries = 0
        self.reason = ""
        # The last worker, if known.
        self.worker = ""


class _Letters(NamedTuple):
    """Records to be, column by column."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Mapping[str, bytes] | None]
    times_us: list[int]

    def add(
        self, value: bytes | None, death: Death, headers: Mapping[str, bytes], time_us: int
    ) -> None:
        # A letter without a value would be a tombstone.
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


class _DeadBatch(NamedTuple):
    """A batch with dead jobs; `fault` says why it can't be read, if so."""

    dead: DeadJobs
    batch: Batch
    fault: FormatError | None
    done: Done


class DeadLetterWriter(Unrestricted):
    """Stores dead letters. It is the broker's own publisher: the number of a letter is its first
    sequence, which also identifies the answer."""

    def __init__(self, broker: DeadLetterPorts) -> None:
        self._broker = broker
        self._waiting: dict[int, Done] = {}
        self._number = 0

    def store(self, dead: DeadJobs, done: Done) -> None:
        """Publishes dead jobs as dead letters; calls `done` when they are stored, or with the
        error."""
        self._store_from(dead, dead.first, done)

    def _store_from(self, dead: DeadJobs, first: int, done: Done) -> None:
        """Dead jobs may be in several batches: one batch after the other."""

        def read(got: list[memoryview] | FanlogError) -> None:
            if isinstance(got, DamagedError | OffsetOutOfRangeError):
                logger.error("jobs of %s died unread: %s", dead.partition.name, got)
                # The jobs behind the damage, or behind the deleted ones, can still be stored.
                damaged = isinstance(got, DamagedError)
                after = got.next if damaged else dead.partition.log.start_offset
                if first < after < dead.next:
                    self._store_from(dead, after, done)
                else:
                    done(None)
            elif isinstance(got, FanlogError):
                done(got)
            elif not got:
                done(None)
            else:
                self._decode(dead, first, got[0], done)

        self._broker.reading.fetch(dead.partition, first, 1, read)

    def _decode(self, dead: DeadJobs, first: int, data: memoryview, done: Done) -> None:
        """Decodes the batch of the next jobs, a large one in a thread, and publishes them."""
        header = read_header(data)
        unpacker = self._broker.unpacker
        name = dead.partition.topic.name
        batch = Batch(data[: header.length], header, name, unpacker.limits)

        def check() -> FormatError | None:
            try:
                batch.check()
            except FormatError as fault:
                return fault
            return None

        def checked(fault: FormatError | Exception | None) -> None:
            if fault is not None and not isinstance(fault, FormatError):
                done(FanlogError(f"Decoding jobs of {dead.partition.name} failed: {fault!r}."))
            else:
                self._publish(_DeadBatch(dead, batch, fault, done), first)

        work = unpacker.decoding_bytes(batch.data)
        if unpacker.is_small(work):
            checked(check())
        else:
            unpacker.in_thread(work, check, checked)

    def _publish(self, dead_batch: _DeadBatch, first: int, *, bare: bool = False) -> None:
        """Publishes letters for a batch's jobs from `first` on: some, and then the others. Letters
        for jobs that can't be read, or that are too large with the added headers, are `bare`: they
        say what happened and have no content."""
        dead, batch, fault, done = dead_batch
        bare = bare or fault is not None
        try:
            topic = self._topic(dead)
            letters, next_offset = self._letters(dead_batch, first, bare=bare)
        except FanlogError as error:
            done(error)
            return

        def stored(error: FanlogError | None) -> None:
            if isinstance(error, MessageTooLargeError) and not bare:
                again = dead_batch._replace(fault=FormatError(str(error)))
                self._publish(again, first, bare=True)
            elif error is not None or next_offset >= dead.next:
                done(error)
            elif next_offset < batch.next_offset:
                self._publish(dead_batch, next_offset)
            else:
                self._store_from(dead, next_offset, done)

        if not letters.values:
            stored(None)
            return
        self._number += 1
        self._waiting[self._number] = stored
        try:
            self._broker.take(letters.encode(topic.number, self._number), 0, self)
        except FanlogError as error:
            self._answer(self._number, error)

    def _letters(self, dead_batch: _DeadBatch, first: int, *, bare: bool) -> tuple[_Letters, int]:
        """Letters for the records of a batch that are among the dead jobs, from `first` on, as
        many as fit into a batch; and the offset behind them."""
        dead, batch, fault, _ = dead_batch
        letters = _Letters([], [], [], [])
        end = min(dead.next, batch.next_offset)
        size = 0
        offsets = range(first, end) if bare else batch.offsets
        for i in range(bisect_left(offsets, first), bisect_left(offsets, end)):
            offset = offsets[i]
            if len(letters.values) >= _LETTERS_MAX or size >= _LETTERS_BYTES:
                return letters, offset
            if bare:
                why = f"{dead.reason} ({fault})"
                death = self._death(dead_batch, offset, why, None)._replace(null=True)
                letters.add(None, death, {}, batch.append_time_us)
            else:
                size += self._add(letters, dead_batch, i, offset)
        return letters, end

    def _add(self, letters: _Letters, dead_batch: _DeadBatch, i: int, offset: int) -> int:
        """Adds the letter of one record; about how large it is."""
        dead, batch, _, _ = dead_batch
        columns = batch.columns
        value = columns.value_column[i]
        key = None if columns.key_column is None else columns.key_column[i]
        given = columns.event_times_us
        time_us = batch.append_time_us if given is None else given[i]
        death = self._death(dead_batch, offset, dead.reason, key)._replace(null=value is None)
        headers = columns.headers(i)
        letters.add(value, death, headers, time_us)
        return len(value or b"") + len(key or b"") + sum(map(len, headers.values()))

    def _death(self, dead_batch: _DeadBatch, offset: int, reason: str, key: bytes | None) -> Death:
        dead, batch, _, _ = dead_batch
        return Death(
            topic=dead.partition.topic.name,
            partition=dead.partition.index,
            offset=offset,
            queue=dead.queue,
            reason=reason[:REASON_CHARACTERS_MAX],
            deliveries=dead.deliveries,
            time=dt.datetime.fromtimestamp(self._broker.now_us() / 1e6, tz=dt.UTC),
            key=key,
            log=f"{batch.header.topic}.{batch.header.leader_epoch}",
            priority=batch.header.priority,
            worker=dead.worker,
        )

    def _topic(self, dead: DeadJobs) -> BrokerTopic:
        known = self._broker.catalog.find(dead.topic)
        if known is not None:
            return known
        settings = letter_topic_settings(dead.partition.topic.settings)
        return self._broker.create_topic(dead.topic, settings, exist_ok=True, compare=())

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
