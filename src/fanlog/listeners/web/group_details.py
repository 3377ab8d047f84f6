"""One group or queue, for people: a summary, and pages of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.broker.insight.group_view import GroupView, MemberRow, PartitionRow
from fanlog.errors import GroupNotFoundError, InvalidArgumentError, NotSupportedError
from fanlog.identity import Identity, Verb
from fanlog.listeners.web.group_lists import PageLimit, PageOffset, Searched, age_of
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.sorted_pages import page_of
from fanlog.model import TOPIC_NAME_BYTES_MAX, GroupKind, GroupState
from fanlog.telemetry.callers import connection_id

# The most entries of a list without pages: those that are furthest behind.
_MEMBERS_MAX = 200
_TOPICS_MAX = 100
_ROWS_A_STEP = 256


class GroupMemberLine(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group. `present` is false while its connection is lost and it may come back.
    `address` and `connection` are for operators only."""

    id: str
    client: Annotated[str, Meta(description="What the client calls itself.")]
    target: Annotated[str, Meta(description="The topic or pattern that it reads.")]
    static: Annotated[bool, Meta(description="Whether a client chose this name.")]
    present: bool
    partitions: int
    lag: Annotated[int, Meta(description="The sum of the lags of its partitions.")]
    in_flight: int
    address: str = ""
    connection: Annotated[str, Meta(description="The id of its connection in /v1/connections.")] = (
        ""
    )


class TopicLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of a group in one topic."""

    name: str
    partitions: int
    lag: int


class GroupOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a group or queue. Of very many members or topics it lists those that lag
    most."""

    name: str
    kind: GroupKind
    state: GroupState
    lag: int
    lag_seconds: Annotated[
        float | None,
        Meta(description="Age of the oldest message that is not done; null if not known yet."),
    ]
    lag_seconds_known: Annotated[
        bool, Meta(description="False: the broker still looks for an older one on disk.")
    ]
    rebalances: Annotated[int, Meta(description="Time since the group has had members.")]
    partition_count: int
    topic_count: int
    topics: list[TopicLag]
    member_count: int
    members: list[GroupMemberLine]


PartitionSort = Literal[
    "topic", "committed", "end_offset", "lag", "member", "in_flight", "waiting", "retrying"
]


class PartitionsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which partitions, and in which order."""

    topic: Annotated[
        str, Meta(max_length=TOPIC_NAME_BYTES_MAX, description="Only partitions of this topic.")
    ] = ""
    search: Searched = ""
    member: Annotated[str, Meta(max_length=255, description="Only partitions of this member.")] = ""
    lagging: Annotated[bool, Meta(description="Only partitions that lag.")] = False
    sort: Annotated[
        PartitionSort, Meta(description="The sort order. Equal entries are sorted by topic.")
    ] = "topic"
    descending: Annotated[bool, Meta(description="The highest value first.")] = False
    offset: PageOffset = 0
    limit: PageLimit = 50


class PartitionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a group reads, or a queue works on. Of a queue, `committed` is the first
    job that is not done, and `waiting` counts the jobs that no worker has."""

    topic: str
    partition: int
    committed: int | None
    start_offset: int
    end_offset: int
    lag: int
    lag_seconds: Annotated[
        float | None, Meta(description="Age of the oldest message; null: unreadable.")
    ]
    member: str = ""
    in_flight: int = 0
    waiting: int = 0
    retrying: int = 0


class PartitionList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of partitions. `total` and `lag` are of all that match."""

    partitions: list[PartitionLine]
    total: int
    lag: int


async def view_of(call: Call[Any, Any], name: str) -> GroupView:
    """The group or queue. Raises an error if the caller may not see it."""
    verb = Verb.GROUP if call.broker.queues.find(name) is None else Verb.QUEUE
    call.permit.ask_state(verb, name)
    return await call.listener.group_tables.view(name)


def member_of(member: MemberRow, *, admin: bool) -> GroupMemberLine:
    return GroupMemberLine(
        id=member.id,
        client=member.client,
        target=member.target,
        static=member.static,
        present=member.present,
        partitions=member.partitions,
        lag=member.lag,
        in_flight=member.in_flight,
        address=member.address if admin else "",
        connection=connection_of(member) if admin else "",
    )


def connection_of(member: MemberRow) -> str:
    return connection_id(Identity(address=member.address, listener="native"))


async def overview(call: Call[Nothing, None]) -> GroupOverview:
    view = await view_of(call, call.path("group"))
    row, admin = view.row, call.permit.may(Verb.ADMIN, "")
    members = await page_of(
        call.broker.slices,
        list(view.members.values()),
        lambda one: (-one.lag, -one.in_flight, one.id),
        offset=0,
        limit=_MEMBERS_MAX,
    )
    return GroupOverview(
        name=row.name,
        kind=row.kind,
        state=row.state,
        lag=row.lag,
        lag_seconds=age_of(row, call.broker.now_us()),
        lag_seconds_known=not row.unknown,
        rebalances=row.rebalances,
        partition_count=row.partitions,
        topic_count=row.topics,
        topics=await topics_of(call, view),
        member_count=row.members,
        members=[member_of(member, admin=admin) for member in members],
    )


async def topics_of(call: Call[Any, Any], view: GroupView) -> list[TopicLag]:
    """The topics in which a group is furthest behind."""
    found = await page_of(
        call.broker.slices,
        list(view.topics.values()),
        lambda topic: (-topic.lag, topic.name),
        offset=0,
        limit=_TOPICS_MAX,
    )
    return [TopicLag(name=one.name, partitions=one.partitions, lag=one.lag) for one in found]


def _value(sort: PartitionSort) -> Callable[[PartitionRow], int]:
    match sort:
        case "committed":
            return lambda row: -1 if row.committed is None else row.committed
        case "end_offset":
            return lambda row: row.end
        case "waiting":
            return lambda row: row.lag - row.in_flight
        case _:
            return lambda row: getattr(row, sort)


def _key(sort: PartitionSort, *, descending: bool) -> Callable[[PartitionRow], Any]:
    """By topic and partition, in the end; with numbers that may be turned around."""
    if sort == "topic":
        return lambda row: (row.topic, row.number)
    if sort == "member":
        return lambda row: (row.member, row.topic, row.number)
    value = _value(sort)
    if descending:
        return lambda row: (-value(row), row.topic, row.number)
    return lambda row: (value(row), row.topic, row.number)


def _matches(query: PartitionsQuery) -> Callable[[PartitionRow], bool]:
    search = query.search.lower()

    def matches(row: PartitionRow) -> bool:
        return (
            (not query.topic or row.topic == query.topic)
            and (not query.member or row.member == query.member)
            and (not query.lagging or row.lag > 0)
            and (not search or search in row.topic.lower())
        )

    return matches


def _chunks(rows: list[PartitionRow]) -> Iterator[list[PartitionRow]]:
    left = iter(rows)
    while some := list(islice(left, _ROWS_A_STEP)):
        yield some


async def partitions(call: Call[PartitionsQuery, None]) -> PartitionList:
    query, slices = call.query, call.broker.slices
    view = await view_of(call, call.path("group"))
    matches = _matches(query)
    rows: list[PartitionRow] = []
    async for some in slices.each(_chunks(view.partitions)):
        rows += filter(matches, some)
    page = await page_of(
        slices,
        rows,
        _key(query.sort, descending=query.descending),
        offset=query.offset,
        limit=min(query.limit, call.listener.options.page_entries_max),
        descending=query.descending and query.sort in ("topic", "member"),
    )
    times = call.listener.group_tables.times
    await times.load((row.partition, row.wanted) for row in page if row.lag)
    now_us = call.broker.now_us()

    def line(row: PartitionRow) -> PartitionLine:
        time_us = times.maybe_time(row.partition, row.wanted) if row.lag else None
        age = max(0.0, (now_us - time_us) / 1e6) if time_us else None
        return PartitionLine(
            topic=row.topic,
            partition=row.number,
            committed=row.committed,
            start_offset=row.start,
            end_offset=row.end,
            lag=row.lag,
            lag_seconds=age if row.lag else 0.0,
            member=row.member,
            in_flight=row.in_flight,
            waiting=max(0, row.lag - row.in_flight) if view.row.kind == "queue" else 0,
            retrying=row.retrying,
        )

    return PartitionList(
        partitions=[line(row) for row in page],
        total=len(rows),
        lag=sum(row.lag for row in rows),
    )


_ERRORS = (InvalidArgumentError, GroupNotFoundError, NotSupportedError)

ROUTES = [
    Route(
        "GET",
        "/v1/groups/{group}/overview",
        overview,
        "Summarize a group or queue",
        "groups",
        answer=GroupOverview,
        description="The size of the answer does not depend on the size of the group: the "
        "partitions are in /v1/groups/{group}/partitions. The figures are at most a"
        " few seconds old.",
        errors=_ERRORS,
    ),
    Route(
        "GET",
        "/v1/groups/{group}/partitions",
        partitions,
        "Search and sort the partitions of a group or queue",
        "groups",
        query=PartitionsQuery,
        answer=PartitionList,
        description="A page of the partitions. The figures are at most a few seconds old.",
        errors=_ERRORS,
    ),
]
