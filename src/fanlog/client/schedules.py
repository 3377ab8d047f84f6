"""Delayed messages and schedules of a client."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Literal, NamedTuple, TypedDict, Unpack

from fanlog.client.arguments import checked, checked_priority, event_time_us, seconds_of, topic_name
from fanlog.client.core.client_outbox import ClientOutbox
from fanlog.client.core.outbox import RECORD_OVERHEAD_BYTES
from fanlog.client.publishing import Headers, Publisher, TopicOutbox
from fanlog.client.session import ClientSession
from fanlog.client.values import Value, as_bytes, as_published, own_headers
from fanlog.errors import InvalidArgumentError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import (
    AddSchedule,
    Cancelled,
    CancelScheduled,
    ListScheduled,
    ListSchedules,
    RemoveSchedule,
    ScheduledPage,
    SchedulePage,
    ScheduleRemoved,
)
from fanlog.format.schedules import (
    SCHEDULED_TOPIC,
    Delayed,
    checked_id,
    due_us_of,
    encode_delayed,
    record_key,
)
from fanlog.model import PendingMessage, Scheduled, ScheduleInfo

_SECOND_US = 1_000_000
_NONCE_MASK = (1 << 64) - 1

Time = dt.datetime | int | float
ReadyOutbox = Callable[..., Awaitable[TopicOutbox]]


def due_time_us(delay_seconds: float | None, at: Time | None) -> int:
    """When a message is due, as its record stores it: a time, or a delay as a negative number."""
    if (delay_seconds is None) == (at is None):
        raise InvalidArgumentError(
            "Give either delay_seconds or at: a delay, or the time when the message is due."
        )
    if delay_seconds is not None:
        if isinstance(delay_seconds, bool) or not isinstance(
            delay_seconds,
            int | float,  # pyright: ignore[reportUnnecessaryIsInstance]
        ):
            raise InvalidArgumentError(
                f"delay_seconds is a number of seconds, not {type(delay_seconds).__name__}."
            )
        if not 0 <= delay_seconds < 1e12:
            raise InvalidArgumentError(f"A delay is 0 s or more, not {delay_seconds}.")
        return -max(1, round(delay_seconds * _SECOND_US))
    return at_us(at)


def at_us(at: Time | None) -> int:
    """A time as microseconds since 1970. A datetime without a zone is one of local time."""
    if isinstance(at, dt.datetime):
        at = seconds_of(at)
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise InvalidArgumentError(
            f"`at` is a datetime, or seconds since 1970, not {type(at).__name__}."
        )
    if not 0 <= at < 1e11:
        raise InvalidArgumentError(
            f"{at!r} is no time: give a datetime, or seconds since 1970, as time.time() does."
        )
    return round(at * _SECOND_US)


class MessageExtras(TypedDict, total=False):
    """The properties of a message beside its value."""

    key: bytes | str | None
    headers: Headers | None
    event_time: dt.datetime | int | None
    priority: int


class Later(MessageExtras, total=False):
    """The same, with the time when it is due."""

    partition: int | None
    delay_seconds: float | None
    at: Time | None
    schedule_id: str | None


class PublisherRecord(NamedTuple):
    """What a `Publisher` is given."""

    outbox: TopicOutbox
    value: bytes
    key: bytes
    headers: None
    time_us: int


class DelayedRecords:
    """Makes the records that hold delayed messages. `ready_outbox` opens a topic."""

    def __init__(self, publisher: ClientOutbox, ready_outbox: ReadyOutbox) -> None:
        self._publisher = publisher
        self._ready_outbox = ready_outbox
        self._own = secrets.token_hex(8)
        self._numbers = count()
        self._nonce = secrets.randbits(64)

    async def make(
        self,
        topic: str,
        value: Value,
        *,
        delay_seconds: float | None = None,
        at: Time | None = None,
        schedule_id: str | None = None,
        partition: int | None = None,
        **message: Unpack[MessageExtras],
    ) -> tuple[str, PublisherRecord]:
        """A message's id, and the record that holds it."""
        time_us = due_time_us(delay_seconds, at)
        if schedule_id is None:
            id = f"{self._own}-{next(self._numbers)}"
        else:
            id = checked_id(schedule_id)
        # As publishing does: the topic is made, and refuses what it does not take, now.
        target = self._publisher.topics.get(topic)
        if target is None or partition is not None:
            target = await self._ready_outbox(topic_name(topic), partition)
        delayed = self._delayed(target, value, partition, **message)
        outbox = await self._ready_outbox(SCHEDULED_TOPIC)
        self._nonce = (self._nonce + 1) & _NONCE_MASK
        key = record_key(self._nonce, id)
        return id, PublisherRecord(outbox, encode_delayed(delayed), key, None, time_us)

    def _delayed(
        self,
        target: TopicOutbox,
        value: Value,
        partition: int | None = None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        priority: int = 0,
    ) -> Delayed:
        """A message as it is stored until it is due. Raises an error if its topic would refuse
        it."""
        value, key, own = self.stored(value, key, headers)
        size = len(value or b"") + len(key or b"") + sum(map(len, own.values()))
        target.check_size(size + RECORD_OVERHEAD_BYTES)
        if partition is None:
            partition = -1
        else:
            target.partition(partition)
        return Delayed(
            target.name,
            value,
            key,
            own or None,
            partition,
            event_time_us(event_time),
            priority=checked_priority(priority),
        )

    def stored(
        self, value: Value, key: bytes | str | None, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, dict[str, bytes]]:
        """Value, key and headers as they are stored."""
        stored, headers = as_published(value, headers, None, self._publisher.encoding)
        return (
            None if stored is None else as_bytes(stored, "value"),
            None if key is None else as_bytes(key, "key"),
            own_headers(headers) if headers else {},
        )


class DelayedMessages:
    """Implements `publish(delay_seconds=…)` and its siblings."""

    def __init__(
        self, session: ClientSession, publisher: Publisher, ready_outbox: ReadyOutbox
    ) -> None:
        self._session = session
        self._publisher = publisher
        self._records = DelayedRecords(publisher, ready_outbox)

    async def publish(self, topic: str, value: Value, **given: Unpack[Later]) -> Scheduled:
        """See `Client.publish`."""
        id, record = await self._records.make(topic, value, **given)
        receipt = await self._publisher.publish(*record)
        return Scheduled(topic, id, due_us_of(record.time_us, receipt.timestamp_us))

    async def send(self, topic: str, value: Value, **given: Unpack[Later]) -> None:
        """See `Client.send`."""
        _, record = await self._records.make(topic, value, **given)
        self._publisher.put(*record)

    async def cancel(self, ids: list[str]) -> list[bool]:
        wanted = checked(CancelScheduled(tuple(ids)))
        # One that was sent a moment ago can be taken back, too.
        await self._publisher.settle([SCHEDULED_TOPIC])
        answer = await self._session.ask(FrameKind.CANCEL_SCHEDULED, wanted, Cancelled)
        return list(answer.cancelled)

    async def pending(self, topic: str, page_size: int = 500) -> AsyncIterator[PendingMessage]:
        """Page by page, in the order of the due times."""
        after = ""
        await self._publisher.settle([SCHEDULED_TOPIC])
        while True:
            wanted = checked(ListScheduled(topic, after, page_size))
            page = await self._session.ask(FrameKind.LIST_SCHEDULED, wanted, ScheduledPage)
            for message in page.messages:
                yield message
            after = page.next
            if not after:
                return

    # Schedules

    async def add_schedule(
        self,
        name: str,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        cron: str = "",
        timezone: str = "UTC",
        every_seconds: float | None = None,
        missed: Literal["once", "skip"] = "once",
    ) -> ScheduleInfo:
        if isinstance(every_seconds, int | float) and not every_seconds > 0:
            raise InvalidArgumentError(f"every_seconds is more than 0, not {every_seconds}.")
        if every_seconds is not None and timezone != "UTC":
            raise InvalidArgumentError(
                "A timezone belongs to a cron expression. With every_seconds, leave it out."
            )
        stored, own_key, own = self._records.stored(value, key, headers)
        wanted = AddSchedule(
            name=name,
            topic=topic_name(topic),
            value=stored,
            key=own_key,
            headers=own,
            cron=cron,
            timezone=timezone,
            every_seconds=every_seconds or 0.0,
            missed=missed,
        )
        return await self._session.ask(FrameKind.ADD_SCHEDULE, checked(wanted), ScheduleInfo)

    async def schedules(self) -> list[ScheduleInfo]:
        found: list[ScheduleInfo] = []
        after = ""
        while True:
            wanted = ListSchedules(after)
            page = await self._session.ask(FrameKind.LIST_SCHEDULES, wanted, SchedulePage)
            found += page.schedules
            after = page.next
            if not after:
                return found

    async def remove_schedule(self, name: str) -> bool:
        wanted = checked(RemoveSchedule(name))
        answer = await self._session.ask(FrameKind.REMOVE_SCHEDULE, wanted, ScheduleRemoved)
        return answer.removed
