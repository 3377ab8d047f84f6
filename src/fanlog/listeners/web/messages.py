"""Reading over REST: pages of messages, from an offset, a time or a position, with long poll."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from fanlog.client.arguments import as_start
from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    StorageError,
    TopicDeletedError,
    TopicNotFoundError,
    no_partition,
)
from fanlog.format.web_positions import Vectors, parse_event_id, print_position, print_positions
from fanlog.identity import Verb
from fanlog.listeners.web.message_pages import GapAnswer, MessagePage, PageReader, continue_at
from fanlog.listeners.web.openapi_names import POSITION_PATTERN, TIME_SCHEMAS
from fanlog.listeners.web.routes import Call, Param, Route
from fanlog.model import PARTITIONS_MAX, Start, TopicInfo

_OFFSET_MAX = (1 << 63) - 1
# A page that never changes. Not for ever, all the same: who deletes messages wants them gone.
_IMMUTABLE = "private, max-age=86400, immutable"
_CHECK_AGAIN = "private, no-cache"
# A position of about a thousand partitions. It must fit the first line of a request.
POSITION_LENGTH_MAX = 24_000
# Many proxies take no longer headers.
_LINK_LENGTH_MAX = 4000


class PartitionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Where to start, and how much to read. Of several starts, the first in this list counts.
    Without one, reading starts at the first message."""

    position: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=POSITION_LENGTH_MAX,
                description="Start at a position from an answer. It has precedence over other "
                "starts.",
                examples=["42.3.7"],
                extra_json_schema={"pattern": POSITION_PATTERN},
            ),
        ]
        | None
    ) = None
    offset: (
        Annotated[int, Meta(ge=0, le=_OFFSET_MAX, description="Start at this offset.")] | None
    ) = None
    time: (
        Annotated[
            str,
            Meta(
                description="Start at this time, such as 2026-01-31T12:00:00Z, or at this age, "
                "such as 10m.",
                examples=["10m"],
                extra_json_schema={"anyOf": TIME_SCHEMAS},
            ),
        ]
        | None
    ) = None
    last: (
        Annotated[int, Meta(ge=1, le=10_000, description="This many of the newest messages.")]
        | None
    ) = None
    start: (
        Annotated[
            Literal["earliest", "latest"],
            Meta(description="Start at the first message, or at the end: see `wait_seconds`."),
        ]
        | None
    ) = None
    limit: Annotated[
        int, Meta(ge=1, description="The largest number of messages in the answer.")
    ] = 100
    wait_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="If there are no messages, wait this long for one.")
    ] = 0.0


class MessagesQuery(PartitionQuery, frozen=True, kw_only=True):
    """The same, of all partitions of a topic or of one."""

    partition: (
        Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX, description="Only this partition.")] | None
    ) = None


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A message. Its value is one of `json`, `text` and `base64`; a tombstone is `deleted`."""

    topic: str
    partition: int
    offset: int
    time: Annotated[str, Meta(description="When the broker appended it, RFC 3339 in UTC.")]
    event_time: Annotated[
        str, Meta(description="The time of the event, as its publisher gave it.")
    ] = ""
    key: str = ""
    key_base64: Annotated[str, Meta(description="A key that is not text.")] = ""
    headers: dict[str, str] = {}
    headers_base64: dict[str, str] = {}
    json: Any = None
    text: str = ""
    base64: str = ""
    deleted: bool = False


class MessagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in order of time, and where to resume."""

    messages: list[MessageAnswer]
    positions: Annotated[
        dict[str, str], Meta(description="The positions after these messages, by topic/partition.")
    ]
    position: Annotated[str, Meta(description="All positions as one text, for `position=`.")]
    next: Annotated[str, Meta(description="The path of the next page.")]
    at_end: Annotated[bool, Meta(description="True if there are no more messages now.")]
    gaps: Annotated[list[GapAnswer], Meta(description="Messages that can't be read any more.")] = []


class _RawMessagesAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`MessagesAnswer`, with messages that are JSON already."""

    messages: list[Raw]
    positions: dict[str, str]
    position: str
    next: str
    at_end: bool
    gaps: list[GapAnswer] = []


async def read_topic(call: Call[MessagesQuery, None]) -> web.StreamResponse:
    return await _read(call, call.query, call.query.partition)


async def read_partition(call: Call[PartitionQuery, None]) -> web.StreamResponse:
    return await _read(call, call.query, _partition(call))


def _partition(call: Call[Any, Any]) -> int:
    given = call.path("partition")
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise InvalidArgumentError(f"{given[:40]!r} is not the number of a partition.")
    return int(given)


async def _read(
    call: Call[Any, None], query: PartitionQuery, partition: int | None
) -> web.StreamResponse:
    topic, client, options = call.path("topic"), call.client, call.listener.options
    call.permit.ask(Verb.SUBSCRIBE, topic)
    info = await client.describe_topic(topic)
    if partition is not None and partition >= len(info.partitions):
        raise no_partition(topic, len(info.partitions), partition)
    rendered = call.listener.rendered
    starts, resets = await _starts(call, query, info, partition)
    limits = (min(query.limit, options.read_messages_max), options.read_bytes_max)
    page = await PageReader(client, rendered, info, starts, limits).read()
    wait_seconds = min(query.wait_seconds, options.wait_seconds_max)
    if wait_seconds and not page.messages and not page.gaps and not resets:
        await call.listener.unless_draining(call.bus.wait_for_more(topic, page.next, wait_seconds))
        # Permissions may have changed meanwhile.
        call.permit.ask(Verb.SUBSCRIBE, topic)
        again = await client.describe_topic(topic)
        if again.number == info.number:
            page = await PageReader(client, rendered, again, page.next, limits).read()
    page.gaps[:0] = resets
    return _answer(call, query, partition, page)


async def _starts(
    call: Call[Any, None], query: PartitionQuery, info: TopicInfo, partition: int | None
) -> tuple[dict[int, int], list[GapAnswer]]:
    """The offset to begin at in each partition, and what a position has lost."""
    chosen = range(len(info.partitions)) if partition is None else (partition,)
    ends = {index: info.partitions[index].visible_end for index in chosen}
    if query.position is not None:
        return _continue(call, query.position, info, chosen)
    if query.offset is not None:
        if query.offset > max(ends.values()):
            raise OffsetOutOfRangeError(
                f"Offset {query.offset} is past the end of {info.name!r}, which is "
                f"{max(ends.values())}. To wait for new messages, use start=latest and "
                "wait_seconds."
            )
        return {index: min(query.offset, end) for index, end in ends.items()}, []
    if query.last is not None and query.time is None and partition is not None:
        first = info.partitions[partition].start_offset
        return {partition: max(first, ends[partition] - query.last)}, []
    found = await call.client.find_offsets(info.name, _named_start(query))
    return {index: found.get(index, end) for index, end in ends.items()}, []


def _named_start(query: PartitionQuery) -> Start:
    if query.last is not None and query.time is None:
        return Start("last", query.last)
    if query.time is not None:
        start = as_start(query.time, "time")
        # A bare number may be anything: an offset, or seconds since 1970.
        if start.kind != "time" or query.time.replace(".", "").isdecimal():
            raise InvalidArgumentError(
                f"{query.time!r} is not a time: write it as 2026-01-31T12:00:00Z, or as an age "
                "such as 10m or 2h."
            )
        return start
    return Start(query.start or "earliest")


def _continue(
    call: Call[Any, None], text: str, info: TopicInfo, chosen: Sequence[int]
) -> tuple[dict[int, int], list[GapAnswer]]:
    """A partition that the position does not name is newer than it, and is read from its start."""
    welcome = call.client.welcome
    epoch = 0 if welcome is None else welcome.epoch
    only = chosen[0] if len(chosen) == 1 else 0
    given = parse_event_id(text, info.name)
    if len(given) == 1 and ":" not in text:
        given = (msgspec.structs.replace(given[0], partition=only),)
    known = {p.partition: p for p in given if p.topic == info.name}
    starts: dict[int, int] = {}
    resets: list[GapAnswer] = []
    for index in chosen:
        position = known.get(index)
        if position is None:
            starts[index] = info.partitions[index].start_offset
            continue
        starts[index] = to = continue_at(info, epoch, position)
        if to != position.offset:
            resets.append(GapAnswer(partition=index, first=position.offset, to=to, reason="reset"))
    return starts, resets


def _answer(
    call: Call[Any, None], query: PartitionQuery, partition: int | None, page: MessagePage
) -> web.StreamResponse:
    positions = page.positions
    if len(positions) == 1:
        one = positions[0]
        position = print_position(one.offset, one.epoch, one.number)
    else:
        position = Vectors().of(positions).text
    if len(position) > POSITION_LENGTH_MAX:
        raise LimitError(
            f"Topic {page.info.name!r} has {len(page.info.partitions)} partitions, too many for "
            "one page. Read it partition by partition, with partition=."
        )
    path = _next(call, query, partition, position)
    body = msgspec.json.encode(
        _RawMessagesAnswer(
            messages=[Raw(message) for message in page.messages],
            positions=print_positions(positions),
            position=position,
            next=path,
            at_end=page.at_end,
            gaps=page.gaps,
        )
    )
    tag = f'W/"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {
        "ETag": tag,
        "Cache-Control": _IMMUTABLE if _never_changes(query, page) else _CHECK_AGAIN,
    }
    if len(path) < _LINK_LENGTH_MAX:
        headers["Link"] = f'<{path}>; rel="next"'
    if tag in (given.strip() for given in call.request.headers.get("If-None-Match", "").split(",")):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type="application/json", headers=headers)


def _next(
    call: Call[Any, None], query: PartitionQuery, partition: int | None, position: str
) -> str:
    """The path that continues this page: the same request, from its end."""
    wanted: dict[str, Any] = {"position": position, "limit": query.limit}
    if query.wait_seconds:
        wanted["wait_seconds"] = query.wait_seconds
    path = f"/v1/topics/{quote(call.path('topic'), safe='')}"
    if "partition" in call.request.match_info:
        path += f"/partitions/{partition}"
    elif partition is not None:
        wanted["partition"] = partition
    return f"{path}/messages?{urlencode(wanted)}"


def _never_changes(query: PartitionQuery, page: MessagePage) -> bool:
    """Whether the same request gets the same page at any time. An offset may be another topic's
    tomorrow, a page at the end grows, compaction takes messages, and what was written since the
    broker started without a sync may be lost with the power."""
    info = page.info
    if query.position is None or page.at_end or page.gaps or not page.messages:
        return False
    if info.settings.cleanup == "compact" or any(p.compacted_until for p in info.partitions):
        return False
    return info.settings.durability == "fsync" or page.newest_epoch < page.epoch


_ERRORS = (
    InvalidArgumentError,
    InvalidNameError,
    TopicNotFoundError,
    TopicDeletedError,
    PartitionNotFoundError,
    OffsetOutOfRangeError,
    StorageError,
)

_CACHED = (
    Param("ETag", "Send it as `If-None-Match`: the answer is 304 if nothing has changed."),
    Param("Cache-Control", "Whether a cache may store the page."),
    Param("Link", "The next page, as `rel=next`."),
)
_IF_CHANGED = Param("If-None-Match", "The `ETag` of an answer that the client already has.")
_EXAMPLE = {
    "messages": [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 41,
            "time": "2026-01-31T12:00:00.000000Z",
            "key": "order-1",
            "headers": {"content-type": "application/json"},
            "json": {"tea": 2},
        }
    ],
    "positions": {"orders/0": "42.3.7"},
    "position": "42.3.7",
    "next": "/v1/topics/orders/messages?position=42.3.7&limit=100",
    "at_end": True,
}

ROUTES = [
    Route(
        "GET",
        "/v1/topics/{topic}/messages",
        read_topic,
        "Read messages of a topic",
        "messages",
        description="Messages of all partitions in order of time. Follow `next` to get each "
        "message once. At the end, `wait_seconds` waits for the next message.",
        query=MessagesQuery,
        query_example={"limit": 10, "wait_seconds": 5},
        headers=(_IF_CHANGED,),
        answer=MessagesAnswer,
        answer_headers=_CACHED,
        answer_example=_EXAMPLE,
        also=(304,),
        errors=(*_ERRORS, LimitError),
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/messages",
        read_partition,
        "Read messages of a partition",
        "messages",
        query=PartitionQuery,
        query_example={"offset": 0, "limit": 10},
        headers=(_IF_CHANGED,),
        answer=MessagesAnswer,
        answer_headers=_CACHED,
        answer_example=_EXAMPLE,
        also=(304,),
        errors=_ERRORS,
    ),
]
