"""Schedules over REST: messages that are published again and again. Delayed messages are in
`delayed.py`."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from fanlog.broker.schedule.recurring import next_run_us
from fanlog.errors import (
    FanlogError,
    ForbiddenError,
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    MessageTooLargeError,
    NotSupportedError,
    ScheduleNotFoundError,
)
from fanlog.format.messages import AddSchedule
from fanlog.format.web import OutgoingMessage
from fanlog.identity import Verb
from fanlog.listeners.web.audited import publish_as
from fanlog.listeners.web.delayed import ROUTES as DELAYED_ROUTES
from fanlog.listeners.web.delayed import key_fields, message_json, moment
from fanlog.listeners.web.openapi_names import NAME_PATTERN, NOT_INTERNAL
from fanlog.listeners.web.ports import MessageToPublish, Published
from fanlog.listeners.web.publish_limits import charge_request
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.model import TOPIC_NAME_BYTES_MAX, ScheduleInfo
from fanlog.security.rules import forbidden

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.format.schedules import Delayed

# Runs of a schedule that are computed ahead.
_UPCOMING = 5

ScheduleSort = Literal["name", "topic", "next", "last"]


class SchedulesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which schedules, in which order."""

    search: Annotated[
        str,
        Meta(max_length=255, description="Part of a name or of a topic, in upper or lower case."),
    ] = ""
    sort: Annotated[
        ScheduleSort,
        Meta(description="`next` and `last` are the times of the next and the last run."),
    ] = "next"
    descending: Annotated[bool, Meta(description="Reverse the order.")] = False
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Schedules to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, description="The largest number of schedules in the answer.")
    ] = 50


class ScheduleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, by a cron expression in a time zone, or every so many seconds. `last_run` is null
    before its first run. The key is there if you may read or publish to the topic."""

    name: str
    topic: str
    cron: str
    timezone: str
    every_seconds: float
    missed: Annotated[
        str,
        Meta(description="Runs that were due while the broker was down: `once` for all, or `skip`"),
    ]
    next_run: dt.datetime
    last_run: dt.datetime | None
    bytes: int
    key: str | None = None
    key_base64: str | None = None


class ScheduleList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of schedules. `total` counts all that were found and that you may see."""

    schedules: list[ScheduleAnswer]
    total: int
    offset: int


class ScheduleDetails(ScheduleAnswer, frozen=True, kw_only=True):
    """A schedule with its next runs, and with its message if you may read or publish to the
    topic."""

    upcoming: list[dt.datetime]
    message: OutgoingMessage | None = None


class _ScheduleDetails(ScheduleDetails, frozen=True, kw_only=True):
    """The same, with a message that is JSON already."""

    message: Raw | None = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]


class ScheduleBody(OutgoingMessage, kw_only=True, forbid_unknown_fields=True):
    """The message of each run, and when it runs: `cron` or `every_seconds`."""

    topic: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=TOPIC_NAME_BYTES_MAX,
            description="The topic of each run. The broker creates it if it is new.",
            extra_json_schema={"pattern": NAME_PATTERN, **NOT_INTERNAL},
        ),
    ]
    cron: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Minute, hour, day of month, month and day of week.",
            examples=["0 8 * * 1-5"],
        ),
    ] = ""
    timezone: Annotated[
        str, Meta(max_length=100, description="The time zone of `cron`, such as Europe/Berlin.")
    ] = "UTC"
    every_seconds: Annotated[
        float, Meta(ge=0, description="The interval, instead of `cron`: at least 1.")
    ] = 0.0
    missed: Annotated[
        Literal["once", "skip"],
        Meta(description="Runs that were due while the broker was down: once for all, or none."),
    ] = "once"


class ScheduleRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where the message of the extra run is."""

    published: Published


async def list_schedules(call: Call[SchedulesQuery, None]) -> ScheduleList:
    broker, permit, query = call.broker, call.permit, call.query
    await _ready(broker)
    wanted = query.search.casefold()
    may: dict[str, bool] = {}
    found: list[ScheduleInfo] = []
    async for one in broker.slices.each(broker.schedule.recurring.all()):
        if wanted and wanted not in one.name.casefold() and wanted not in one.topic.casefold():
            continue
        if one.topic not in may:
            may[one.topic] = permit.may(Verb.DESCRIBE, one.topic)
        if may[one.topic]:
            found.append(one)
    key = _SORTS[query.sort]
    # There are 10,000 at most: some ms, for a thread.
    ordered = await broker.threaded(lambda: sorted(found, key=key, reverse=query.descending))
    limit = min(query.limit, call.listener.options.page_entries_max)
    page = ordered[query.offset : query.offset + limit]
    return ScheduleList(
        schedules=[ScheduleAnswer(**_fields(permit, one)) for one in page],
        total=len(found),
        offset=query.offset,
    )


_SORTS: dict[str, Callable[[ScheduleInfo], Any]] = {
    "name": lambda one: one.name,
    "topic": lambda one: (one.topic, one.name),
    "next": lambda one: (one.next_us, one.name),
    "last": lambda one: (one.last_us, one.name),
}


def _fields(permit: Permit, one: ScheduleInfo) -> dict[str, Any]:
    return {
        "name": one.name,
        "topic": one.topic,
        "cron": one.cron,
        "timezone": one.timezone,
        "every_seconds": one.every_seconds,
        "missed": one.missed,
        "next_run": moment(one.next_us),
        "last_run": moment(one.last_us) if one.last_us else None,
        "bytes": one.value_bytes,
        **key_fields(permit, one.topic, one.key),
    }


def _ready(broker: BrokerCore) -> asyncio.Future[None]:
    """Done when it is known which schedules there are: after a start that takes a moment."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker.schedule.when_ready(lambda: None if ready.done() else ready.set_result(None))
    return ready


def _missing(name: str) -> ScheduleNotFoundError:
    return ScheduleNotFoundError(f"There is no schedule {name!r}. GET /v1/schedules lists them.")


async def _found(call: Call[Any, Any]) -> tuple[ScheduleInfo, Delayed]:
    """The schedule that the path names."""
    name = call.path("schedule")
    recurring = call.broker.schedule.recurring
    await _ready(call.broker)
    known, message = recurring.maybe(name), recurring.maybe_message(name)
    if known is None or message is None:
        # A caller who may not see the name does not learn whether the schedule exists.
        call.permit.ask(Verb.SCHEDULE, name)
        raise _missing(name)
    return known, message


async def describe(call: Call[Nothing, None]) -> ScheduleDetails:
    known, message = await _found(call)
    if not call.permit.may(Verb.DESCRIBE, known.topic):
        call.permit.ask(Verb.SCHEDULE, known.name)
        raise _missing(known.name)
    upcoming = [known.next_us]
    repeat = message.repeat
    while repeat is not None and len(upcoming) < _UPCOMING:
        following = next_run_us(repeat, upcoming[-1], upcoming[-1])
        if following is None:
            break
        upcoming.append(following)
    permit = call.permit
    reads = permit.may(Verb.SUBSCRIBE, known.topic) or permit.may(Verb.PUBLISH, known.topic)
    headers = message.headers or {}
    shown = message_json(message.value, message.key, headers) if reads else None
    return _ScheduleDetails(
        **_fields(permit, known), upcoming=[moment(us) for us in upcoming], message=shown
    )


def _ask_to_change(permit: Permit, known: ScheduleInfo) -> None:
    """A change of a schedule needs the permission to publish to its topic, because a name is easy
    to guess. The error does not name the topic to clients that may not see it."""
    try:
        permit.ask(Verb.PUBLISH, known.topic)
    except ForbiddenError:
        if permit.may(Verb.DESCRIBE, known.topic):
            raise
        raise forbidden(permit.who, Verb.SCHEDULE, known.name) from None


async def put(call: Call[Nothing, ScheduleBody]) -> ScheduleAnswer:
    broker, permit, body, name = call.broker, call.permit, call.body, call.path("schedule")
    permit.ask(Verb.PUBLISH, body.topic)
    key, value, headers = body.record()
    await _ready(broker)
    former = broker.schedule.recurring.maybe(name)
    if former is not None:
        _ask_to_change(permit, former)
    charge_request(call.bus, permit, body.topic, [MessageToPublish(value, key, headers or {})])
    wanted = AddSchedule(
        name=name,
        topic=body.topic,
        value=value,
        key=key,
        headers=headers or {},
        cron=body.cron,
        timezone=body.timezone,
        every_seconds=body.every_seconds,
        missed=body.missed,
    )
    info = await _answered(lambda done: broker.schedule.add(wanted, done))
    return ScheduleAnswer(**_fields(permit, info))


async def _answered(begin: Callable[[Callable[[Any], None]], None]) -> Any:
    """Begins something, and awaits what it says, or raises it."""
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(got: Any) -> None:
        if ended.done():
            return
        if isinstance(got, FanlogError):
            ended.set_exception(got)
        else:
            ended.set_result(got)

    begin(done)
    return await ended


async def remove(call: Call[Nothing, None]) -> None:
    broker, name = call.broker, call.path("schedule")
    known, _ = await _found(call)
    _ask_to_change(call.permit, known)
    if not await _answered(lambda done: broker.schedule.remove(name, done)):
        raise _missing(name)


async def run_now(call: Call[Nothing, None]) -> ScheduleRun:
    known, message = await _found(call)
    _ask_to_change(call.permit, known)
    outgoing = MessageToPublish(message.value, message.key, message.headers or {})
    charge_request(call.bus, call.permit, known.topic, [outgoing])
    stored = await publish_as(call.permit.who, call.bus, known.topic, [outgoing])
    return ScheduleRun(published=stored[0])


_PATH = "/v1/schedules/{schedule}"
_WRONG = (InvalidArgumentError, ForbiddenError, ScheduleNotFoundError, NotSupportedError)

ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/schedules",
        list_schedules,
        "List schedules",
        "schedules",
        description="Schedules whose topics you may describe, with their next and last runs.",
        query=SchedulesQuery,
        answer=ScheduleList,
        errors=(InvalidArgumentError, NotSupportedError),
    ),
    Route(
        "GET",
        _PATH,
        describe,
        "Show a schedule, its next runs and its message",
        "schedules",
        answer=ScheduleDetails,
        errors=_WRONG,
    ),
    Route(
        "PUT",
        _PATH,
        put,
        "Add a schedule, or change it",
        "schedules",
        verb=Verb.SCHEDULE,
        about="schedule",
        description="Each run publishes the message to its topic. You need the permission to "
        "publish there. To change a schedule, you also need the permission to "
        "publish to its old topic.",
        body=ScheduleBody,
        answer=ScheduleAnswer,
        errors=(
            InvalidArgumentError,
            InvalidNameError,
            ForbiddenError,
            LimitError,
            MessageTooLargeError,
            NotSupportedError,
        ),
        action="schedule.add",
        detail=lambda call: f"topic {call.body.topic}",
        example={"topic": "reports", "text": "weekly", "cron": "0 8 * * 1", "timezone": "UTC"},
    ),
    Route(
        "DELETE",
        _PATH,
        remove,
        "Remove a schedule",
        "schedules",
        verb=Verb.SCHEDULE,
        about="schedule",
        description="Messages of past runs stay.",
        status=204,
        errors=_WRONG,
        action="schedule.remove",
    ),
    Route(
        "POST",
        _PATH + "/run",
        run_now,
        "Publish a schedule's message now",
        "schedules",
        verb=Verb.SCHEDULE,
        about="schedule",
        description="One extra run. It does not change the time of the next run.",
        answer=ScheduleRun,
        errors=(*_WRONG, MessageTooLargeError),
        action="schedule.run",
    ),
    *DELAYED_ROUTES,
]
