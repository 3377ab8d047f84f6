"""The endpoints that stream: `/v1/ws`, and streams of some topics as WebSocket or as server-sent
events. aiohttp has read the request; once its subscriptions have begun, the connection is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from fanlog.errors import InvalidArgumentError
from fanlog.format.patterns import fits, is_pattern, meet
from fanlog.format.web_filters import make_filter
from fanlog.format.web_positions import parse_positions
from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.connection_presence import Wish, read_wish
from fanlog.listeners.web.events import EventStream, positions_for, read_event_id
from fanlog.listeners.web.following import WantedSubscription, read_start
from fanlog.listeners.web.group_stream import (
    Consumer,
    GroupWanted,
    Prefetch,
    Reset,
    StreamCommitMode,
    TicketText,
    User,
    join_group,
)
from fanlog.listeners.web.operations import Missing, StartSpec
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.session import WebSession, own_topic
from fanlog.listeners.web.stream_protocol import StreamProtocol
from fanlog.listeners.web.websocket import (
    HandshakeError,
    WebSocketStream,
    refusal,
    shake_hands,
    taken,
    wants_websocket,
)
from fanlog.model import SlowPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from fanlog.format.messages import Position

_EVENTS_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    # Proxies keep nothing of it, and hold nothing back.
    "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\nConnection: close\r\n"
)


class WsQuery(msgspec.Struct, frozen=True):
    """The user that connects."""

    user: User = ""
    ticket: TicketText = ""


class StreamQuery(WsQuery, frozen=True, kw_only=True):
    """Where a stream begins, and what it lets through."""

    start: Annotated[str, Meta(description="`live`, `earliest`, an offset, a time or an age.")] = ""
    offset: Annotated[int, Meta(ge=0, description="Start at this offset.")] | None = None
    partition: Annotated[int, Meta(ge=0, description="The partition of `offset`.")] | None = None
    time: (
        Annotated[str, Meta(description="Start at a time (RFC 3339) or an age such as `10m`.")]
        | None
    ) = None
    last: (
        Annotated[int, Meta(ge=0, description="Start this many messages before the end.")] | None
    ) = None
    position: (
        Annotated[str, Meta(description="Resume at a position, or at the id of an event.")] | None
    ) = None
    positions: (
        Annotated[str, Meta(description="Resume at the positions in this JSON object.")] | None
    ) = None
    last_event_id: (
        Annotated[str, Meta(description="The same as the header `Last-Event-ID`.")] | None
    ) = None
    key: Annotated[str, Meta(description="Only messages whose key matches this glob.")] | None = (
        None
    )
    header: Annotated[
        dict[str, list[str]],
        Meta(description="`header.NAME=value`: only messages with this header."),
    ] = {}
    latest: Annotated[
        bool, Meta(description="Send the latest value of each key of a compacted topic first.")
    ] = False
    presence: Annotated[
        str,
        Meta(
            description="`true`, or a JSON object with info: be present in the topic, and see "
            "who else is."
        ),
    ] = ""
    missing: Annotated[
        Missing, Meta(description="Whether to wait for a topic that does not exist.")
    ] = "wait"
    policy: Annotated[
        SlowPolicy,
        Meta(
            description="What happens to a reader that can't keep up: it reads everything "
            "later, skips to the newest messages with a gap, or is disconnected."
        ),
    ] = SlowPolicy.CATCH_UP


class TopicQuery(StreamQuery, frozen=True, kw_only=True):
    """The same for one topic, also as a member of a group."""

    group: Annotated[
        str,
        Meta(
            description="Share the topic's partitions with the other members of this group, as "
            "on a WebSocket."
        ),
    ] = ""
    consumer: Consumer = ""
    commit: StreamCommitMode = "auto"
    reset: Reset = "latest"
    prefetch: Prefetch = 1000


class TopicsStreamQuery(StreamQuery, frozen=True, kw_only=True):
    """The same for several topics."""

    topic: Annotated[list[str], Meta(description="A topic or a pattern. It may be repeated.")] = []


async def open_websocket(call: Call[WsQuery, Any]) -> web.StreamResponse:
    """One WebSocket for any number of subscriptions."""
    call.guest.act_for(call.query.user)
    return await _websocket(call, [])


async def stream_topic(call: Call[TopicQuery, Any]) -> web.StreamResponse:
    query = call.query
    if query.group:
        return join_group(call, GroupWanted(query.group, call.path("topic"), query), query.user)
    return await _stream(call, [call.path("topic")])


async def stream_topics(call: Call[TopicsStreamQuery, Any]) -> web.StreamResponse:
    if not call.query.topic:
        raise InvalidArgumentError("Name a topic or a pattern, such as ?topic=chat.*.")
    return await _stream(call, call.query.topic)


async def _stream(call: Call[Any, Any], targets: Sequence[str]) -> web.StreamResponse:
    options = call.listener.options
    call.guest.act_for(call.query.user)
    user = call.guest.who.user
    targets = [own_topic(target, user, options.user_topic) for target in targets]
    targets = _distinct(targets)
    if len(targets) > options.subscriptions_max:
        raise InvalidArgumentError(
            f"{len(targets)} targets are more than web.subscriptions_max allows."
        )
    wanted = _wanted(call.query, targets, call.request)
    presence = read_wish(call.query.presence)
    if wants_websocket(call.request):
        return await _websocket(call, wanted, presence)
    return await _events(call, wanted, presence)


async def _websocket(
    call: Call[Any, Any], wanted: Sequence[WantedSubscription], presence: Wish = False
) -> web.StreamResponse:
    """Takes the connection over as a WebSocket, or says why not."""
    listener, request = call.listener, call.request
    try:
        agreed = shake_hands(request)
    except HandshakeError as fault:
        return refusal(fault)
    connection = WebConnection(listener, listener.peer_of(request))
    session = WebSession(listener, connection, call.guest, binary=agreed.binary)
    stranger, now = not call.guest.logged_in, listener.loop.time()
    session.protocol = WebSocketStream(
        connection, listener.options, session, now, stranger=stranger
    )
    try:
        await session.begin(wanted, presence)
        _check_open(connection)
        connection.belong_to(call.guest.who.account)
        listener.take_over(request, connection, session.protocol, agreed.head)
    except BaseException:
        session.closed()
        connection.belong_to(None)
        raise
    session.start()
    return taken()


async def _events(
    call: Call[Any, Any], wanted: Sequence[WantedSubscription], presence: Wish
) -> web.StreamResponse:
    """Takes the connection over as a stream of events."""
    listener, request = call.listener, call.request
    connection = WebConnection(listener, listener.peer_of(request))
    events = EventStream(listener, connection, call.guest)
    return await send_events(call, connection, events, events.begin(wanted, presence))


class Events(StreamProtocol, Protocol):
    """What is spoken on a connection of events."""

    def start(self) -> None: ...


async def send_events(
    call: Call[Any, Any], connection: WebConnection, events: Events, begin: Awaitable[None]
) -> web.StreamResponse:
    """Gives a request's connection to events, once they have begun."""
    listener, request = call.listener, call.request
    allowed = listener.origins.answer_headers(request.headers)
    head = _EVENTS_HEAD + "".join(f"{name}: {value}\r\n" for name, value in allowed.items())
    # An origin is repeated as it was sent: aiohttp keeps what is not UTF-8.
    head_bytes = f"{head}\r\n".encode("utf-8", "surrogateescape")
    try:
        await begin
        _check_open(connection)
        connection.belong_to(call.guest.who.account)
        listener.take_over(request, connection, events, head_bytes)
    except BaseException:
        events.closed()
        connection.belong_to(None)
        raise
    events.start()
    return taken()


def _check_open(connection: WebConnection) -> None:
    """What happened to the subscriptions while they began."""
    if connection.fault is not None:
        raise connection.fault


def _distinct(targets: Sequence[str]) -> list[str]:
    """Targets of one stream, without those that another one includes. Two that share only some
    topics would make it unclear where the reader is."""
    unique = list(dict.fromkeys(targets))
    kept = [
        target
        for target in unique
        if is_pattern(target)
        or not any(is_pattern(other) and fits(target, other) for other in unique)
    ]
    for i, target in enumerate(kept):
        for other in kept[i + 1 :]:
            if meet(target, other):
                raise InvalidArgumentError(
                    f"{target!r} and {other!r} share topics. Use a stream for each, or a WebSocket."
                )
    return kept


def _wanted(
    query: StreamQuery, targets: Sequence[str], request: web.Request
) -> list[WantedSubscription]:
    positions = _positions(query, targets, request)
    at = StartSpec(query.offset, query.partition, query.time, query.last)
    if query.start and at != StartSpec():
        raise InvalidArgumentError("Give only one of start, offset, time and last.")
    start, partitions = read_start(query.start or ("live" if at == StartSpec() else at))
    spec: dict[str, object] = {} if query.key is None else {"key": query.key}
    if query.header:
        spec["headers"] = query.header
    chosen = make_filter(spec)
    return [
        WantedSubscription(
            target=target,
            kind="json",
            start=start,
            partitions=partitions,
            positions=None if positions is None else positions_for(positions, target),
            filter=chosen,
            latest=query.latest,
            missing=query.missing,
            policy=query.policy,
        )
        for target in targets
    ]


def _positions(
    query: StreamQuery, targets: Sequence[str], request: web.Request
) -> tuple[Position, ...] | None:
    """Where the reader was. A browser that comes back by itself says it in a header; the address
    that it uses is the old one, so that the header wins."""
    own = request.headers.get(hdrs.LAST_EVENT_ID) or query.last_event_id or query.position
    if own:
        return read_event_id(own, targets)
    if query.positions is None:
        return None
    try:
        given = msgspec.json.decode(query.positions, type=dict[str, str])
    except msgspec.DecodeError as fault:
        raise InvalidArgumentError(
            f"`positions` is not a JSON object of positions: {fault}."
        ) from None
    return parse_positions(given)


_STREAM_NOTE = (
    "A WebSocket if the request asks for one, otherwise server-sent events. The id of an event "
    "resumes exactly after it, on any process."
)

ROUTES = [
    Route(
        "GET",
        "/v1/ws",
        open_websocket,
        "Many subscriptions on one WebSocket",
        "streams",
        query=WsQuery,
        status=101,
        answer_type="",
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/stream",
        stream_topic,
        "Follow a topic or a pattern",
        "streams",
        query=TopicQuery,
        query_example={"last": 10},
        description=_STREAM_NOTE,
        answer=str,
        answer_type="text/event-stream",
        also=(101,),
    ),
    Route(
        "GET",
        "/v1/stream",
        stream_topics,
        "Follow several topics or patterns",
        "streams",
        query=TopicsStreamQuery,
        query_example={"topic": "chat.*"},
        description=_STREAM_NOTE,
        answer=str,
        answer_type="text/event-stream",
        also=(101,),
    ),
]
