"""Groups and queues as a table, with search, sort and pages. All requests within a few seconds
share one scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.broker.insight.group_scan import GroupRow
from fanlog.errors import InvalidArgumentError, NotSupportedError
from fanlog.listeners.web.group_tables import GroupTable, GroupTables
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.sorted_pages import page_of
from fanlog.model import GroupKind, GroupState

Sort = Literal[
    "name",
    "kind",
    "state",
    "members",
    "topics",
    "partitions",
    "lag",
    "lag_seconds",
    "rebalances",
    "waiting",
    "in_flight",
    "retrying",
    "redelivered",
    "dead_lettered",
]
# Rows that one step checks.
_ROWS_A_STEP = 256
_OFFSET_MAX = 1 << 31
_STATES = {"inactive": 0, "active": 1, "rebalancing": 2}
_FAR = 1 << 62

PageOffset = Annotated[int, Meta(ge=0, le=_OFFSET_MAX, description="Entries to skip.")]
PageLimit = Annotated[int, Meta(ge=1, description="The largest number of entries on the page.")]
Searched = Annotated[
    str,
    Meta(max_length=255, description="Only names that contain this text, in upper or lower case."),
]


class GroupListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which groups, and in which order."""

    kind: Annotated[
        Literal["all", "stream", "queue"],
        Meta(description="stream: groups that share partitions. queue: queues of jobs."),
    ] = "all"
    search: Searched = ""
    state: Annotated[
        Literal["", "active", "rebalancing", "inactive"],
        Meta(description="Only groups and queues in this state."),
    ] = ""
    lagging: Annotated[bool, Meta(description="Only groups and queues that lag.")] = False
    sort: Annotated[Sort, Meta(description="The sort order. Equal entries are sorted by name.")] = (
        "name"
    )
    descending: Annotated[bool, Meta(description="The highest value first.")] = False
    offset: PageOffset = 0
    limit: PageLimit = 50


class GroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """A group or queue. Of a queue, `members` are workers, `lag` counts the jobs that are not
    done, and `waiting` those of them that no worker has."""

    name: str
    kind: GroupKind
    state: GroupState
    members: int
    topics: int
    partitions: int
    lag: int
    lag_seconds: Annotated[
        float | None,
        Meta(description="Age of the oldest message that is not done; null if not known yet."),
    ]
    lag_seconds_known: Annotated[
        bool, Meta(description="False: the broker still looks for an older one on disk.")
    ]
    rebalances: Annotated[int, Meta(description="Time since the group has had members.")] = 0
    waiting: int = 0
    in_flight: int = 0
    retrying: Annotated[
        int, Meta(description="Jobs that failed and wait for their next delivery.")
    ] = 0
    redelivered: int = 0
    dead_lettered: Annotated[int, Meta(description="Since the broker started.")] = 0


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of groups and queues. `total`, `lagging` and `lag` are of all that match."""

    groups: list[GroupLine]
    total: int
    lagging: Annotated[int, Meta(description="How many of them lag.")]
    lag: Annotated[int, Meta(description="The sum of their lags.")]
    age_seconds: Annotated[float, Meta(description="Age of these figures.")]


class _GroupMatches:
    """The rows that match a query, and their sums."""

    def __init__(self) -> None:
        self.total = 0
        self.lagging = 0
        self.lag = 0
        self.page: list[GroupRow] = []


def _value(sort: Sort) -> Callable[[GroupRow], int]:
    """What a row is sorted by, as a number."""
    match sort:
        case "kind":
            return lambda row: row.kind == "queue"
        case "state":
            return lambda row: _STATES[row.state]
        case "waiting":
            return lambda row: row.lag - row.in_flight
        case "lag_seconds":
            # The older, the higher.
            return lambda row: -(row.oldest_us or _FAR)
        case _:
            return lambda row: getattr(row, sort)


def _key(sort: Sort, *, descending: bool) -> Callable[[GroupRow], Any]:
    if sort == "name":
        return lambda row: (row.name, row.kind)
    value = _value(sort)
    if descending:
        return lambda row: (-value(row), row.name, row.kind)
    return lambda row: (value(row), row.name, row.kind)


def age_of(row: GroupRow, now_us: int) -> float | None:
    """Age of the oldest message that is not done, as far as it is known."""
    if not row.lag:
        return 0.0
    return max(0.0, (now_us - row.oldest_us) / 1e6) if row.oldest_us else None


def _line(row: GroupRow, now_us: int) -> GroupLine:
    return GroupLine(
        name=row.name,
        kind=row.kind,
        state=row.state,
        members=row.members,
        topics=row.topics,
        partitions=row.partitions,
        lag=row.lag,
        lag_seconds=age_of(row, now_us),
        lag_seconds_known=not row.unknown,
        rebalances=row.rebalances,
        waiting=max(0, row.lag - row.in_flight) if row.kind == "queue" else 0,
        in_flight=row.in_flight,
        retrying=row.retrying,
        redelivered=row.redelivered,
        dead_lettered=row.dead_lettered,
    )


def _matches(query: GroupListQuery, sees: Callable[[GroupRow], bool]) -> Callable[..., bool]:
    search = query.search.lower()

    def matches(row: GroupRow) -> bool:
        return (
            (query.kind in ("all", row.kind))
            and (not query.state or row.state == query.state)
            and (not query.lagging or row.lag > 0)
            and (not search or search in row.name.lower())
            and sees(row)
        )

    return matches


def in_chunks(rows: list[GroupRow]) -> Iterator[list[GroupRow]]:
    left = iter(rows)
    while some := list(islice(left, _ROWS_A_STEP)):
        yield some


async def _find(
    call: Call[GroupListQuery, None], tables: GroupTables, table: GroupTable, limit: int
) -> _GroupMatches:
    query, slices = call.query, call.broker.slices
    sees = tables.sees(call.permit)
    matches, found = _matches(query, sees), _GroupMatches()
    rows: list[GroupRow] = []
    async for some in slices.each(in_chunks(table.rows)):
        for row in filter(matches, some):
            rows.append(row)
            found.lag += row.lag
            found.lagging += row.lag > 0
    found.total = len(rows)
    found.page = await page_of(
        slices,
        rows,
        _key(query.sort, descending=query.descending),
        offset=query.offset,
        limit=limit,
        descending=query.descending and query.sort == "name",
    )
    return found


async def list_rows(call: Call[GroupListQuery, None]) -> GroupList:
    broker, tables = call.broker, call.listener.group_tables
    limit = min(call.query.limit, call.listener.options.page_entries_max)
    table = await tables.table()
    account = call.permit.who.account
    key = None
    if not call.permit.guarded or account is not None:
        key = (call.query, id(account), broker.permissions_epoch)
    found: _GroupMatches | None = None if key is None else table.maybe_page(key)
    if found is None:
        found = await _find(call, tables, table, limit)
        if key is not None:
            table.keep_page(key, found, account)
    now_us = broker.now_us()
    return GroupList(
        groups=[_line(row, now_us) for row in found.page if tables.is_there(row)],
        total=found.total,
        lagging=found.lagging,
        lag=found.lag,
        age_seconds=round(table.age_seconds, 3),
    )


ROUTES = [
    Route(
        "GET",
        "/v1/group-list",
        list_rows,
        "Search and sort groups and queues",
        "groups",
        query=GroupListQuery,
        answer=GroupList,
        description="A page of a table, with sums. The figures are at most a few seconds old: "
        "all callers share them.",
        errors=(InvalidArgumentError, NotSupportedError),
    ),
]
