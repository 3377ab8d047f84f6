"""Topics over REST: create, list, describe, alter, grow, truncate, compact and delete. Bodies and
answers are in `topic_bodies.py`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from fanlog.client.arguments import as_start
from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicDiffersError,
    TopicExistsError,
    TopicNotFoundError,
    no_partition,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Nothing, Param, Route
from fanlog.listeners.web.topic_bodies import (
    Growth,
    NewTopic,
    TopicChanges,
    TopicsPage,
    TopicsQuery,
    Truncated,
    Truncation,
    given_settings,
)
from fanlog.model import PartitionInfo, TopicInfo

if TYPE_CHECKING:
    from fanlog.client.aio import Client


def _settings_text(call: Call[Nothing, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given_settings(call.body).items())


async def create(call: Call[Nothing, Any]) -> web.StreamResponse:
    body = call.body
    permit, settings = call.permit, given_settings(body)
    permit.ask(Verb.MANAGE, body.name)
    permit.check_owner(settings)
    if permit.owner and call.bus.core.catalog.find(body.name) is None:
        settings.setdefault("owner", permit.owner)
    made = await call.client.create_topic(body.name, exist_ok=body.exist_ok, **settings)
    return web.Response(
        status=201,
        body=msgspec.json.encode(made),
        content_type="application/json",
        headers={"Location": f"/v1/topics/{quote(made.name, safe='')}"},
    )


async def list_topics(call: Call[TopicsQuery, None]) -> TopicsPage:
    query = call.query
    limit = min(query.limit, call.listener.options.page_entries_max)
    permit = call.permit
    found: list[TopicInfo] = []
    after = query.after
    while True:
        page = await _page(call.client, query, after)
        found += [topic for topic in page.topics if permit.may(Verb.DESCRIBE, topic.name)]
        after = page.next
        if len(found) > limit or not after:
            break
    if len(found) > limit:
        del found[limit:]
        after = found[-1].name
    return TopicsPage(topics=found, next=after or None)


async def _page(client: Client, query: TopicsQuery, after: str) -> messages.TopicPage:
    wanted = messages.ListTopics(query.pattern, query.internal, after)
    return messages.decode(messages.TopicPage, await client.ask(FrameKind.LIST_TOPICS, wanted))


async def describe(call: Call[Nothing, None]) -> TopicInfo:
    name = call.path("topic")
    call.permit.ask(Verb.DESCRIBE, name)
    return await call.client.describe_topic(name)


@contextmanager
def refused_by_topic() -> Generator[None]:
    """The types have checked the settings. What is wrong with one now is that this topic can't
    have it, such as fewer partitions than it has."""
    try:
        yield
    except InvalidArgumentError as fault:
        raise TopicDiffersError(str(fault)) from None


async def alter(call: Call[Nothing, Any]) -> TopicInfo:
    name = call.path("topic")
    permit, settings = call.permit, given_settings(call.body)
    permit.ask(Verb.MANAGE, name)
    permit.check_owner(settings)
    with refused_by_topic():
        return await call.client.alter_topic(name, **settings)


async def grow(call: Call[Nothing, Growth]) -> TopicInfo:
    name = call.path("topic")
    call.permit.ask(Verb.MANAGE, name)
    with refused_by_topic():
        return await call.client.grow_topic(name, call.body.partitions)


async def truncate(call: Call[Nothing, Truncation]) -> Truncated:
    name, body, client = call.path("topic"), call.body, call.client
    call.permit.ask(Verb.MANAGE, name)
    if bool(body.offsets) == bool(body.before):
        raise InvalidArgumentError("Give either `offsets` or `before` to say what to delete.")
    there = (await client.describe_topic(name)).partitions
    if body.before:
        start = as_start(body.before, "before")
        if start.kind == "offset":
            raise InvalidArgumentError("Give offsets as `offsets`, by partition.")
        wanted = await client.find_offsets(name, start)
    else:
        wanted = _by_partition(name, body.offsets, len(there))
    if body.dry_run:
        kept = {i: max(there[i].start_offset, o) for i, o in wanted.items() if i < len(there)}
        for i, offset in kept.items():
            _check_end(name, there[i], offset)
    else:
        kept = await client.delete_records(name, wanted)
    messages = sum(max(0, kept.get(p.partition, 0) - p.start_offset) for p in there)
    return Truncated(
        offsets={str(partition): offset for partition, offset in kept.items()}, messages=messages
    )


def _check_end(name: str, partition: PartitionInfo, offset: int) -> None:
    """Raises what a deletion before this offset would."""
    if offset > partition.visible_end:
        raise OffsetOutOfRangeError(
            f"Partition {partition.partition} of {name!r} ends at offset {partition.visible_end}; "
            f"it can't begin at {offset}. Give {partition.visible_end} at most, or latest."
        )


def _by_partition(topic: str, offsets: dict[str, int], partitions: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for name, offset in offsets.items():
        if not (name.isascii() and name.isdecimal() and len(name) < 6):
            raise InvalidArgumentError(f"{name[:40]!r} is not the number of a partition.")
        if int(name) >= partitions:
            raise no_partition(topic, partitions, int(name))
        found[int(name)] = offset
    return found


async def compact(call: Call[Nothing, None]) -> TopicInfo:
    name = call.path("topic")
    call.permit.ask(Verb.MANAGE, name)
    info = await call.client.describe_topic(name)
    if info.settings.cleanup != "compact":
        raise TopicDiffersError(
            f"Topic {name!r} is not compacted. Change that first, with cleanup: compact."
        )
    return await call.client.compact_topic(name)


async def delete(call: Call[Nothing, None]) -> None:
    name = call.path("topic")
    call.permit.ask(Verb.MANAGE, name)
    await call.client.delete_topic(name)


_PATH = "/v1/topics/{topic}"
_WRONG = (InvalidArgumentError, InvalidNameError)
_MISSING = (InvalidNameError, TopicNotFoundError)

ROUTES = [
    Route(
        "POST",
        "/v1/topics",
        create,
        "Create a topic",
        "topics",
        body=NewTopic,
        example={"name": "orders", "partitions": 4, "durability": "fsync"},
        answer=TopicInfo,
        answer_headers=(Param("Location", "The path of the topic."),),
        status=201,
        errors=(*_WRONG, TopicExistsError, LimitError),
        action="topic.create",
        detail=_settings_text,
    ),
    Route(
        "GET",
        "/v1/topics",
        list_topics,
        "List topics",
        "topics",
        query=TopicsQuery,
        query_example={"limit": 100},
        answer=TopicsPage,
        errors=_WRONG,
    ),
    Route("GET", _PATH, describe, "Describe a topic", "topics", answer=TopicInfo, errors=_MISSING),
    Route(
        "PATCH",
        _PATH,
        alter,
        "Change settings of a topic",
        "topics",
        body=TopicChanges,
        example={"retention_seconds": 3600},
        answer=TopicInfo,
        errors=(InvalidArgumentError, TopicDiffersError, *_MISSING),
        action="topic.alter",
        detail=_settings_text,
    ),
    Route(
        "DELETE",
        _PATH,
        delete,
        "Delete a topic",
        "topics",
        status=204,
        errors=_MISSING,
        action="topic.delete",
    ),
    Route(
        "POST",
        f"{_PATH}/grow",
        grow,
        "Give a topic more partitions",
        "topics",
        description="Readers use the new partitions at once. Keys go to other partitions from now "
        "on.",
        body=Growth,
        example={"partitions": 8},
        answer=TopicInfo,
        errors=(InvalidArgumentError, TopicDiffersError, *_MISSING),
        action="topic.grow",
        detail=lambda call: f"partitions={call.body.partitions}",
    ),
    Route(
        "POST",
        f"{_PATH}/truncate",
        truncate,
        "Delete the oldest messages of a topic",
        "topics",
        body=Truncation,
        example={"before": "7d"},
        answer_example={"offsets": {"0": 1000}, "messages": 1000},
        answer=Truncated,
        errors=(
            InvalidArgumentError,
            *_MISSING,
            PartitionNotFoundError,
            OffsetOutOfRangeError,
        ),
        action="topic.truncate",
    ),
    Route(
        "POST",
        f"{_PATH}/compact",
        compact,
        "Compact a topic now",
        "topics",
        answer=TopicInfo,
        errors=(TopicDiffersError, *_MISSING),
        action="topic.compact",
    ),
]
