"""Schedules: messages that come again and again, by a cron expression or every so often.

A schedule is a delayed message that leaves another one behind. The transaction that moves a run to
its topic also writes the next run, so that each happens once, and none is forgotten.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.names import check_public_name
from fanlog.broker.ports import Runtime
from fanlog.broker.schedule.moves import Next
from fanlog.broker.schedule.pending import Pending, PendingEntry
from fanlog.broker.schedule.records import DelayedRecord
from fanlog.config import BrokerOptions
from fanlog.errors import (
    ConfigError,
    FanlogError,
    FormatError,
    InvalidArgumentError,
    LimitError,
    MessageTooLargeError,
    allow_more,
)
from fanlog.format.messages import AddSchedule, SchedulePage
from fanlog.format.schedules import (
    NONCE_BYTES,
    RUN_PREFIX,
    SCHEDULE_ID_BYTES_MAX,
    Delayed,
    Repeat,
    decode_delayed,
    encode_delayed,
    record_key,
)
from fanlog.model import ScheduleInfo

Added = Callable[[ScheduleInfo | FanlogError], None]
Removed = Callable[[bool | FanlogError], None]
Write = Callable[
    [Iterable[tuple[bytes, bytes | None, int]], Callable[[FanlogError | None], None]], None
]

_SECOND_US = 1_000_000
_NAME_BYTES_MAX = SCHEDULE_ID_BYTES_MAX - len(RUN_PREFIX)
_PREFIX = RUN_PREFIX.encode()
# Ten years.
_EVERY_SECONDS_MAX = 10 * 366 * 24 * 3600
# A run that is later than this was missed: the broker was down, or the clock was set.
_MISSED_US = 60 * _SECOND_US
# Enough to list all minutes and days. It is parsed on the loop, and written with each run.
_CRON_CHARACTERS_MAX = 1024
# Schedules in one answer.
_PAGE = 500


class Topics(Protocol):
    """The broker, as far as schedules need it."""

    def open_topic(self, name: str, *, create: bool) -> BrokerTopic: ...


def next_run_us(repeat: Repeat, due_us: int, now_us: int) -> int | None:
    """When a schedule runs next after a run that was due; None if it never does."""
    if repeat.every_us:
        passed = max(0, now_us - due_us) // repeat.every_us
        return due_us + (passed + 1) * repeat.every_us
    after = dt.datetime.fromtimestamp(max(due_us, now_us) / 1e6, tz=ZoneInfo(repeat.timezone))
    found = next(CronSim(repeat.cron, after), None)
    return None if found is None else round(found.timestamp() * _SECOND_US)


def checked_repeat(wanted: AddSchedule) -> Repeat:
    """How a schedule repeats. Raises an error that names the invalid field."""
    if bool(wanted.cron) == (wanted.every_seconds > 0):
        raise InvalidArgumentError(
            "A schedule needs either a cron expression or an interval: give cron or every_seconds."
        )
    if wanted.missed not in ("once", "skip"):
        raise InvalidArgumentError(
            f"missed is 'once' or 'skip', not {wanted.missed!r}: what happens to runs that were "
            "due while the broker was down."
        )
    if wanted.every_seconds > 0:
        if not 1 <= wanted.every_seconds <= _EVERY_SECONDS_MAX:
            raise InvalidArgumentError(
                f"A schedule runs once a second at most, and once in {_EVERY_SECONDS_MAX} s at "
                f"least, not every {wanted.every_seconds} s."
            )
        every_us = round(wanted.every_seconds * _SECOND_US)
        return Repeat(every_us=every_us, missed=wanted.missed)
    try:
        ZoneInfo(wanted.timezone)
    except (KeyError, OSError, ValueError):
        raise InvalidArgumentError(
            f"There is no time zone {wanted.timezone!r} on the broker's machine. Use a name such "
            "as Europe/Berlin, or UTC. On a system without time zones: pip install tzdata."
        ) from None
    if len(wanted.cron) > _CRON_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"A cron expression has {_CRON_CHARACTERS_MAX} characters at most, not "
            f"{len(wanted.cron)}: use ranges such as 1-5, or several schedules."
        )
    try:
        CronSim(wanted.cron, dt.datetime.now(dt.UTC))
    except CronSimError as fault:
        raise InvalidArgumentError(
            f"{wanted.cron!r} is not a cron expression: {fault}. It has five fields, minute, hour, "
            "day of month, month and day of week, as in '0 8 * * 1-5'."
        ) from fault
    return Repeat(cron=wanted.cron, timezone=wanted.timezone, missed=wanted.missed)


class Recurring:
    """All schedules, by name. `write` appends to the topic of delayed messages."""

    def __init__(
        self,
        topics: Topics,
        pending: Pending,
        options: BrokerOptions,
        runtime: Runtime,
        write: Write,
    ) -> None:
        self._topics = topics
        self._pending = pending
        self._options = options
        self._runtime = runtime
        self._write = write
        self._started_us = runtime.now_us()
        self._known: dict[str, ScheduleInfo] = {}
        self._messages: dict[str, Delayed] = {}
        # Ids of runs that are being replaced or removed.
        self.changing: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def maybe(self, name: str) -> ScheduleInfo | None:
        return self._known.get(name)

    def maybe_message(self, name: str) -> Delayed | None:
        """The message of a schedule's next run."""
        return self._messages.get(name)

    def all(self) -> list[ScheduleInfo]:
        """All schedules, in no order."""
        return list(self._known.values())

    # What the topic says

    def taken(self, id: bytes, value: bytes, time_us: int) -> None:
        """The next run of a schedule is there."""
        try:
            delayed = decode_delayed(value)
        except FormatError:
            return
        name = id[len(_PREFIX) :].decode(errors="replace")
        if delayed.repeat is not None:
            self._known[name] = _info(name, delayed, delayed.repeat, time_us)
            self._messages[name] = delayed

    def removed(self, id: bytes) -> None:
        """The run that waited is over; if there is another, it comes next."""
        if id.startswith(_PREFIX):
            name = id[len(_PREFIX) :].decode(errors="replace")
            self._known.pop(name, None)
            self._messages.pop(name, None)

    # When a run is due

    def run(self, record: DelayedRecord, delayed: Delayed, /) -> tuple[bool, Next | None]:
        """Whether a run that is due happens, and the record of the next one."""
        repeat, due_us, now_us = delayed.repeat or Repeat(), record.time_us, self._runtime.now_us()
        missed = due_us < self._started_us or now_us - due_us > _MISSED_US
        happens = not missed or repeat.missed == "once"
        try:
            following_us = next_run_us(repeat, due_us, now_us)
        except (CronSimError, KeyError, OSError, ValueError) as fault:
            # The machine has other time zones than the one that it was added on.
            raise ConfigError(f"A schedule can't resume: {fault}.") from fault
        if following_us is None:
            return happens, None
        if happens:
            repeat = msgspec.structs.replace(repeat, last_us=due_us)
        value = encode_delayed(msgspec.structs.replace(delayed, repeat=repeat))
        key = record_key(secrets.randbits(64), "") + record.key[NONCE_BYTES:]
        return happens, (key, value, following_us)

    # What clients ask

    def add(self, wanted: AddSchedule, done: Added) -> None:
        """Adds a schedule, or changes the one of its name. One that is the same stays as it is.
        Raises what is wrong with it."""
        delayed = self._checked(wanted)
        known, repeat = self._messages.get(wanted.name), delayed.repeat or Repeat()
        if known is not None and known.repeat is not None:
            repeat = msgspec.structs.replace(repeat, last_us=known.repeat.last_us)
            delayed = msgspec.structs.replace(delayed, repeat=repeat)
            if known == delayed:
                done(self._known[wanted.name])
                return
        elif len(self._known) >= self._options.schedules_max:
            raise LimitError(
                f"This broker has {len(self._known)} schedules, which is the limit. Remove some. "
                + allow_more("broker.schedules_max")
            )
        now_us = self._runtime.now_us()
        first_us = next_run_us(repeat, now_us, now_us)
        if first_us is None:
            raise InvalidArgumentError(f"{wanted.cron!r} never comes.")
        id = _PREFIX + wanted.name.encode()
        key = record_key(secrets.randbits(64), "") + id
        self._replace(
            id,
            [(key, encode_delayed(delayed), first_us)],
            lambda fault: done(fault or _info(wanted.name, delayed, repeat, first_us)),
        )

    def _checked(self, wanted: AddSchedule) -> Delayed:
        size = len(wanted.name.encode(errors="surrogateescape"))
        if not 1 <= size <= _NAME_BYTES_MAX or not wanted.name.isprintable():
            raise InvalidArgumentError(
                f"A schedule's name has 1 to {_NAME_BYTES_MAX} bytes, and no control characters."
            )
        repeat = checked_repeat(wanted)
        settings = self._topics.open_topic(check_public_name(wanted.topic), create=True).settings
        headers = wanted.headers or None
        size = len(wanted.value or b"") + len(wanted.key or b"")
        if size + sum(map(len, (headers or {}).values())) > settings.message_bytes_max:
            raise MessageTooLargeError(
                f"The message has {size} bytes; topic {wanted.topic!r} takes "
                f"{settings.message_bytes_max} (message_bytes_max)."
            )
        if wanted.key is None and settings.cleanup == "compact":
            raise InvalidArgumentError(
                f"Topic {wanted.topic!r} is compacted: give the schedule's messages a key."
            )
        return Delayed(wanted.topic, wanted.value, wanted.key, headers, repeat=repeat)

    def remove(self, name: str, done: Removed) -> None:
        """Removes a schedule; whether there was one."""
        if name in self._known:
            id = _PREFIX + name.encode()
            self._replace(id, [], lambda fault: done(True if fault is None else fault))
        else:
            done(False)

    def _replace(
        self,
        id: bytes,
        records: list[tuple[bytes, bytes | None, int]],
        done: Callable[[FanlogError | None], None],
    ) -> None:
        """Writes records that replace the waiting run, together with its end."""
        former = self._pending.find(id)
        if former is not None:
            # From now on it is not due: a run that went out meanwhile would come back.
            self._pending.remove(id, former.nonce)
            records = [(record_key(former.nonce, "") + id, None, 0), *records]

        def written(fault: FanlogError | None) -> None:
            self.changing.discard(id)
            if fault is None and len(records) == (former is not None):
                self.removed(id)
            elif fault is not None and former is not None:
                self._put_back(id, former)
            done(fault)

        self.changing.add(id)
        try:
            self._write(records, written)
        except FanlogError as fault:
            # There is no room for the topic itself.
            written(fault)

    def _put_back(self, id: bytes, former: PendingEntry) -> None:
        if self._pending.find(id) is None:
            self._pending.put(id, former)

    def page(self, after: str) -> SchedulePage:
        names = sorted(name for name in self._known if name > after)
        shown = tuple(self._known[name] for name in names[:_PAGE])
        return SchedulePage(shown, names[_PAGE - 1] if len(names) > _PAGE else "")


def _info(name: str, delayed: Delayed, repeat: Repeat, next_us: int) -> ScheduleInfo:
    return ScheduleInfo(
        name=name,
        topic=delayed.topic,
        cron=repeat.cron,
        timezone=repeat.timezone if repeat.cron else "",
        every_seconds=repeat.every_us / _SECOND_US,
        missed=repeat.missed,
        next_us=next_us,
        last_us=repeat.last_us,
        key=delayed.key,
        value_bytes=len(delayed.value or b""),
    )
