"""One topic in detail: its figures and damage, and page by page its partitions, segments, readers,
groups, queues and producers. Any of these may be very many."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.broker.insight.topic_segments import segments_in
from fanlog.broker.insight.topic_table import TopicFigures, TopicState, figures_of, is_own
from fanlog.broker.insight.topic_users import TopicGroup, TopicProducer, TopicReader, is_transaction
from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    NotSupportedError,
    PartitionNotFoundError,
    TopicNotFoundError,
    no_partition,
)
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.topic_answers import (
    DamagedPart,
    FailedLog,
    TopicDetails,
    TopicGroupDetails,
    TopicGroupsPage,
    TopicPartitionDetails,
    TopicPartitionsPage,
    TopicProducerDetails,
    TopicProducersPage,
    TopicReaderDetails,
    TopicReadersPage,
    TopicSegmentDetails,
    TopicSegmentsPage,
)
from fanlog.model import PARTITIONS_MAX, GroupKind, ReaderCounters

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic, Partition

Section = Literal["partitions", "segments", "readers", "groups", "producers"]

# Damaged ranges, and logs that have failed, that an answer lists.
_DAMAGE_MAX = 100
_A_STEP = 64


class DetailsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of a topic."""

    show: (
        Annotated[
            Section,
            Meta(description="A list to return with the summary. Without it, only the summary."),
        ]
        | None
    ) = None
    partition: (
        Annotated[
            int,
            Meta(
                ge=0,
                lt=PARTITIONS_MAX,
                description="Only segments or producers of this partition.",
            ),
        ]
        | None
    ) = None
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Entries to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, description="The largest number of entries in the answer.")
    ] = 50


async def look_into(call: Call[DetailsQuery, None]) -> TopicDetails:
    name, query, permit = call.path("topic"), call.query, call.permit
    permit.ask(Verb.DESCRIBE, name)
    broker = call.broker
    topic = broker.catalog.get(name)
    if query.partition is not None and query.partition >= len(topic.partitions):
        raise no_partition(name, len(topic.partitions), query.partition)
    limit = min(query.limit, call.listener.options.page_entries_max)
    lags = await broker.topic_table.lags()
    lag = lags.get(name)
    figures = await broker.slices.result(figures_of(topic))
    found = await broker.slices.result(_summary(topic, figures, None if lag is None else lag.lag))
    if query.show is None:
        return found
    section = await _section(broker, topic, permit, query, limit)
    return msgspec.structs.replace(found, **{query.show: section})


def _summary(
    topic: BrokerTopic, figures: TopicFigures, lag: int | None
) -> Generator[None, None, TopicDetails]:
    damaged: list[DamagedPart] = []
    failed: list[FailedLog] = []
    segments = 0
    for i, partition in enumerate(topic.partitions):
        if not (i + 1) % _A_STEP:
            yield
        log = partition.log
        segments += log.segment_count
        if log.failure is not None and len(failed) < _DAMAGE_MAX:
            failed.append(FailedLog(partition=i, reason=str(log.failure)))
        damaged += [
            DamagedPart(
                partition=i, first=part.first, next=part.next, file=part.file, reason=part.reason
            )
            for part in log.damaged[: _DAMAGE_MAX - len(damaged)]
        ]
    rates = topic.rates or (0.0, 0.0)
    return TopicDetails(
        name=topic.name,
        number=topic.number,
        internal=is_own(topic.name),
        settings=topic.settings,
        partition_count=len(topic.partitions),
        messages=figures.messages,
        published=figures.published,
        bytes=figures.bytes,
        segment_count=segments,
        messages_per_second=round(rates[0], 3),
        bytes_per_second=round(rates[1], 3),
        newest_us=figures.newest_us,
        reader_count=figures.readers,
        lag=lag,
        state=figures.state,
        damaged=damaged,
        failed=failed,
        counters=topic.counters or ReaderCounters(),
    )


async def _section(
    broker: BrokerCore, topic: BrokerTopic, permit: Permit, query: DetailsQuery, limit: int
) -> msgspec.Struct:
    offset = query.offset
    if query.show == "partitions":
        some = topic.partitions[offset : offset + limit]
        rows = [_partition(one) async for one in broker.slices.each(some)]
        return TopicPartitionsPage(rows=rows, total=len(topic.partitions), offset=offset)
    if query.show == "segments":
        found, total = await broker.slices.result(
            segments_in(topic, query.partition, offset, limit)
        )
        files = [TopicSegmentDetails(**one._asdict()) for one in found]
        return TopicSegmentsPage(rows=files, total=total, offset=offset)
    if query.show == "readers":
        return await _readers(broker, topic, permit, offset, limit)
    if query.show == "groups":
        return await _groups(broker, topic, permit, offset, limit)
    return await _producers(broker, topic, permit, query, limit)


def _partition(partition: Partition) -> TopicPartitionDetails:
    log, end = partition.log, partition.visible_end
    state: TopicState = "ok" if log.failure is None else "failed"
    return TopicPartitionDetails(
        partition=partition.index,
        start_offset=log.start_offset,
        end_offset=end,
        messages=max(0, end - log.start_offset),
        bytes=log.bytes,
        segments=log.segment_count,
        readers=partition.readers,
        newest_us=log.last_time_us,
        compacted_until=log.compacted_until,
        damaged=sum(part.next - part.first for part in log.damaged),
        state="damaged" if state == "ok" and log.damaged else state,
    )


async def _readers(
    broker: BrokerCore, topic: BrokerTopic, permit: Permit, offset: int, limit: int
) -> TopicReadersPage:
    found, complete = await broker.topic_users.readers(topic)
    restricted = not permit.may(Verb.ADMIN, "")
    some = [] if restricted else found[offset : offset + limit]
    # They are in the order of their lag.
    behind = _count_behind(found)
    return TopicReadersPage(
        rows=[_reader(one) for one in some],
        total=len(found),
        offset=offset,
        restricted=restricted,
        complete=complete,
        behind=behind,
    )


def _count_behind(found: list[TopicReader]) -> int:
    low, high = 0, len(found)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if found[middle].lag else (low, middle)
    return low


def _reader(reader: TopicReader) -> TopicReaderDetails:
    return TopicReaderDetails(
        connection=reader.connection,
        transport=reader.transport,
        user=reader.user,
        address=reader.address,
        client=reader.client,
        target=reader.target,
        group=reader.group,
        policy=reader.policy,
        partitions=reader.partitions,
        position=reader.position,
        lag=reader.lag,
        live=reader.live,
    )


async def _groups(
    broker: BrokerCore, topic: BrokerTopic, permit: Permit, offset: int, limit: int
) -> TopicGroupsPage:
    found = await broker.topic_users.groups(topic)
    if permit.guarded:
        verbs: dict[GroupKind, Verb] = {"stream": Verb.GROUP, "queue": Verb.QUEUE}
        found = [
            one
            async for one in broker.slices.each(found)
            if permit.may_see(verbs[one.kind], one.name)
        ]
    rows = [_group(one) for one in found[offset : offset + limit]]
    return TopicGroupsPage(rows=rows, total=len(found), offset=offset)


def _group(group: TopicGroup) -> TopicGroupDetails:
    return TopicGroupDetails(**group._asdict())


async def _producers(
    broker: BrokerCore, topic: BrokerTopic, permit: Permit, query: DetailsQuery, limit: int
) -> TopicProducersPage:
    found, complete = await broker.topic_users.producers(topic, query.partition)
    some = found[query.offset : query.offset + limit]
    times = broker.topic_users.times
    # Deleted records have no time, and are not searched.
    kept = [
        (partition, one.offset)
        for one in some
        if one.offset >= (partition := topic.partitions[one.partition]).log.start_offset
    ]
    await times.load(kept)
    known = {(p.index, offset): times.maybe_time(p, offset) for p, offset in kept}
    rows = [_producer(broker, permit, one, known.get((one.partition, one.offset))) for one in some]
    return TopicProducersPage(rows=rows, total=len(found), offset=query.offset, complete=complete)


def _producer(
    broker: BrokerCore, permit: Permit, one: TopicProducer, time_us: int | None
) -> TopicProducerDetails:
    name = broker.producers.name_of(one.id)
    return TopicProducerDetails(
        id=one.id,
        name=name if name and permit.may(Verb.PRODUCER, name) else "",
        epoch=one.epoch,
        transaction=is_transaction(one.id),
        partitions=one.partitions,
        partition=one.partition,
        sequence=one.sequence,
        offset=one.offset,
        time_us=time_us or None,
    )


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/topics/{topic}/details",
        look_into,
        "Inspect a topic",
        "topics",
        description="A summary of a topic, and a page of one list: its partitions, the files of"
        " its log (`segments`), its readers, the groups and queues that read it, or"
        " its producers. The size of the summary does not depend on the number of "
        "partitions. Only admins see who the readers are. Very long lists of "
        "readers, groups and producers may be some seconds old.",
        query=DetailsQuery,
        query_example={"show": "readers"},
        answer=TopicDetails,
        errors=(
            InvalidArgumentError,
            InvalidNameError,
            TopicNotFoundError,
            PartitionNotFoundError,
            NotSupportedError,
        ),
    ),
]
