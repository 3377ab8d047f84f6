"""Delayed messages over REST, and their JSON form, which schedules use too."""

from __future__ import annotations

import asyncio
import datetime as dt
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Raw

from fanlog.errors import (
    FanlogError,
    ForbiddenError,
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    MessageTooLargeError,
    NotSupportedError,
    TopicNotFoundError,
)
from fanlog.format.messages import ListScheduled, ScheduledPage
from fanlog.format.schedules import SCHEDULE_ID_BYTES_MAX
from fanlog.format.web import OutgoingMessage, says_json, value_json
from fanlog.identity import Verb
from fanlog.listeners.web.openapi_names import NAME_PATTERN, NOT_INTERNAL
from fanlog.listeners.web.ports import MessageToPublish
from fanlog.listeners.web.publish_limits import charge_request
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.model import TOPIC_NAME_BYTES_MAX, PendingMessage

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore

# Messages that are read for one answer, some at a time: those for other topics are left out.
_LOOKED_AT_MAX = 5000
_A_TIME = 500
_CANCELLED_MAX = 1000
_SECOND_US = 1_000_000
# The last moment that a date can have.
_MOMENT_US_MAX = 253_402_300_799 * _SECOND_US

_ScheduleId = Annotated[str, Meta(min_length=1, max_length=SCHEDULE_ID_BYTES_MAX)]


class DelayedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which delayed messages."""

    topic: Annotated[
        str, Meta(max_length=TOPIC_NAME_BYTES_MAX, description="Only messages for this topic.")
    ] = ""
    after: Annotated[
        str,
        Meta(
            max_length=200,
            description="The `next` of the previous page.",
            extra_json_schema={"pattern": "^([0-9.-]*)$"},
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, description="The largest number of messages in the answer.")
    ] = 50


class DelayedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits. `schedule` names the schedule that it is the next run of. The key is
    there if you may read or publish to the topic."""

    id: str
    topic: str
    due: dt.datetime
    bytes: int
    schedule: str = ""
    key: str | None = None
    key_base64: str | None = None


class DelayedList(msgspec.Struct, frozen=True, kw_only=True):
    """Delayed messages, in the order in which they are due. With `next` there may be more."""

    messages: list[DelayedAnswer]
    total: Annotated[
        int | None,
        Meta(description="The number of waiting messages for all topics. Only admins see it."),
    ]
    next: str = ""


class DelayedBody(OutgoingMessage, kw_only=True, forbid_unknown_fields=True):
    """A message to publish later: in `delay_seconds`, or at a time, `at`."""

    topic: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=TOPIC_NAME_BYTES_MAX,
            extra_json_schema={"pattern": NAME_PATTERN, **NOT_INTERNAL},
        ),
    ]
    delay_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    at: (
        Annotated[dt.datetime, Meta(tz=True, description="A time with its zone, RFC 3339.")] | None
    ) = None
    id: (
        Annotated[
            _ScheduleId,
            Meta(
                description="The id for cancelling or replacing the message: it replaces a "
                "waiting message with the same id. Without one, the broker chooses "
                "an id."
            ),
        ]
        | None
    ) = None


class DelayedMade(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    topic: str
    due: dt.datetime


class DelayedIds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages to cancel."""

    ids: Annotated[list[_ScheduleId], Meta(min_length=1, max_length=_CANCELLED_MAX)]


class CancelledAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """For each id: whether the message was cancelled. A published message stays."""

    cancelled: list[bool]


def moment(time_us: int) -> dt.datetime:
    """A time as it is shown."""
    seconds = max(0, min(time_us, _MOMENT_US_MAX)) / _SECOND_US
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC)


def key_fields(permit: Permit, topic: str, key: bytes | None) -> dict[str, str]:
    """A key is part of a message, so users who may only describe the topic do not see it."""
    if key is None or not any(permit.may(v, topic) for v in (Verb.SUBSCRIBE, Verb.PUBLISH)):
        return {}
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": b64encode(key).decode()}


def message_json(value: bytes | None, key: bytes | None, headers: Mapping[str, bytes]) -> Raw:
    """A message as one that can be published again."""
    fields: dict[str, Any] = {}
    if key is not None:
        try:
            fields["key"] = key.decode()
        except UnicodeDecodeError:
            fields["key_base64"] = b64encode(key).decode()
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, content in headers.items():
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError:
            others[name] = b64encode(content).decode()
    fields |= ({"headers": texts} if texts else {}) | ({"headers_base64": others} if others else {})
    said = says_json(tuple((name.encode(), content) for name, content in headers.items()))
    front = msgspec.json.encode(fields).decode()[:-1]
    shown = value_json(value, said=said) if value is not None else '"deleted":true'
    return Raw(f"{front}{',' if fields else ''}{shown}}}".encode())


async def list_delayed(call: Call[DelayedQuery, None]) -> DelayedList:
    broker, permit, query = call.broker, call.permit, call.query
    limit = min(query.limit, call.listener.options.page_entries_max, _A_TIME)
    if query.topic:
        permit.ask(Verb.DESCRIBE, query.topic)
    found: list[PendingMessage] = []
    after, looked_at, total = query.after, 0, 0
    may: dict[str, bool] = {}
    while len(found) < limit and looked_at < _LOOKED_AT_MAX:
        # Never more than fit: the next page begins behind all that were read.
        count = limit - len(found)
        page = await _page(broker, ListScheduled(query.topic, after, count))
        after, total = page.next, page.total
        looked_at += max(1, count)
        for one in page.messages:
            if one.topic not in may:
                may[one.topic] = permit.may(Verb.DESCRIBE, one.topic)
            if may[one.topic]:
                found.append(one)
        if not after:
            break
    return DelayedList(
        messages=[_answer(permit, one) for one in found],
        total=total if permit.may(Verb.ADMIN, "") else None,
        next=after,
    )


def _answer(permit: Permit, one: PendingMessage) -> DelayedAnswer:
    return DelayedAnswer(
        id=one.id,
        topic=one.topic,
        due=moment(one.due_us),
        bytes=one.value_bytes,
        schedule=one.schedule,
        **key_fields(permit, one.topic, one.key),
    )


async def _page(broker: BrokerCore, wanted: ListScheduled) -> ScheduledPage:
    ended: asyncio.Future[ScheduledPage] = asyncio.get_running_loop().create_future()

    def listed(got: ScheduledPage | FanlogError) -> None:
        if ended.done():
            return
        if isinstance(got, FanlogError):
            ended.set_exception(got)
        else:
            ended.set_result(got)

    broker.schedule.page(wanted, listed)
    return await ended


async def delay(call: Call[Nothing, DelayedBody]) -> DelayedMade:
    permit, body = call.permit, call.body
    permit.ask(Verb.PUBLISH, body.topic)
    if body.id is not None:
        permit.ask(Verb.SCHEDULE, body.id)
    if (body.delay_seconds is None) == (body.at is None):
        raise InvalidArgumentError("Give either `delay_seconds` or `at`: when the message is due.")
    key, value, headers = body.record()
    charge_request(call.bus, permit, body.topic, [MessageToPublish(value, key, headers or {})])
    client = call.client
    if body.at is not None:
        made = await client.publish(
            body.topic, value, at=body.at, schedule_id=body.id, key=key, headers=headers
        )
    else:
        made = await client.publish(
            body.topic,
            value,
            delay_seconds=body.delay_seconds or 0.0,
            schedule_id=body.id,
            key=key,
            headers=headers,
        )
    return DelayedMade(id=made.id, topic=made.topic, due=moment(made.due_us))


async def cancel(call: Call[Nothing, DelayedIds]) -> CancelledAnswer:
    ids = call.body.ids
    for id in ids:
        call.permit.ask(Verb.SCHEDULE, id)
    ended: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()

    def cancelled(got: list[bool] | FanlogError) -> None:
        if ended.done():
            return
        if isinstance(got, FanlogError):
            ended.set_exception(got)
        else:
            ended.set_result(got)

    call.broker.schedule.cancel(ids, cancelled)
    return CancelledAnswer(cancelled=await ended)


def _cancelled(call: Call[Nothing, DelayedIds]) -> str:
    """What the audit log has: the first few ids."""
    ids = call.body.ids
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/delayed",
        list_delayed,
        "List delayed messages that wait",
        "schedules",
        description="Those that are due next come first. A page may have fewer messages than "
        "`limit`, or none, although there is a `next`: the broker leaves out "
        "messages for other topics, and for topics that you may not describe.",
        query=DelayedQuery,
        answer=DelayedList,
        errors=(InvalidArgumentError, ForbiddenError, NotSupportedError),
    ),
    Route(
        "POST",
        "/v1/delayed",
        delay,
        "Publish a message later",
        "schedules",
        description="You need the permission to publish to the topic. With an `id` of your own,"
        " you also need the permission `schedule` for that id.",
        body=DelayedBody,
        answer=DelayedMade,
        errors=(
            InvalidArgumentError,
            InvalidNameError,
            ForbiddenError,
            LimitError,
            TopicNotFoundError,
            MessageTooLargeError,
            NotSupportedError,
        ),
        action="schedule.delay",
        detail=lambda call: f"topic {call.body.topic}",
        example={"topic": "mails", "json": {"to": "ann"}, "delay_seconds": 3600},
    ),
    Route(
        "POST",
        "/v1/delayed/cancel",
        cancel,
        "Cancel delayed messages",
        "schedules",
        body=DelayedIds,
        answer=CancelledAnswer,
        errors=(InvalidArgumentError, ForbiddenError, NotSupportedError),
        action="schedule.cancel",
        detail=_cancelled,
        example={"ids": ["reminder-42"]},
    ),
]
