"""The way of a job into its dead-letter topic: its record is read, dressed with what happened to
it, and published by the broker itself. Only once it is stored does the job count as done."""

from __future__ import annotations

import datetime as dt
import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.queues.spans import Range
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
from fanlog.model import MIB

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore

logger = logging.getLogger("fanlog.broker")

Done = Callable[[FanlogError | None], None]
# A batch of letters is no larger, unless a single one is. A lease may be of a million jobs.
_LETTERS_MAX = 1000
_LETTERS_BYTES = 1 * MIB


class Grave:
    """Jobs of one queue and partition that are to be buried together, for one reason."""

    __slots__ = ("deliveries", "first", "next", "partition", "queue", "reason", "topic", "worker")

    def __init__(self, queue: str, topic: str, partition: Partition, range: Range) -> None:
        self.queue = queue
        self.topic = topic or TOPIC_PREFIX + partition.topic.name
        self.partition = partition
        self.first, self.next = range
        self.deliveries = 0
        self.reason = ""
        # Who had them last, if that is known.
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


class _Burial(NamedTuple):
    """A batch with jobs of a grave; `fault` says why it can't be read, if so."""

    grave: Grave
    batch: Batch
    fault: FormatError | None
    done: Done


class DeadLetterWriter:
    """Buries jobs. It is the broker's own publisher: a letter's number is its first sequence, by
    which the answer finds it."""

    def __init__(self, broker: BrokerCore) -> None:
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
                self._decode(grave, first, got[0], done)

        self._broker.fetch(grave.partition, first, 1, read)

    def _decode(self, grave: Grave, first: int, data: memoryview, done: Done) -> None:
        """Decodes the batch of the next jobs, a large one in a thread, and buries them."""
        header = read_header(data)
        unpacker = self._broker.unpacker
        name = grave.partition.topic.name
        batch = Batch(data[: header.length], header, name, unpacker.limits)

        def check() -> FormatError | None:
            try:
                batch.check()
            except FormatError as fault:
                return fault
            return None

        def checked(fault: FormatError | Exception | None) -> None:
            if fault is not None and not isinstance(fault, FormatError):
                done(FanlogError(f"Decoding jobs of {grave.partition.name} failed: {fault!r}."))
            else:
                self._publish(_Burial(grave, batch, fault, done), first)

        work = unpacker.decoding_bytes(batch.data)
        if unpacker.is_small(work):
            checked(check())
        else:
            unpacker.in_thread(work, check, checked)

    def _publish(self, burial: _Burial, first: int, *, bare: bool = False) -> None:
        """Publishes letters of a batch's jobs from `first` on: some, and then the others. Those of
        jobs that can't be read, or that are too large with what is added, are `bare`: they say
        what happened and have no content."""
        grave, batch, fault, done = burial
        bare = bare or fault is not None
        try:
            topic = self._topic(grave)
            letters, next_offset = self._letters(burial, first, bare=bare)
        except FanlogError as error:
            done(error)
            return

        def stored(error: FanlogError | None) -> None:
            if isinstance(error, MessageTooLargeError) and not bare:
                again = burial._replace(fault=FormatError(str(error)))
                self._publish(again, first, bare=True)
            elif error is not None or next_offset >= grave.next:
                done(error)
            elif next_offset < batch.next_offset:
                self._publish(burial, next_offset)
            else:
                self._bury_from(grave, next_offset, done)

        if not letters.values:
            stored(None)
            return
        self._number += 1
        self._waiting[self._number] = stored
        try:
            self._broker.take(letters.encode(topic.number, self._number), 0, self)
        except FanlogError as error:
            self._answer(self._number, error)

    def _letters(self, burial: _Burial, first: int, *, bare: bool) -> tuple[_Letters, int]:
        """Letters of those of a batch's records that belong into the grave, from `first` on, as
        many as fit into a batch; and the offset behind them."""
        grave, batch, fault, _ = burial
        letters = _Letters([], [], [], [])
        end = min(grave.next, batch.next_offset)
        size = 0
        offsets = range(first, end) if bare else batch.offsets
        for i in range(bisect_left(offsets, first), bisect_left(offsets, end)):
            offset = offsets[i]
            if len(letters.values) >= _LETTERS_MAX or size >= _LETTERS_BYTES:
                return letters, offset
            if bare:
                why = f"{grave.reason} ({fault})"
                death = self._death(burial, offset, why, None)._replace(null=True)
                letters.add(None, death, {}, batch.append_time_us)
            else:
                size += self._add(letters, burial, i, offset)
        return letters, end

    def _add(self, letters: _Letters, burial: _Burial, i: int, offset: int) -> int:
        """Adds the letter of one record; about how large it is."""
        grave, batch, _, _ = burial
        columns = batch.columns
        value = columns.value_column[i]
        key = None if columns.key_column is None else columns.key_column[i]
        given = columns.event_times_us
        time_us = batch.append_time_us if given is None else given[i]
        death = self._death(burial, offset, grave.reason, key)._replace(null=value is None)
        headers = columns.headers(i)
        letters.add(value, death, headers, time_us)
        return len(value or b"") + len(key or b"") + sum(map(len, headers.values()))

    def _death(self, burial: _Burial, offset: int, reason: str, key: bytes | None) -> Death:
        grave, batch, _, _ = burial
        return Death(
            topic=grave.partition.topic.name,
            partition=grave.partition.index,
            offset=offset,
            queue=grave.queue,
            reason=reason[:REASON_CHARACTERS_MAX],
            deliveries=grave.deliveries,
            time=dt.datetime.fromtimestamp(self._broker.now_us() / 1e6, tz=dt.UTC),
            key=key,
            log=f"{batch.header.topic}.{batch.header.leader_epoch}",
            priority=batch.header.priority,
            worker=grave.worker,
        )

    def _topic(self, grave: Grave) -> BrokerTopic:
        known = self._broker.catalog.find(grave.topic)
        if known is not None:
            return known
        settings = letter_topic_settings(grave.partition.topic.settings)
        return self._broker.create_topic(grave.topic, settings, exist_ok=True, compare=())

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
