"""Details for people: one message with its whole value; and the time range of the messages of
topics, with counts by time."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from fanlog.broker.insight.stretches import OffsetGap, read_pieces
from fanlog.broker.names import check_name
from fanlog.errors import (
    DamagedError,
    FormatError,
    OffsetOutOfRangeError,
    UnreadableError,
    no_partition,
)
from fanlog.format.batch import Batch, split_batches
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.header import read_header
from fanlog.format.web import rfc3339
from fanlog.identity import Verb
from fanlog.listeners.web.explorer_records import BatchRecords, trace_of, value_format
from fanlog.listeners.web.explorer_requests import ERRORS, ExploredQuery, explorer_of
from fanlog.listeners.web.openapi_names import PATH_SCHEMAS
from fanlog.listeners.web.routes import Call, Route
from fanlog.model import PARTITIONS_MAX

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import Partition
    from fanlog.listeners.web.explorer_topics import Chosen

_OFFSET_MAX = (1 << 63) - 1
VALUE_BYTES_MAX = 16 << 20
# A multiple of three, so that parts of base64 can be joined.
_BASE64_BYTES = 768 * 1024
_BUCKETS_MAX = 120
# With more partitions, messages are not counted by time: each count takes a few reads.
_COUNTED_PARTITIONS_MAX = 32
# Partitions whose first message is read for its time.
_OLDEST_PARTITIONS_MAX = 64
_READS_AT_A_TIME = 8


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which message."""

    topic: Annotated[
        str, Meta(description="The topic's name.", extra_json_schema=PATH_SCHEMAS["topic"])
    ]
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX, description="The partition.")]
    offset: Annotated[int, Meta(ge=0, le=_OFFSET_MAX, description="The message's offset.")]
    value_bytes: Annotated[
        int, Meta(ge=0, le=VALUE_BYTES_MAX, description="The largest number of bytes of the value.")
    ] = 1 << 20


class MessageDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and the batch that it is in. Bytes are base64, so that nothing is changed."""

    topic: str
    partition: int
    offset: int
    time: Annotated[str, Meta(description="When the broker appended it, RFC 3339 in UTC.")]
    event_time: Annotated[str, Meta(description="The time of the event, as its publisher gave it.")]
    key_base64: Annotated[str, Meta(description="The key.")] | None
    headers: Annotated[
        list[list[str]], Meta(description="The name of each header, and its content as base64.")
    ]
    trace: str
    format: Annotated[str, Meta(description="json, text, binary or deleted.")]
    value_base64: Annotated[str, Meta(description="The value, or its beginning.")] | None
    bytes: Annotated[int, Meta(description="The size of the whole value.")]
    truncated: Annotated[bool, Meta(description="Whether the value is cut off.")]
    batch_offset: Annotated[int, Meta(description="The first offset of its batch.")]
    batch_messages: int
    batch_bytes: Annotated[int, Meta(description="The size of the stored batch.")]
    codec: Annotated[str, Meta(description="How the batch is compressed: none, zlib, zstd, lz4.")]
    priority: int
    epoch: Annotated[int, Meta(description="The epoch of the log when the message was written.")]
    producer_id: int
    sequence: Annotated[int, Meta(description="The message's sequence number from its producer.")]


async def show_message(call: Call[MessageQuery, None]) -> web.StreamResponse:
    explorer_of(call)
    query, core = call.query, call.bus.core
    call.permit.ask(Verb.SUBSCRIBE, check_name(query.topic))
    topic = core.catalog.get(query.topic)
    if query.partition >= len(topic.partitions):
        raise no_partition(query.topic, len(topic.partitions), query.partition)
    partition = topic.partitions[query.partition]
    if not partition.log.start_offset <= query.offset < partition.visible_end:
        raise _not_there(partition, query.offset)
    found = await read_pieces(core.reading, partition, query.offset, query.offset + 1, 1)
    if isinstance(found, OffsetGap):
        if found.reason == "damaged":
            raise DamagedError(
                f"Records {found.first} to {found.next - 1} of partition {query.partition} of "
                f"{query.topic!r} are damaged on disk.",
                found.first,
                found.next,
            )
        raise _not_there(partition, query.offset)
    limits = core.unpacker.limits
    body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(result: bytes | Exception) -> None:
        if body.done():
            return
        if isinstance(result, Exception):
            body.set_exception(result)
        else:
            body.set_result(result)

    core.unpacker.in_thread(
        limits.bytes_max, lambda: _detail(partition, found[0], query, limits), done
    )
    return web.Response(
        body=await body,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _not_there(partition: Partition, offset: int) -> OffsetOutOfRangeError:
    start, end = partition.log.start_offset, partition.visible_end
    return OffsetOutOfRangeError(
        f"There is no message {offset} in partition {partition.index} of "
        f"{partition.topic.name!r} (any more): it has the offsets {start} to {end - 1}, and "
        "compaction may have taken some of them."
        if start < end
        else f"Partition {partition.index} of {partition.topic.name!r} has no messages."
    )


def _detail(
    partition: Partition, pieces: Sequence[memoryview], query: MessageQuery, limits: UnpackLimits
) -> bytes:
    """The answer as JSON. Runs in a thread: the value may be large."""
    for piece in pieces:
        for at, header in split_batches(piece):
            if header.next_offset > query.offset:
                batch = Batch(piece[at : at + header.length], header, query.topic, limits)
                try:
                    return _rendered(partition, batch, query)
                except UnreadableError:
                    raise
                except FormatError as fault:
                    raise batch.unreadable(fault) from fault
    raise _not_there(partition, query.offset)


def _rendered(partition: Partition, batch: Batch, query: MessageQuery) -> bytes:
    records, header = BatchRecords(batch), batch.header
    indexes = records.indexes(query.offset, query.offset + 1)
    if not indexes:
        raise _not_there(partition, query.offset)
    i = indexes[0]
    key, value, headers = records.key(i), records.value(i), records.headers(i)
    times = batch.columns.event_times_us
    detail = MessageDetail(
        topic=query.topic,
        partition=query.partition,
        offset=query.offset,
        time=rfc3339(header.append_time_us),
        event_time="" if times is None else rfc3339(times[i]),
        key_base64=None if key is None else b64encode(key).decode(),
        headers=[
            [name.decode(errors="replace"), b64encode(content).decode()]
            for name, content in headers
        ],
        trace=trace_of(headers),
        format=value_format(value, headers, VALUE_BYTES_MAX)[0],
        value_base64=None,
        bytes=0 if value is None else len(value),
        truncated=value is not None and len(value) > query.value_bytes,
        batch_offset=header.base_offset,
        batch_messages=header.record_count,
        batch_bytes=header.length,
        codec=Codec(header.codec).label,
        priority=header.priority,
        epoch=header.leader_epoch,
        producer_id=header.producer_id,
        sequence=header.first_sequence + i,
    )
    fields = msgspec.structs.asdict(detail)
    if value is not None:
        fields["value_base64"] = Raw(_base64_json(value[: query.value_bytes]))
    return msgspec.json.encode(fields)


def _base64_json(data: bytes) -> bytes:
    """Bytes as base64 in quotes. Encoded in parts, because one long call would block all other
    threads."""
    parts = [b64encode(data[at : at + _BASE64_BYTES]) for at in range(0, len(data), _BASE64_BYTES)]
    return b"".join((b'"', *parts, b'"'))


class RangeQuery(ExploredQuery, frozen=True, kw_only=True):
    buckets: Annotated[
        int,
        Meta(
            ge=0,
            le=_BUCKETS_MAX,
            description="Divide the time into this many parts, and count the messages in each. "
            "Not with more than "
            f"{_COUNTED_PARTITIONS_MAX} partitions.",
        ),
    ] = 0


class ExploredRange(msgspec.Struct, frozen=True, kw_only=True):
    """The time range of the messages, and their counts."""

    topics: int
    all_topics: bool
    partitions: int
    messages: Annotated[
        int, Meta(description="The number of messages, calculated from their offsets.")
    ]
    bytes: int
    oldest: Annotated[
        str, Meta(description="When the oldest message was appended. Empty: there is none.")
    ]
    newest: Annotated[str, Meta(description="When the newest message was appended.")]
    counts: Annotated[
        list[int],
        Meta(description="The number of messages in each part of the time between the two."),
    ]
    start_offset: Annotated[int, Meta(description="The lowest offset of the partitions.")]
    end_offset: Annotated[int, Meta(description="The offset after the highest one.")]


async def show_range(call: Call[RangeQuery, None]) -> ExploredRange:
    query, core = call.query, call.bus.core
    explorer = explorer_of(call)
    chosen = await explorer.topics.choose(query.topic, set(query.partition), call.permit)
    filled = [p for p in chosen.partitions if p.log.start_offset < p.visible_end]
    key = (
        *(query.buckets, chosen.topics, chosen.is_all, len(chosen.partitions)),
        *((p.topic.number, p.index) for p in filled),
    )
    return await explorer.shared(key, lambda: _range(core, chosen, filled, query.buckets))


async def _range(
    core: BrokerCore, chosen: Chosen, filled: Sequence[Partition], buckets: int
) -> ExploredRange:
    ends = [(p.log.start_offset, p.visible_end) for p in filled]
    newest_us = max((p.last_time_us for p in filled), default=0)
    oldest_us = await _oldest_us(core, filled)
    counts: list[int] = []
    if buckets and filled and len(filled) <= _COUNTED_PARTITIONS_MAX:
        counts = await _counts(core, filled, oldest_us, newest_us, buckets)
    return ExploredRange(
        topics=chosen.topics,
        all_topics=chosen.is_all,
        partitions=len(chosen.partitions),
        messages=sum(end - start for start, end in ends),
        bytes=sum(p.log.bytes for p in chosen.partitions),
        oldest=rfc3339(oldest_us) if filled else "",
        newest=rfc3339(newest_us) if filled else "",
        counts=counts,
        start_offset=min((start for start, _ in ends), default=0),
        end_offset=max((end for _, end in ends), default=0),
    )


async def _oldest_us(core: BrokerCore, partitions: Sequence[Partition]) -> int:
    """The time of the oldest message, if it can be read."""
    room = asyncio.Semaphore(_READS_AT_A_TIME)

    async def first_us(partition: Partition) -> int:
        async with room:
            start = partition.log.start_offset
            found = await read_pieces(core.reading, partition, start, partition.visible_end, 1)
            if isinstance(found, OffsetGap) or not found[0]:
                return partition.last_time_us
            return read_header(found[0][0]).append_time_us

    looked_at = partitions[:_OLDEST_PARTITIONS_MAX]
    return min(await asyncio.gather(*map(first_us, looked_at)), default=0)


async def _counts(
    core: BrokerCore, partitions: Sequence[Partition], oldest_us: int, newest_us: int, buckets: int
) -> list[int]:
    """The number of messages in each time slot, by their offsets."""
    step_us = max(1, (newest_us - oldest_us) // buckets + 1)
    bounds = [oldest_us + i * step_us for i in range(1, buckets)]
    room = asyncio.Semaphore(_READS_AT_A_TIME)

    async def count(partition: Partition) -> list[int]:
        log, end = partition.log, partition.visible_end

        def search() -> list[int]:
            # A bound after the last message needs no search.
            last_us = log.last_time_us
            return [end if us > last_us else min(end, log.offset_at(us)) for us in bounds]

        async with room:
            found = [log.start_offset, *await core.threaded(search), end]
        return [max(0, b - a) for a, b in pairwise(found)]

    counted = await asyncio.gather(*map(count, partitions))
    return [sum(column) for column in zip(*counted, strict=True)]


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/explore/message",
        show_message,
        "Read one message with its whole value",
        "messages",
        description="Its key, headers and value as bytes, and the batch that contains it.",
        query=MessageQuery,
        query_example={"topic": "orders", "partition": 0, "offset": 0},
        answer=MessageDetail,
        errors=(*ERRORS, OffsetOutOfRangeError, UnreadableError),
    ),
    Route(
        "GET",
        "/v1/explore/range",
        show_range,
        "Show when messages were published, and how many",
        "messages",
        description="For one topic or several. `buckets` divides the time into that many parts,"
        " and counts the messages in each.",
        query=RangeQuery,
        query_example={"topic": ["orders"], "buckets": 60},
        answer=ExploredRange,
        errors=ERRORS,
    ),
]
