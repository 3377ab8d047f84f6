"""One queue, for people: its settings and counters, leased jobs, jobs that wait for a retry, and
scheduled jobs. Lists that grow with the queue come in pages."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.errors import (
    FanlogError,
    GroupNotFoundError,
    InvalidArgumentError,
    NotSupportedError,
)
from fanlog.format.dead_letters import TOPIC_PREFIX as DEAD_LETTER_PREFIX
from fanlog.format.messages import ListScheduled, ScheduledPage
from fanlog.identity import Verb
from fanlog.listeners.web.group_details import connection_of, topics_of
from fanlog.listeners.web.group_lists import PageLimit, PageOffset, age_of
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.shared_answers import SharedAnswers
from fanlog.listeners.web.sorted_pages import page_of
from fanlog.model import GroupState, PendingMessage, QueueSettings

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.insight.group_view import GroupView, LeaseRow, MemberRow
    from fanlog.broker.queues.queue import Queue

# Scheduled messages that are looked through for those of a queue.
_LOOKED_AT_MAX = 5000
_LOOKED_AT_ONCE = 500
_SCHEDULED_SHOWN = 50


class QueueTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic whose messages are the queue's jobs."""

    name: str
    partitions: int
    lag: int
    dead_letter: Annotated[str, Meta(description="The dead-letter topic of its jobs.")]


class QueueDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. `lag` counts the jobs that are not done: those that workers have are `in_flight`,
    the others `waiting`. The counters count since the broker's start."""

    name: str
    state: GroupState
    settings: QueueSettings
    lag: int
    waiting: int
    in_flight: int
    retrying: Annotated[int, Meta(description="Jobs that failed and wait for their next delivery.")]
    lag_seconds: Annotated[
        float | None, Meta(description="Age of the oldest job that is not done; null: not known.")
    ]
    lag_seconds_known: Annotated[
        bool, Meta(description="False: the broker still looks for an older one on disk.")
    ]
    worker_count: int
    partition_count: int
    topic_count: int
    topics: Annotated[
        list[QueueTopic], Meta(description="The first 100, ordered by their number of jobs.")
    ]
    delivered: int
    redelivered: int
    dead_lettered: int


class WorkersQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers, and how much of what they have."""

    sort: Annotated[
        Literal["held", "in_flight", "id"],
        Meta(
            description="The sort order. held: workers that have had a job for the longest time"
            " come first."
        ),
    ] = "held"
    leases: Annotated[
        int,
        Meta(
            ge=0,
            le=50,
            description="The largest number of leases of each worker, the oldest first.",
        ),
    ] = 5
    offset: PageOffset = 0
    limit: Annotated[
        int, Meta(ge=1, le=200, description="The largest number of workers on the page.")
    ] = 20


class LeaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring jobs that a worker has: `jobs` of them, from `offset` on."""

    topic: str
    partition: int
    offset: int
    jobs: int
    deliveries: Annotated[int, Meta(description="The number of deliveries, including this one.")]
    held_seconds: Annotated[float, Meta(description="How long the worker has had them.")]
    seconds_left: Annotated[float, Meta(description="The time when the lease expires.")]


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A worker. `present` is false while its connection is lost and it still has jobs. `address`
    and `connection` are for operators only."""

    id: str
    client: Annotated[str, Meta(description="What the client calls itself.")]
    target: Annotated[str, Meta(description="The topic or pattern that it works on.")]
    present: bool
    prefetch: Annotated[int, Meta(description="The most jobs that it takes at a time.")]
    in_flight: Annotated[int, Meta(description="Jobs that it has now.")]
    held_seconds: Annotated[float | None, Meta(description="How long it has had the oldest job.")]
    leases: list[LeaseLine]
    address: str = ""
    connection: Annotated[str, Meta(description="The id of its connection in /v1/connections.")] = (
        ""
    )


class WorkerList(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[WorkerLine]
    total: int


class RetriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    offset: PageOffset = 0
    limit: PageLimit = 50


class RetryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring jobs that have failed: `jobs` of them, from `offset` on."""

    topic: str
    partition: int
    offset: int
    jobs: int
    attempts: Annotated[int, Meta(description="How often they were delivered and failed.")]
    due_seconds: Annotated[float, Meta(description="The earliest time of the next delivery.")]
    reason: Annotated[
        str,
        Meta(description="Why the last attempt failed. Only users who may read the topic see it."),
    ]


class RetryList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of those that are due first. `total` counts the entries that can be paged through,
    at most 1,000, and `jobs` all jobs."""

    retries: list[RetryLine]
    total: int
    jobs: int


class ScheduledLine(msgspec.Struct, frozen=True, kw_only=True):
    """A message that becomes a job when its time comes."""

    topic: str
    id: str
    due: dt.datetime
    bytes: int
    schedule: Annotated[str, Meta(description="The schedule that publishes it.")] = ""


class ScheduledList(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are scheduled for the queue's topics, the first due in front."""

    scheduled: list[ScheduledLine]
    count: int
    complete: Annotated[
        bool,
        Meta(description="False: there are so many that the broker counted only the first ones."),
    ]


async def _view(call: Call[Any, Any]) -> tuple[Queue, GroupView]:
    """The queue. Raises an error if the caller may not see it."""
    name = call.path("queue")
    call.permit.ask_state(Verb.QUEUE, name)
    queue = call.broker.queues.find(name)
    if queue is None:
        raise GroupNotFoundError(f"There is no queue {name!r}. List them with: fanlog group list")
    return queue, await call.listener.group_tables.view(name)


async def describe(call: Call[Nothing, None]) -> QueueDetails:
    queue, view = await _view(call)
    row, settings = view.row, queue.settings
    topics = [
        QueueTopic(
            name=topic.name,
            partitions=topic.partitions,
            lag=topic.lag,
            dead_letter=settings.dead_letter or DEAD_LETTER_PREFIX + topic.name,
        )
        for topic in await topics_of(call, view)
    ]
    return QueueDetails(
        name=row.name,
        state=row.state,
        settings=settings,
        lag=row.lag,
        waiting=max(0, row.lag - row.in_flight),
        in_flight=row.in_flight,
        retrying=row.retrying,
        lag_seconds=age_of(row, call.broker.now_us()),
        lag_seconds_known=not row.unknown,
        worker_count=row.members,
        partition_count=row.partitions,
        topic_count=row.topics,
        topics=topics,
        delivered=row.delivered,
        redelivered=row.redelivered,
        dead_lettered=row.dead_lettered,
    )


async def workers(call: Call[WorkersQuery, None]) -> WorkerList:
    query, (_, view) = call.query, await _view(call)
    admin, now_us = call.permit.may(Verb.ADMIN, ""), call.broker.queues.monotonic_us()

    def rank(worker: MemberRow) -> tuple[float, float, str]:
        since_us = worker.leases[0].since_us if worker.leases else float("inf")
        held, in_flight = (since_us, -worker.in_flight) if query.sort != "id" else (0, 0)
        first = held if query.sort == "held" else in_flight
        return first, in_flight, worker.id

    page = await page_of(
        call.broker.slices,
        list(view.members.values()),
        rank,
        offset=query.offset,
        limit=query.limit,
    )
    return WorkerList(
        workers=[_worker(worker, query.leases, now_us, admin=admin) for worker in page],
        total=len(view.members),
    )


def _worker(worker: MemberRow, leases: int, now_us: int, *, admin: bool) -> WorkerLine:
    held = [max(0, now_us - lease.since_us) / 1e6 for lease in worker.leases[:1]]
    return WorkerLine(
        id=worker.id,
        client=worker.client,
        target=worker.target,
        present=worker.present,
        prefetch=worker.prefetch,
        in_flight=worker.in_flight,
        held_seconds=held[0] if held else None,
        leases=[_lease(lease, now_us) for lease in worker.leases[:leases]],
        address=worker.address if admin else "",
        connection=connection_of(worker) if admin else "",
    )


def _lease(lease: LeaseRow, now_us: int) -> LeaseLine:
    return LeaseLine(
        topic=lease.topic,
        partition=lease.partition,
        offset=lease.first,
        jobs=lease.next - lease.first,
        deliveries=lease.deliveries,
        held_seconds=max(0, now_us - lease.since_us) / 1e6,
        seconds_left=max(0, lease.due_us - now_us) / 1e6,
    )


async def retries(call: Call[RetriesQuery, None]) -> RetryList:
    query, (_, view) = call.query, await _view(call)
    now_us, permit = call.broker.queues.monotonic_us(), call.permit
    limit = min(query.limit, call.listener.options.page_entries_max)
    # A reason may tell what is in a message.
    page = view.retries[query.offset : query.offset + limit]
    readable = {topic: permit.may(Verb.SUBSCRIBE, topic) for topic in {row.topic for row in page}}
    return RetryList(
        retries=[
            RetryLine(
                topic=row.topic,
                partition=row.partition,
                offset=row.first,
                jobs=row.next - row.first,
                attempts=row.failures,
                due_seconds=max(0, row.due_us - now_us) / 1e6,
                reason=row.reason if readable[row.topic] else "",
            )
            for row in page
        ],
        total=len(view.retries),
        jobs=view.row.retrying,
    )


_Scheduled = tuple[list[PendingMessage], bool]
_SCHEDULED: SharedAnswers[_Scheduled] = SharedAnswers()


async def scheduled(call: Call[Nothing, None]) -> ScheduledList:
    _, view = await _view(call)
    broker, permit = call.broker, call.permit
    pending, complete = await _SCHEDULED.get(call.listener, lambda: _pending(broker))
    mine = [message for message in pending if message.topic in view.topics]
    allowed = {topic for topic in {m.topic for m in mine} if permit.may(Verb.DESCRIBE, topic)}
    seen = [message for message in mine if message.topic in allowed]
    return ScheduledList(
        scheduled=[
            ScheduledLine(
                topic=one.topic,
                id=one.id,
                due=one.due,
                bytes=one.value_bytes,
                schedule=one.schedule,
            )
            for one in seen[:_SCHEDULED_SHOWN]
        ],
        count=len(seen),
        complete=complete,
    )


async def _pending(broker: BrokerCore) -> _Scheduled:
    """The first messages that are scheduled, for whatever topic; and whether that is all."""
    found: list[PendingMessage] = []
    after, looked_at = "", 0
    while looked_at < _LOOKED_AT_MAX:
        page = await _page(broker, ListScheduled("", after, _LOOKED_AT_ONCE))
        found += page.messages
        after, looked_at = page.next, looked_at + _LOOKED_AT_ONCE
        if not after:
            return found, True
    return found, False


async def _page(broker: BrokerCore, wanted: ListScheduled) -> ScheduledPage:
    got: asyncio.Future[ScheduledPage] = asyncio.get_running_loop().create_future()

    def listed(page: ScheduledPage | FanlogError) -> None:
        if got.done():
            return
        if isinstance(page, FanlogError):
            got.set_exception(page)
        else:
            got.set_result(page)

    broker.schedule.page(wanted, listed)
    return await got


_ERRORS = (InvalidArgumentError, GroupNotFoundError, NotSupportedError)


def _route(path: str, handler: Any, summary: str, answer: Any, query: Any = Nothing) -> Route:
    return Route(
        "GET",
        "/v1/queues/{queue}" + path,
        handler,
        summary,
        "queues",
        query=query,
        answer=answer,
        description="The figures are at most a few seconds old.",
        errors=_ERRORS,
    )


ROUTES = [
    _route("", describe, "Describe a queue", QueueDetails),
    _route("/workers", workers, "List workers and the jobs they have", WorkerList, WorkersQuery),
    _route("/retries", retries, "List failed jobs that will be retried", RetryList, RetriesQuery),
    _route("/scheduled", scheduled, "List messages scheduled for a queue", ScheduledList),
]
