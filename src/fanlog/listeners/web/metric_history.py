"""Metrics over time, as the broker stores them: the series and their values."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.errors import ForbiddenError, InvalidArgumentError, NotSupportedError
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Route
from fanlog.telemetry.history_reading import Captured, Grid, make_grid
from fanlog.telemetry.history_series import (
    BROKER,
    OWNED,
    Name,
    SeriesKind,
    SeriesOwner,
    SeriesUnit,
    maybe_parse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fanlog.broker.authority import Permit
    from fanlog.telemetry.history_keeper import KeptSeries, MetricHistory

HistoryRange = Literal["5m", "15m", "1h", "24h", "7d"]
SPANS: dict[HistoryRange, int] = {"5m": 300, "15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800}
_NAMES_MAX = 50
# A name of 255 bytes, and what is before and behind it.
_NAME_LENGTH_MAX = 280
_SECONDS_MAX = 10_000_000_000
_KEPT_SECONDS = 15 * 86_400
_NAME_PATTERN = "^({}|{})$".format(
    "|".join(BROKER),
    "|".join(rf"{owner}\.[^\0]+\.({'|'.join(fields)})" for owner, fields in OWNED.items()),
)
# An answer is good for others who ask the same for so long. Samples are 5 s apart.
_GOOD_SECONDS = 2.0
_ANSWERS_MAX = 64
_VERBS: dict[SeriesOwner, Verb] = {"group": Verb.GROUP, "queue": Verb.QUEUE}
_Seconds = Annotated[float, Meta(ge=0, le=_SECONDS_MAX)]


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[
        list[
            Annotated[
                str,
                Meta(
                    min_length=1,
                    max_length=_NAME_LENGTH_MAX,
                    extra_json_schema={"pattern": _NAME_PATTERN},
                ),
            ]
        ],
        Meta(
            min_length=1,
            max_length=_NAMES_MAX,
            description="A series, such as published_messages, topic.orders.messages or "
            "group.billing.lag. It may be repeated. /v1/metrics/series lists the "
            "names.",
        ),
    ]
    range: Annotated[HistoryRange, Meta(description="The length of time before now.")] = "1h"
    from_: (
        Annotated[
            _Seconds,
            Meta(description="Start, in seconds since 1970, instead of `range`."),
        ]
        | None
    ) = msgspec.field(default=None, name="from")
    to: (
        Annotated[_Seconds, Meta(description="End, in seconds since 1970. Default: now.")] | None
    ) = None
    before: Annotated[
        int,
        Meta(
            ge=0,
            le=14 * 86_400,
            description="Also return the values from this many seconds earlier, to compare: "
            "86400 is a day.",
        ),
    ] = 0
    points: Annotated[
        int,
        Meta(
            ge=1,
            le=1500,
            description="The most values of a series. If there are more, several are combined "
            "into one.",
        ),
    ] = 400


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A series. `values` has one value for each time, or null where nothing was measured. `before`
    has the values of an earlier time, if the request asked for it."""

    name: str
    label: str
    unit: SeriesUnit
    values: list[float | None]
    before: list[float | None] | None = None


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`times` are in seconds since 1970, `resolution_seconds` apart. A value is the average over
    that time. In a series with `p99` in its name, it is the highest."""

    from_: float = msgspec.field(name="from")
    to: float
    resolution_seconds: int
    times: list[int]
    series: list[HistorySeries]


class SeriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    search: Annotated[
        str,
        Meta(
            max_length=_NAME_LENGTH_MAX,
            description="Part of a name or label, in upper or lower case.",
        ),
    ] = ""
    of: (
        Annotated[
            Literal["broker", "topic", "group", "queue"],
            Meta(description="Only series of the whole broker, or of topics, groups or queues."),
        ]
        | None
    ) = None
    offset: Annotated[int, Meta(ge=0, le=1_000_000, description="Series to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of series in the answer.")
    ] = 100


class SeriesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A series. `of` is `broker`, `topic`, `group` or `queue`, `owner` the name of that topic,
    group or queue, and `seen` when it last had a value, in seconds since 1970."""

    name: str
    label: str
    unit: SeriesUnit
    of: str
    owner: str
    field: str
    seen: float


class SeriesList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of series. `total` counts all that were found and that you may see."""

    series: list[SeriesInfo]
    total: int
    offset: int


async def show_history(call: Call[HistoryQuery, None]) -> web.StreamResponse:
    query, history = call.query, _history(call)
    kinds = {name: _allowed(call.permit, name) for name in dict.fromkeys(query.name)}
    history.watch(name for name, _ in kinds.values())
    now = history.now()
    begin, end = _window(query, now)
    grid = make_grid(history.tiers, begin, end, now, query.points)
    key = (tuple(kinds), grid, query.before)
    labels: dict[str, tuple[str, SeriesUnit]] = {
        name: (_label(*one), one[1].unit) for name, one in kinds.items()
    }

    async def find() -> bytes:
        captured = history.capture(kinds)
        return await call.broker.threaded(
            lambda: _encode(captured, labels, grid, query.before, now)
        )

    body = await _answers(history).get(key, find)
    return web.Response(body=body, content_type="application/json")


def _history(call: Call[HistoryQuery, None] | Call[SeriesQuery, None]) -> MetricHistory:
    history = call.broker.metrics.history
    if history is None:
        raise NotSupportedError(
            "This broker keeps no metrics over time. Turn them on with telemetry.history."
        )
    return history


def _allowed(permit: Permit, text: str) -> tuple[Name, SeriesKind]:
    """The series of a name. Raises if there can't be one, or if the caller may not see it."""
    found = maybe_parse(text)
    if found is None or not _is_text(text):
        raise InvalidArgumentError(
            f"There is no series {text!r}. Names are such as published_messages, "
            "topic.orders.messages or group.billing.lag; /v1/metrics/series lists them."
        )
    owner, of = found[0].owner, found[0].of
    if owner in _VERBS:
        permit.ask_state(_VERBS[owner], of)
    else:
        permit.ask(Verb.DESCRIBE, of)
    return found


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _may_see(permit: Permit, name: Name) -> bool:
    if name.owner in _VERBS:
        return permit.may_see(_VERBS[name.owner], name.of)
    return permit.may(Verb.DESCRIBE, name.of)


def _window(query: HistoryQuery, now: float) -> tuple[float, float]:
    # Nothing is known of the future, and nothing is kept for longer than two weeks.
    end = now if query.to is None else min(query.to, now)
    begin = end - SPANS[query.range] if query.from_ is None else query.from_
    if query.from_ is not None and query.to is not None and query.from_ >= query.to:
        raise InvalidArgumentError("`from` must be before `to`.")
    return min(max(begin, now - _KEPT_SECONDS), end), end


def _label(name: Name, kind: SeriesKind) -> str:
    return kind.label if name.owner is None else f"{kind.label} of {name.of}"


def _yield() -> None:
    """Lets the event loop run: otherwise a thread keeps the interpreter for 5 ms at a time."""
    time.sleep(0)


def _encode(
    captured: Captured,
    labels: dict[str, tuple[str, SeriesUnit]],
    grid: Grid,
    before: int,
    now: float,
) -> bytes:
    values = captured.read(grid, now, _yield)
    earlier = captured.read(grid.earlier(before), now, _yield) if before else {}
    answer = HistoryAnswer(
        from_=grid.start,
        to=grid.end,
        resolution_seconds=grid.step,
        times=grid.times(),
        series=[
            HistorySeries(
                name=name, label=label, unit=unit, values=values[name], before=earlier.get(name)
            )
            for name, (label, unit) in labels.items()
        ],
    )
    return msgspec.json.encode(answer)


class _Answers:
    """Answers of the last seconds, for all who ask the same."""

    def __init__(self) -> None:
        self._kept: dict[object, asyncio.Task[bytes]] = {}

    async def get(self, key: object, find: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        task = self._kept.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            while len(self._kept) >= _ANSWERS_MAX:
                del self._kept[next(iter(self._kept))]
            task = self._kept[key] = loop.create_task(find())
            loop.call_later(_GOOD_SECONDS, self._drop, key, task)
        # If one caller goes away, the others still get the result.
        return await asyncio.shield(task)

    def _drop(self, key: object, task: asyncio.Task[bytes]) -> None:
        if self._kept.get(key) is task:
            del self._kept[key]


_kept_answers: WeakKeyDictionary[MetricHistory, _Answers] = WeakKeyDictionary()


def _answers(history: MetricHistory) -> _Answers:
    return _kept_answers.setdefault(history, _Answers())


async def list_series(call: Call[SeriesQuery, None]) -> SeriesList:
    query, permit = call.query, call.permit
    words = query.search.casefold().split()

    def fits(one: KeptSeries) -> bool:
        if query.of is not None and query.of != (one.name.owner or "broker"):
            return False
        text = f"{one.text} {one.kind.label}".casefold()
        return all(word in text for word in words) and _may_see(permit, one.name)

    every = call.broker.slices.each(_history(call).series())
    found = [one async for one in every if fits(one)]
    found.sort(key=lambda one: (one.name.owner is not None, one.text))
    page = found[query.offset : query.offset + query.limit]
    return SeriesList(
        series=[
            SeriesInfo(
                name=one.text,
                label=_label(one.name, one.kind),
                unit=one.kind.unit,
                of=one.name.owner or "broker",
                owner=one.name.of,
                field=one.name.field,
                seen=one.seen,
            )
            for one in page
        ],
        total=len(found),
        offset=query.offset,
    )


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/metrics/history",
        show_history,
        "Metrics over time",
        "status",
        description="Values that the broker stores: an hour at 5 s, a day at 1 min and two "
        "weeks at 10 min. Series of the whole broker need the permission to "
        "describe it. Those of a topic, group or queue need the permission to see "
        "that one. A series without values contains only null. The broker measures "
        "topics, groups and queues that the metrics leave out from the first "
        "request, and for 10 minutes after the last one.",
        query=HistoryQuery,
        query_example={"name": ["published_messages"], "range": "1h"},
        answer=HistoryAnswer,
        errors=(ForbiddenError, InvalidArgumentError, NotSupportedError),
    ),
    Route(
        "GET",
        "/v1/metrics/series",
        list_series,
        "List the series of /v1/metrics/history",
        "status",
        description="A page of the series that still have stored values, and that you may see.",
        query=SeriesQuery,
        query_example={"search": "lag"},
        answer=SeriesList,
        errors=(NotSupportedError,),
    ),
]
