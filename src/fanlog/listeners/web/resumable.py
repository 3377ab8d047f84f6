"""Resumable streams over REST: begin, append, end, and read as events, text or JSON."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from fanlog.client.streams import IDLE_SECONDS, StreamMode, StreamReader
from fanlog.errors import (
    FanlogError,
    InvalidArgumentError,
    MessagesLostError,
    MessageTooLargeError,
    StreamEndedError,
    StreamFailedError,
    TopicExistsError,
    TopicNotFoundError,
)
from fanlog.format import streams
from fanlog.format.batch import Batch
from fanlog.format.messages import Position
from fanlog.format.requests import ERROR
from fanlog.format.streams import parse_position, position_text
from fanlog.format.web import RenderedRecords, partition_json
from fanlog.identity import Verb
from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.messages import MessageAnswer
from fanlog.listeners.web.openapi_names import STREAM_POSITION_PATTERN
from fanlog.listeners.web.resumable_events import StreamEvents, StreamTimeouts
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.streams import send_events
from fanlog.model import KIB, MIB, STREAM_PREFIX, DurabilityName

if TYPE_CHECKING:
    from fanlog.client.aio import Client

logger = logging.getLogger("fanlog.listeners")

# A buffering proxy would delay the whole stream.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_TEXT, _EVENTS, _JSON = "text/plain", "text/event-stream", "application/json"
Format = Literal["text", "sse", "json"]
# Keeps proxies from closing the connection, and detects a dead peer.
_COMMENT_SECONDS = 15.0


class StreamBeginQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is stored, and for how long."""

    ttl_seconds: Annotated[
        int,
        Meta(
            ge=1, description="Delete the stream when nothing was appended for this many seconds."
        ),
    ] = 3600
    durability: Annotated[
        DurabilityName, Meta(description="`os` and `fsync` survive a restart of the broker.")
    ] = "memory"
    bytes_max: Annotated[
        int,
        Meta(
            ge=4 * KIB,
            le=1024 * MIB,
            description="The most bytes that are kept in memory: the newest ones.",
        ),
    ] = 4 * MIB
    mode: Annotated[
        StreamMode,
        Meta(
            description="If the stream exists: `new` is an error, `continue` accepts it. "
            "`existing` never creates one."
        ),
    ] = "new"


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The position to read from, and the format."""

    position: Annotated[
        str,
        Meta(
            description="Resume here: a position from an answer or an event.",
            extra_json_schema={"pattern": STREAM_POSITION_PATTERN},
        ),
    ] = ""
    format: (
        Annotated[
            Format,
            Meta(description="`sse`: events. `text`: only the text. `json`: what is stored now."),
        ]
        | None
    ) = None
    wait_seconds: Annotated[
        float, Meta(ge=0, description="With `json`: wait this long for something new.")
    ] = 0.0
    idle_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="After this many seconds without a sign of the writer, it counts as dead.",
        ),
    ] = IDLE_SECONDS
    last_event_id: Annotated[
        str,
        Meta(
            description="The same as the header `Last-Event-ID`.",
            extra_json_schema={"pattern": STREAM_POSITION_PATTERN},
        ),
    ] = ""


class EndQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How the stream ends."""

    error: Annotated[
        str, Meta(description="The writer's error. Readers get it instead of a normal end.")
    ] = ""


class StreamBegun(msgspec.Struct, frozen=True, kw_only=True):
    """A stream. Its pieces are messages of the topic."""

    name: str
    topic: str


class PieceAppended(msgspec.Struct, frozen=True, kw_only=True):
    """The position of the piece."""

    offset: int


class StreamFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream ended too early."""

    code: str
    message: str


class StreamPieces(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces from the position on. If the stream has not ended, ask again with `position`."""

    messages: list[MessageAnswer]
    position: str
    ended: bool
    error: StreamFault | None = None


class _Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """The same, with messages that are JSON already."""

    messages: list[Raw]
    position: str
    ended: bool
    error: StreamFault | None = None


def _topic(call: Call[Any, Any], verb: Verb) -> str:
    name = call.path("name")
    call.permit.ask(verb, STREAM_PREFIX + name)
    return name


async def begin(call: Call[StreamBeginQuery, None]) -> StreamBegun:
    name, query = _topic(call, Verb.PUBLISH), call.query
    stream = call.client.stream(
        name,
        ttl_seconds=query.ttl_seconds,
        durability=query.durability,
        bytes_max=query.bytes_max,
        mode=query.mode,
    )
    await stream.open()
    return StreamBegun(name=name, topic=stream.topic)


async def append(call: Call[Nothing, bytes]) -> PieceAppended:
    name = _topic(call, Verb.PUBLISH)
    try:
        text = call.body.decode()
    except UnicodeDecodeError:
        receipt = await call.client.stream(name, bytes, mode="existing").append(call.body)
    else:
        receipt = await call.client.stream(name, mode="existing").append(text)
    return PieceAppended(offset=receipt.offset)


async def end(call: Call[EndQuery, None]) -> None:
    name = _topic(call, Verb.PUBLISH)
    await call.client.stream(name, mode="existing").end(error=call.query.error or None)


async def delete(call: Call[Nothing, None]) -> None:
    name = _topic(call, Verb.PUBLISH)
    await call.client.stream(name).delete()


# Reading


async def read(call: Call[ReadQuery, None]) -> web.StreamResponse | _Pieces:
    name, query, headers = _topic(call, Verb.SUBSCRIBE), call.query, call.request.headers
    topic = STREAM_PREFIX + name
    text = query.position or query.last_event_id or headers.get("Last-Event-ID", "")
    for given in filter(None, (query.position, query.last_event_id)):
        parse_position(given, topic)
    # A missing stream is a 404, not a broken answer.
    info = await call.client.describe_topic(topic)
    position = parse_position(text, topic) if text else Position(topic, 0, 0, 0, info.number)
    if position.number != info.number:
        raise MessagesLostError(
            f"The position {text} is of another stream {name!r}, which is gone: read this one from "
            "its start."
        )
    form = query.format or _wanted(headers.get("Accept", ""))
    if form == "json":
        wait_seconds = min(query.wait_seconds, call.listener.options.wait_seconds_max)
        return await _pieces(call.client, position, wait_seconds)
    if form == "text":
        stream = call.client.stream(name, bytes)
        return await _text(call, stream.read(position=text, idle_seconds=query.idle_seconds))
    if position.offset and await _is_behind_end(call.client, position):
        # After this status an EventSource does not reconnect.
        return web.Response(status=204)
    return await _events(call, topic, position if text else None)


def _wanted(accept: str) -> Format:
    if _EVENTS in accept:
        return "sse"
    return "json" if _JSON in accept else "text"


async def _is_behind_end(client: Client, position: Position) -> bool:
    """Whether a reader already has the end."""
    fetched = await client.fetch(position.topic, 0, position.offset - 1, bytes_max=1)
    return any(
        batch.offsets[i] < position.offset and streams.mark_of(batch, i) == streams.END
        for batch in fetched.batches
        for i in range(batch.header.record_count)
    )


async def _pieces(client: Client, position: Position, wait_seconds: float) -> _Pieces:
    """The pieces from the position on, or the next piece."""
    topic, wanted = position.topic, position.offset
    found: list[Raw] = []
    # From the record before the position: it may be the end.
    offset = max(0, wanted - 1)
    while True:
        # Only for what is new.
        waits = offset >= wanted and wait_seconds > 0
        fetched = await client.fetch(topic, 0, offset, wait_seconds=wait_seconds if waits else 0)
        offset = max(offset, wanted)
        for batch in fetched.batches:
            header, records = batch.header, RenderedRecords(batch).messages
            for i, at in enumerate(batch.offsets):
                mark = streams.mark_of(batch, i)
                if mark == streams.END:
                    return _ended(batch, i, found, max(at, wanted))
                if at >= wanted and mark is None:
                    found.append(Raw((partition_json(topic, 0) + records[i][1:]).encode()))
            offset = max(offset, batch.next_offset)
            position = Position(topic, 0, offset, header.leader_epoch, header.topic)
        if found or waits or not wait_seconds:
            return _Pieces(messages=found, position=position_text(position), ended=False)


def _ended(batch: Batch, index: int, found: list[Raw], offset: int) -> _Pieces:
    header = batch.header
    at = Position("", 0, offset, header.leader_epoch, header.topic)
    said = batch.columns.header(index, ERROR.encode())
    fault = None
    if said is not None:
        fault = StreamFault(code=StreamFailedError.code, message=said.decode(errors="replace"))
    return _Pieces(messages=found, position=position_text(at), ended=True, error=fault)


async def _text(call: Call[Any, Any], reader: StreamReader[bytes]) -> web.StreamResponse:
    """The text alone. If it ends too early, the connection breaks, so that an incomplete text never
    looks complete."""
    response = web.StreamResponse(headers=_HEADERS)
    response.content_type, response.charset = _TEXT, "utf-8"
    await response.prepare(call.request)
    try:
        async for piece in reader:
            await response.write(piece)
    except FanlogError as fault:
        logger.debug("a stream broke off: %s", fault)
        if call.request.transport is not None:
            call.request.transport.abort()
        return response
    await response.write_eof()
    return response


async def _events(
    call: Call[ReadQuery, Any], topic: str, position: Position | None
) -> web.StreamResponse:
    connection = WebConnection(call.listener, call.listener.peer_of(call.request))
    patience = StreamTimeouts(call.query.idle_seconds, _COMMENT_SECONDS)
    events = StreamEvents(call.listener, connection, call.guest, patience)
    return await send_events(call, connection, events, events.begin(topic, position))


_NOT_FOUND = (InvalidArgumentError, TopicNotFoundError)

ROUTES = [
    Route(
        "POST",
        "/v1/streams/{name}",
        begin,
        "Begin a stream",
        "streams",
        query=StreamBeginQuery,
        answer=StreamBegun,
        status=201,
        errors=(InvalidArgumentError, TopicExistsError, TopicNotFoundError, StreamEndedError),
    ),
    Route(
        "POST",
        "/v1/streams/{name}/append",
        append,
        "Append to a stream",
        "streams",
        body=bytes,
        answer=PieceAppended,
        description="The body is what is appended, unchanged.",
        errors=(*_NOT_FOUND, StreamEndedError, MessageTooLargeError),
    ),
    Route(
        "POST",
        "/v1/streams/{name}/end",
        end,
        "End a stream",
        "streams",
        status=204,
        query=EndQuery,
        errors=(*_NOT_FOUND, StreamEndedError),
    ),
    Route(
        "GET",
        "/v1/streams/{name}",
        read,
        "Read a stream to its end",
        "streams",
        query=ReadQuery,
        answer=StreamPieces,
        texts=(_TEXT, _EVENTS),
        also=(204,),
        description="As events if `Accept` or `format` says so, as JSON, or otherwise as text. "
        "Events and text continue until the stream ends. JSON returns what is "
        "stored; use its position for the next request.",
        errors=(*_NOT_FOUND, MessagesLostError),
    ),
    Route(
        "DELETE",
        "/v1/streams/{name}",
        delete,
        "Delete a stream before it expires",
        "streams",
        status=204,
        errors=_NOT_FOUND,
        action="stream.delete",
    ),
]
