"""Delayed messages: all that wait, when they fall due, and what clients ask about them.

They are records of the broker's own topic `_fanlog.scheduled` (`fanlog.format.schedules`). This is
a reader of that topic, which remembers numbers only, and moves what is due to where it belongs.

It is long because a message falls due, is moved and is cancelled by the same numbers.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING

from fanlog.broker.messages.intake import Intake
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Runtime
from fanlog.broker.schedule.follower import ScheduleFollower
from fanlog.broker.schedule.listing import ListingDone, PendingListing
from fanlog.broker.schedule.moves import SUPERSEDED_MAX, Moves
from fanlog.broker.schedule.pending import MOMENT_US_MAX, Pending, PendingEntry, split_key
from fanlog.broker.schedule.records import DelayedRecord, DelayedRecordsFound, ScheduleRecords
from fanlog.broker.schedule.recurring import Added, Recurring, Removed
from fanlog.broker.transactions.intents import BatchAnswers
from fanlog.config import BrokerOptions
from fanlog.errors import (
    FanlogError,
    FormatError,
    InvalidArgumentError,
    LimitError,
    OverloadedError,
    allow_more,
)
from fanlog.format.batch import Batch, encode_batch, split_batches
from fanlog.format.columns import EVENT_TIMES, time_range
from fanlog.format.messages import AddSchedule, ListScheduled, ScheduledPage
from fanlog.format.schedules import NONCE_BYTES, RUN_PREFIX, SCHEDULED_TOPIC, record_key
from fanlog.log.group_commit import Done
from fanlog.model import KIB, MIB, TopicSettings

if TYPE_CHECKING:
    from fanlog.broker.schedule.ports import SchedulePorts

logger = logging.getLogger("fanlog.broker")

CancelDone = Callable[[list[bool] | FanlogError], None]

_SECOND_US = 1_000_000
_SETTINGS = TopicSettings(
    durability="fsync",
    cleanup="compact",
    retention_seconds=0,
    segment_bytes=16 * MIB,
    tail_bytes=4 * MIB,
    message_bytes_max=64 * MIB,
    tombstone_seconds=3600,
    compact_after_bytes=16 * MIB,
)
_SETTINGS_IN_MEMORY = TopicSettings(
    durability="memory", retention_seconds=0, tail_bytes=64 * KIB, message_bytes_max=64 * MIB
)
# With this little read ahead, the next range is read.
_AHEAD_SECONDS_MIN = 1.0
_AHEAD_SECONDS = 5.0
# Records of a read ahead. One pass over the log brings all of them.
_AHEAD_RECORDS_MAX = 100_000
# How many due messages one look includes, and how many of them are read one by one.
_DUE_LOOKED_AT = 250
_READS_MAX = 32
# Records that are written to be over, together.
_OVER_A_BATCH = 1000
# Records that are taken in at a step: some 0.5 ms.
_STEP_RECORDS = 128
_RUN_PREFIX = RUN_PREFIX.encode()


class Schedule:
    def __init__(
        self, broker: SchedulePorts, intake: Intake, options: BrokerOptions, runtime: Runtime
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._options = options
        self._runtime = runtime
        self.pending = Pending(runtime)
        self.records = ScheduleRecords(
            runtime, options.scheduled_cache_bytes, keep_all=broker.in_memory
        )
        self.recurring = Recurring(broker, self.pending, options, runtime, self.write)
        self.moves = Moves(broker, intake, self.pending, self.records, self.recurring)
        self._partition: Partition | None = None
        self._follower: ScheduleFollower | None = None
        # Keys of records that a transaction is about to move that was committed before this start.
        self._claimed: set[bytes] = set()
        # Changes of schedules, by name, that wait for a run on its way or another change: heaps.
        self._deferred: dict[str, list[tuple[int, Callable[[], None]]]] = {}
        self._turns = count()
        self._writing_over = False
        self._loaded = False
        # Whether the messages from before the start are still being read.
        self._reads_start = False
        self._reading_ahead = False
        # Whether the messages due now were read ahead, as far as there is room.
        self._was_read = False
        self._ahead_until_us = 0

    # What is there

    def load(self) -> None:
        """Starts to read the topic, if it exists. Everything else continues meanwhile."""
        topic = self._broker.catalog.find(SCHEDULED_TOPIC)
        if topic is not None:
            self._claimed = self._find_claimed(topic)
            self._reads_start = True
            self._follow(topic)
            self.when_ready(self._start_read)

    def _start_read(self) -> None:
        self._reads_start = False

    def open(self) -> BrokerTopic:
        """The topic, made if it is not there."""
        topic = self._broker.catalog.find(SCHEDULED_TOPIC)
        if topic is None:
            settings = _SETTINGS_IN_MEMORY if self._broker.in_memory else _SETTINGS
            topic = self._broker.catalog.create(SCHEDULED_TOPIC, settings, exist_ok=True)
            self._follow(topic)
        return topic

    def _follow(self, topic: BrokerTopic) -> None:
        self._partition = topic.partitions[0]
        self._follower = ScheduleFollower(
            self._broker, self._partition, self._runtime, self._broker.slices, self
        )
        self._follower.resume()

    def _find_claimed(self, topic: BrokerTopic) -> set[bytes]:
        claimed: set[bytes] = set()
        for data in self._broker.transactions.unstored_own():
            for at, header in split_batches(memoryview(data)):
                if header.topic == topic.number:
                    batch = Batch(memoryview(data)[at : at + header.length], header)
                    pairs = zip(batch.keys, batch.values, strict=True)
                    claimed.update(key for key, value in pairs if key and value is None)
        return claimed

    @property
    def ready(self) -> bool:
        """Whether everything visible is known."""
        return self._follower is not None and not self._follower.behind

    def when_ready(self, call: Callable[[], None]) -> None:
        if self._follower is None:
            call()
        else:
            self._follower.when_caught_up(call)

    def __len__(self) -> int:
        return len(self.pending)

    def problems(self) -> list[str]:
        return [f"delayed messages are late: {why}" for why in self.moves.held_up.values()]

    # What comes in

    def fault(self, flags: int, body: bytes, count: int) -> FanlogError | None:
        """Why these messages are refused, by the header of their batch. `body` is the begin of its
        columns."""
        options = self._options
        if len(self.pending) + count > options.scheduled_max:
            return LimitError(
                f"{len(self.pending)} delayed messages wait, which is the limit. "
                + allow_more("broker.scheduled_max")
            )
        if self._bytes() > options.scheduled_bytes_max:
            return LimitError(
                f"Delayed messages take {self._bytes()} bytes, which is above the limit. "
                + allow_more("broker.scheduled_bytes_max")
            )
        if not flags & EVENT_TIMES:
            return InvalidArgumentError("A delayed message needs a time to be due.")
        try:
            earliest_us, latest_us = time_range(memoryview(body), flags, count) or (0, 0)
        except FormatError as fault:
            return fault
        most_us = int(options.schedule_seconds_max) * _SECOND_US
        if latest_us > self._runtime.now_us() + most_us or -earliest_us > most_us:
            return InvalidArgumentError(
                f"A message can be delayed by {options.schedule_seconds_max} s at most "
                "(broker.schedule_seconds_max in the broker's settings)."
            )
        return None

    def replacement_fault(
        self, key: bytes, guard: Callable[[str], FanlogError | None]
    ) -> FanlogError | None:
        """Why a message with this key is refused. To replace a waiting message needs the same
        permission as to cancel it: `guard` checks that. A repeat of the waiting message replaces
        nothing."""
        nonce, id = split_key(key)
        former = self.pending.find(id)
        if former is None and not self._reads_start:
            return None
        if former is not None and former.nonce == nonce:
            return None
        refusal = guard(id.decode(errors="replace"))
        if refusal is None or former is not None:
            return refusal
        return OverloadedError(
            "The broker has just started, and still reads its delayed messages. Publish again a "
            "little later."
        )

    def _bytes(self) -> int:
        """Their size: on disk, or without one in memory, where the log keeps few of them."""
        if self._partition is None:
            return 0
        return self.records.kept_bytes if self.records.keep_all else self._partition.log.bytes

    def take(self, batch: Batch, first: int, /) -> Iterator[None]:
        """Takes in the records of a batch from an offset on, some at a step."""
        columns, append_us = batch.columns, batch.append_time_us
        values, times = columns.value_column, columns.event_times_us
        if times is None:
            return
        pending, records, claimed = self.pending, self.records, self._claimed
        ahead_us = int(_AHEAD_SECONDS_MIN * _SECOND_US)
        soon_us = (self._runtime.work_us() + ahead_us, self._runtime.now_us() + ahead_us)
        number = int.from_bytes
        for i, (offset, key, time_us) in enumerate(
            zip(batch.offsets, batch.keys, times.tolist(), strict=True)
        ):
            if i % _STEP_RECORDS == _STEP_RECORDS - 1:
                yield
            if key is None or offset < first or key in claimed:
                continue
            nonce, id = number(key[:NONCE_BYTES]), key[NONCE_BYTES:]
            if values.is_null(i):
                self._over(key, nonce, id)
                continue
            by_wall = time_us >= 0
            if by_wall:
                moment_us = min(time_us, MOMENT_US_MAX)
            else:
                moment_us = pending.delay_moment(time_us, append_us)
            former = pending.add(nonce, id, offset, moment_us, by_wall=by_wall)
            if moment_us <= soon_us[by_wall] or records.keep_all:
                records.keep(DelayedRecord(offset, key, values[i] or b"", time_us, append_us))
            if id.startswith(_RUN_PREFIX):
                self.recurring.taken(id, values[i] or b"", time_us)
            if former is not None:
                self._replaced(id, former, nonce)

    def _over(self, key: bytes, nonce: int, id: bytes) -> None:
        """A record without a value: what has its key is over."""
        self.moves.superseded.pop(key, None)
        entry = self.pending.remove(id, nonce)
        if entry is not None:
            self.records.forget(entry.offset)
            self.recurring.removed(id)

    def _replaced(self, id: bytes, former: PendingEntry, nonce: int) -> None:
        """Another has its id. It is over, unless it is on its way: then it arrives too."""
        if former.offset not in self.moves.moving:
            self.records.forget(former.offset)
            if former.nonce != nonce:
                self.moves.superseded[record_key(former.nonce, "") + id] = None

    # What falls due

    def tick(self) -> None:
        """Moves due messages. The node calls this every 20 ms."""
        follower, partition = self._follower, self._partition
        if follower is None or partition is None or self._broker.draining:
            return
        follower.resume()
        # Before everything is known, a message that seems to wait may have ended later in the log.
        self._loaded = self._loaded or not follower.behind
        if not self._loaded:
            return
        for name, waiting in list(self._deferred.items()):
            turn, call = heapq.heappop(waiting)
            if not waiting:
                del self._deferred[name]
            self._when_still(name, turn, call)
        if self.moves.superseded:
            self._write_superseded()
        if len(self.moves.superseded) > SUPERSEDED_MAX:
            # A move writes down what was replaced before it, which can't be more than this.
            return
        if self._lies_scattered():
            self._read_ahead(partition)
        elif self.moves.begin(partition):
            # More of it in a turn of its own.
            self._was_read = False
            self._runtime.soon(self.tick)
        elif self._runtime.work_us() + int(_AHEAD_SECONDS_MIN * _SECOND_US) > self._ahead_until_us:
            self._read_ahead(partition)

    def _lies_scattered(self) -> bool:
        """Whether many of the due records are not in memory. Then one pass over the log is faster
        than reading them one by one."""
        if self._was_read or self.records.keep_all:
            return False
        due = self.pending.due_now(_DUE_LOOKED_AT)
        return sum(offset not in self.records for offset in due) > _READS_MAX

    def _write_superseded(self) -> None:
        if self._writing_over:
            return
        self._writing_over = True
        keys = list(self.moves.superseded)[:_OVER_A_BATCH]

        def written(fault: FanlogError | None) -> None:
            self._writing_over = False
            if fault is not None:
                logger.warning("delayed messages that were replaced are removed later: %s", fault)
                return
            for key in keys:
                self.moves.superseded.pop(key, None)

        self.write([(key, None, 0) for key in keys], written)

    def write(self, records: Iterable[tuple[bytes, bytes | None, int]], done: Done) -> None:
        """Writes records of the broker itself: key, value and time. Calls `done` when they are
        durable enough, or with the error."""
        topic = self.open()
        keys, values, times = zip(*records, strict=True)
        batch = encode_batch(values, keys=keys, event_times_us=times, topic=topic.number)
        self._broker.turns.schedule()
        self._intake.take(batch, 0, BatchAnswers(1, done), reserved=True)

    def _read_ahead(self, partition: Partition) -> None:
        """Reads ahead the records that will be due within some seconds."""
        if self._reading_ahead or self.records.keep_all:
            return
        self._reading_ahead = True
        self._ahead_until_us = self._runtime.work_us() + int(_AHEAD_SECONDS * _SECOND_US)
        wanted: list[int] = []

        def collect() -> Iterator[None]:
            for some in self.pending.due_within(_AHEAD_SECONDS):
                wanted.extend(offset for offset in some if offset not in self.records)
                if len(wanted) >= _AHEAD_RECORDS_MAX:
                    return
                yield

        def read(got: DelayedRecordsFound | FanlogError) -> None:
            if isinstance(got, FanlogError):
                logger.warning("delayed messages are not read ahead: %s", got)
                ended()
            else:
                self._broker.slices.in_slices(self._keep(got.records), ended)

        def collected() -> None:
            room = self._options.scheduled_cache_bytes - self.records.kept_bytes
            if wanted and room > 0 and not self._broker.draining:
                self.records.read(partition, wanted, room, read)
            else:
                ended()

        def ended() -> None:
            self._reading_ahead = False
            self._was_read = True

        self._broker.slices.in_slices(collect(), collected)

    def _keep(self, records: list[DelayedRecord]) -> Iterator[None]:
        """Keeps records that were read ahead, unless they are over by now."""
        for i, record in enumerate(records):
            if i % _STEP_RECORDS == _STEP_RECORDS - 1:
                yield
            _, id = split_key(record.key)
            entry = self.pending.find(id)
            if entry is not None and entry.offset == record.offset:
                self.records.keep(record)

    # What clients ask

    def cancel(self, ids: list[str], done: CancelDone) -> None:
        """Takes messages back; of each, whether it was still there."""
        runs = [id for id in ids if id.startswith(RUN_PREFIX)]
        if runs:
            name = runs[0].removeprefix(RUN_PREFIX)
            done(
                InvalidArgumentError(
                    f"{runs[0]!r} is the next run of a schedule: remove the schedule {name!r} "
                    "instead, with remove_schedule (fanlog schedule remove)."
                )
            )
            return
        self.when_ready(lambda: self._cancel(ids, done))

    def add(self, wanted: AddSchedule, done: Added) -> None:
        """Adds a schedule, or changes one."""

        def ready() -> None:
            try:
                self.recurring.add(wanted, done)
            except FanlogError as fault:
                done(fault)

        self._when_still(wanted.name, next(self._turns), ready)

    def remove(self, name: str, done: Removed) -> None:
        """Removes a schedule."""
        self._when_still(name, next(self._turns), lambda: self.recurring.remove(name, done))

    def _when_still(self, name: str, turn: int, call: Callable[[], None]) -> None:
        """Calls when all is known, no run of this schedule is on its way, and all changes of it
        that have come before are made."""

        def ready() -> None:
            waiting = self._deferred.get(name)
            if self._is_moving(name) or (waiting and waiting[0][0] < turn):
                heapq.heappush(self._deferred.setdefault(name, []), (turn, call))
            else:
                call()

        self.when_ready(ready)

    def _is_moving(self, name: str) -> bool:
        id = (RUN_PREFIX + name).encode(errors="replace")
        entry = self.pending.find(id)
        moving = entry is not None and entry.offset in self.moves.moving
        return moving or id in self.recurring.changing

    def page(self, wanted: ListScheduled, listed: ListingDone) -> None:
        """Calls `listed` with a page of waiting messages."""

        def ready() -> None:
            if self._partition is None:
                listed(ScheduledPage(()))
                return
            listing = PendingListing(self.pending, self.records, self._runtime, self._broker.epoch)
            try:
                listing.page(self._partition, wanted, listed)
            except FanlogError as fault:
                listed(fault)

        self.when_ready(ready)

    def _cancel(self, ids: list[str], done: CancelDone) -> None:
        found: dict[bytes, PendingEntry] = {}
        answers: list[bool] = []
        for id in (id.encode(errors="replace") for id in ids):
            entry = self.pending.find(id)
            there = entry is not None and entry.offset not in self.moves.moving
            answers.append(there)
            if entry is not None and there:
                self.pending.remove(id, entry.nonce)
                found[id] = entry
        if not found:
            done(answers)
            return

        def written(fault: FanlogError | None) -> None:
            if fault is None:
                for entry in found.values():
                    self.records.forget(entry.offset)
                done(answers)
                return
            for id, entry in found.items():
                if self.pending.find(id) is None:
                    self.pending.put(id, entry)
            done(fault)

        self.write(
            [(record_key(entry.nonce, "") + id, None, 0) for id, entry in found.items()], written
        )
