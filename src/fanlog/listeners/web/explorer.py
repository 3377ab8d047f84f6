"""Explores messages, for people: the newest or oldest that match, within limits. One request reads
a bounded slice of rows, bytes and time, however much was published. The answer says how far it
came, and a token resumes there. With `after` it is a live tail: the newest messages since the last
answer, and how many were skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from fanlog.broker.insight.stretches import OffsetGap
from fanlog.errors import LimitError
from fanlog.listeners.web import explorer_details
from fanlog.listeners.web.explorer_filters import (
    HeaderCondition,
    JsonCondition,
    KeyCondition,
    KeyMatch,
    MessageCondition,
    TextCondition,
    TraceCondition,
)
from fanlog.listeners.web.explorer_look import LookPlan, Reach
from fanlog.listeners.web.explorer_positions import (
    TOKEN_LENGTH_MAX,
    TOKEN_PATTERN,
    Began,
    RequestedStart,
    begin,
    print_token,
)
from fanlog.listeners.web.explorer_records import ExploredMessage
from fanlog.listeners.web.explorer_requests import ERRORS, ExploredQuery, explorer_of
from fanlog.listeners.web.explorer_scan import ExplorerScan
from fanlog.listeners.web.explorer_topics import Chosen
from fanlog.listeners.web.openapi_names import START_SCHEMAS
from fanlog.listeners.web.routes import Call, Route

ROWS_MAX = 500
ROW_BYTES_MAX = 2 << 20
PREVIEW_BYTES_MAX = 16 * 1024
SCAN_BYTES_MAX = 64 << 20
_SECONDS_MAX = 2.0
# Partitions with positions in the answer.
_POSITIONS_MAX = 64
_CONDITIONS_MAX = 8
Token = Annotated[
    str, Meta(max_length=TOKEN_LENGTH_MAX, extra_json_schema={"pattern": TOKEN_PATTERN})
]
_FilterText = Annotated[str, Meta(min_length=1, max_length=1024)]


class ExploreQuery(ExploredQuery, frozen=True, kw_only=True):
    """The start, the direction, the conditions and the limits of a request."""

    start: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z, or "
            "an age such as 10m. Default: latest if backward, earliest if forward. "
            "Backward, an offset is included, and a time is not.",
            examples=["latest"],
            extra_json_schema={"anyOf": START_SCHEMAS},
        ),
    ] = ""
    position: Annotated[Token, Meta(description="Resume at the `next` of an answer.")] | None = None
    after: (
        Annotated[
            Token,
            Meta(
                description="For a live tail: return the newest messages since the answer with "
                "this `after`. `skipped` counts those that did not fit."
            ),
        ]
        | None
    ) = None
    direction: Annotated[
        Literal["backward", "forward"],
        Meta(description="backward: the newest first. forward: the oldest first."),
    ] = "backward"
    limit: Annotated[
        int, Meta(ge=1, le=ROWS_MAX, description="The largest number of messages in the answer.")
    ] = 100
    key: (
        Annotated[_FilterText, Meta(description="Only messages whose key matches this text.")]
        | None
    ) = None
    key_match: Annotated[
        KeyMatch,
        Meta(description="How the key is compared. base64: an exact key that is not text."),
    ] = "contains"
    header: Annotated[
        tuple[_FilterText, ...],
        Meta(
            max_length=_CONDITIONS_MAX,
            description="Only messages with this header: name, name=value, or name~part of a "
            "value.",
            examples=[["type=paid"]],
        ),
    ] = ()
    text: (
        Annotated[_FilterText, Meta(description="Only messages with this text in the value.")]
        | None
    ) = None
    json: Annotated[
        tuple[_FilterText, ...],
        Meta(
            max_length=_CONDITIONS_MAX,
            description="Only messages whose JSON value fulfils this condition: a path, one of "
            "= != > >= < <= ~ (contains), and a value; or only a path. Values above"
            " 512 KiB never match.",
            examples=[["order.total > 10"]],
        ),
    ] = ()
    case: Annotated[
        bool, Meta(description="Whether upper and lower case differ when a text is searched for.")
    ] = False
    trace: (
        Annotated[
            str,
            Meta(pattern="^[0-9a-fA-F]{32}$", description="Only messages of this trace."),
        ]
        | None
    ) = None
    preview_bytes: Annotated[
        int,
        Meta(
            ge=0, le=PREVIEW_BYTES_MAX, description="The number of bytes to return of each value."
        ),
    ] = 512
    scan_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=SCAN_BYTES_MAX,
            description="The approximate number of unpacked bytes to search. At least one batch"
            " is searched.",
        ),
    ] = 16 << 20


class ExploredGap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets `from` up to, not including, `to` that can't be read."""

    topic: str
    partition: int
    first: Annotated[int, Meta(description="The first offset of the gap.")] = msgspec.field(
        name="from"
    )
    to: Annotated[int, Meta(description="The first offset after the gap.")]
    reason: Annotated[
        str,
        Meta(
            description="retention: deleted by age or size. damaged: lost on disk. unreadable: its "
            "producer made it wrong. reset: the topic ends before the position."
        ),
    ]


class ExploredPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The searched offsets of a partition: from `from` up to, not including, `to`."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    first: Annotated[int, Meta(description="The first offset that was searched.")] = msgspec.field(
        name="from"
    )
    to: Annotated[int, Meta(description="The first offset after those that were searched.")]


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that match, and how far the request came."""

    messages: list[ExploredMessage]
    ended: Annotated[
        Literal["end", "limit", "budget"],
        Meta(
            description="Why it stopped. end: there are no more messages. limit: the answer is "
            "full. budget: the request has searched as much as it may; resume at "
            "`next`."
        ),
    ]
    next: Annotated[
        str, Meta(description="Use it as `position=` to continue; empty if there is nothing more.")
    ]
    after: Annotated[str, Meta(description="Use it as `after=` to ask for later messages.")]
    scanned_messages: Annotated[int, Meta(description="The number of messages that were searched.")]
    scanned_bytes: Annotated[
        int, Meta(description="The approximate number of unpacked bytes that were searched.")
    ]
    skipped: Annotated[
        int,
        Meta(
            description="For a live tail: new messages that were not searched, calculated from "
            "their offsets."
        ),
    ]
    left: Annotated[
        int, Meta(description="Messages left in this direction, calculated from their offsets.")
    ]
    topics: Annotated[int, Meta(description="The number of topics that were read.")]
    all_topics: Annotated[
        bool, Meta(description="True if these are all topics that match and that you may read.")
    ]
    partitions: Annotated[
        list[ExploredPartition],
        Meta(description="The positions in the partitions that were searched, up to 64."),
    ]
    gaps: list[ExploredGap]


class _RawExplored(msgspec.Struct, frozen=True, kw_only=True):
    """`Explored`, with messages that are JSON already."""

    messages: list[Raw]
    ended: str
    next: str
    after: str
    scanned_messages: int
    scanned_bytes: int
    skipped: int
    left: int
    topics: int
    all_topics: bool
    partitions: list[ExploredPartition]
    gaps: list[ExploredGap]


async def explore(call: Call[ExploreQuery, None]) -> web.StreamResponse:
    query, core = call.query, call.bus.core
    explorer = explorer_of(call)
    conditions = _conditions(query)
    chosen = await explorer.topics.choose(query.topic, set(query.partition), call.permit)
    after = print_token((p, p.visible_end) for p in chosen.partitions)
    if len(after) > TOKEN_LENGTH_MAX:
        raise LimitError(
            f"{len(chosen.partitions)} partitions are too many for one answer. Name fewer topics, "
            "or choose partitions."
        )
    backward = query.after is not None or query.direction == "backward"
    given = RequestedStart(query.after, query.position, query.start, backward)
    began = await begin(core, given, chosen.partitions)
    plan = LookPlan(
        backward=backward,
        conditions=conditions,
        limits=core.unpacker.limits,
        rows_max=query.limit,
        row_bytes_max=ROW_BYTES_MAX,
        preview_bytes=query.preview_bytes,
        bytes_max=query.scan_bytes,
    )
    scan = ExplorerScan(core, plan, began.reaches, seconds_max=_SECONDS_MAX)
    await explorer.run(scan)
    return _answer(query, chosen, began, scan, after)


def _conditions(query: ExploreQuery) -> list[MessageCondition]:
    """Cheapest conditions first."""
    case = query.case
    found: list[MessageCondition] = []
    if query.key is not None:
        found.append(KeyCondition(query.key, query.key_match, case=case))
    if query.trace is not None:
        found.append(TraceCondition(query.trace))
    found += [HeaderCondition(text, case=case) for text in query.header]
    if query.text is not None:
        found.append(TextCondition(query.text, case=case))
    found += [JsonCondition(text) for text in query.json]
    return found


def _answer(
    query: ExploreQuery, chosen: Chosen, began: Began, scan: ExplorerScan, after: str
) -> web.StreamResponse:
    live, found = query.after is not None, scan.found
    backward = live or query.direction == "backward"
    left = sum(reach.left for reach in scan.reaches)
    continued = [
        (reach.partition, reach.high if backward else reach.low)
        for reach in scan.reaches
        # Forwards, the next request resumes at the end of a partition that was read whole.
        if not backward or reach.left
    ]
    body = _RawExplored(
        messages=[Raw(row) for row in found.rows],
        ended=scan.ended,
        next=print_token(continued) if left else "",
        after=after,
        scanned_messages=found.messages,
        scanned_bytes=found.bytes,
        skipped=left if live else 0,
        left=left,
        topics=chosen.topics,
        all_topics=chosen.is_all,
        partitions=_positions(scan.reaches),
        gaps=[_gap(reach, gap) for reach, gap in (*began.gaps, *found.gaps)],
    )
    return web.Response(
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _positions(reaches: Iterable[Reach]) -> list[ExploredPartition]:
    moved = [r for r in reaches if (r.low, r.high) != (r.begin, r.end)]
    return [
        ExploredPartition(
            topic=reach.partition.topic.name,
            partition=reach.partition.index,
            start_offset=reach.partition.log.start_offset,
            end_offset=reach.partition.visible_end,
            first=reach.begin if reach.low > reach.begin else reach.high,
            to=reach.low if reach.low > reach.begin else reach.end,
        )
        for reach in moved[:_POSITIONS_MAX]
    ]


def _gap(reach: Reach, gap: OffsetGap) -> ExploredGap:
    partition = reach.partition
    return ExploredGap(
        topic=partition.topic.name,
        partition=partition.index,
        first=gap.first,
        to=gap.next,
        reason=gap.reason,
    )


_EXAMPLE = {
    "messages": [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 41,
            "time": "2026-01-31T12:00:00.000000Z",
            "key": "order-1",
            "key_bytes": 7,
            "headers": {"content-type": "application/json"},
            "format": "json",
            "bytes": 9,
            "preview": '{"tea":2}',
        }
    ],
    "ended": "limit",
    "next": "7:0.41",
    "after": "7:0.42",
    "scanned_messages": 1,
    "scanned_bytes": 120,
    "skipped": 0,
    "left": 41,
    "topics": 1,
    "all_topics": True,
    "partitions": [
        {
            "topic": "orders",
            "partition": 0,
            "start_offset": 0,
            "end_offset": 42,
            "from": 41,
            "to": 42,
        }
    ],
    "gaps": [],
}

ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/explore",
        explore,
        "Explore messages, newest or oldest first",
        "messages",
        description="For people: rows with the beginning of each value, from one topic or "
        "several, with conditions that the broker checks. A request searches a "
        "limited range and says how far it came; `next` continues. For a live tail,"
        " ask once a second with the `after` of the previous answer: you get the "
        "newest messages, and the number of skipped ones. Programs that need every "
        "message subscribe, or read `/v1/topics/{topic}/messages`.",
        query=ExploreQuery,
        query_example={"topic": ["orders"], "limit": 10},
        answer=Explored,
        answer_example=_EXAMPLE,
        errors=ERRORS,
    ),
    *explorer_details.ROUTES,
]
