"""Topics as a table: searched, sorted and paged, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fanlog.broker.insight.metric_scan import missed_in
from fanlog.broker.insight.topic_table import (
    TopicRow,
    TopicSelection,
    TopicSort,
    TopicState,
    is_own,
)
from fanlog.errors import InvalidArgumentError
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Route
from fanlog.model import CleanupPolicy, DurabilityName, GroupKind, TopicRole, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fanlog.broker.authority import Permit

SEARCH_LENGTH_MAX = 255


class TopicListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which topics, in which order."""

    search: Annotated[
        str,
        Meta(
            max_length=SEARCH_LENGTH_MAX,
            description="Parts of a name, in upper or lower case; the name must contain all of "
            "them. Or a pattern such as orders.> or *.eu, or a name with stars such"
            " as ord*.",
            examples=["orders"],
        ),
    ] = ""
    sort: Annotated[
        TopicSort,
        Meta(
            description="`size` is in bytes, `lag` is the largest of a group or queue, and "
            "`missed` counts messages that readers did not get."
        ),
    ] = "name"
    descending: Annotated[bool, Meta(description="The largest value or the last name first.")] = (
        False
    )
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Topics to skip.")] = 0
    limit: Annotated[int, Meta(ge=1, description="The largest number of topics in the answer.")] = (
        50
    )
    internal: Annotated[
        bool, Meta(description="Include the broker's internal topics, inboxes and streams.")
    ] = False


class ListedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list. `messages` and `bytes` are what it keeps, `published` is how many messages
    it ever had. A reader counts once for each topic partition that it reads. `lag` is the largest
    of a group or queue that reads the topic, and null if none does; `lag_by` names it, if you may
    see it."""

    name: str
    partitions: int
    durability: DurabilityName
    cleanup: CleanupPolicy
    role: TopicRole
    internal: bool
    messages: int
    published: int
    bytes: int
    messages_per_second: float
    bytes_per_second: float
    readers: int
    lag: int | None
    lag_by: str
    lag_kind: GroupKind | None
    missed: int
    state: TopicState
    newest_us: int
    retention_seconds: int
    retention_bytes: int


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of topics. `total` counts all that were found and that you may see. `defaults` are the
    default settings of a new topic."""

    topics: list[ListedTopic]
    total: int
    offset: int
    defaults: TopicSettings


async def search_topics(call: Call[TopicListQuery, None]) -> TopicList:
    query, permit = call.query, call.permit
    broker = call.broker
    try:
        query.search.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("The search is not valid text: use UTF-8.") from None
    viewer, may_see = sight_of(permit, broker.permissions_epoch)
    wanted = TopicSelection(
        query.search, query.internal, query.sort, query.descending, viewer, may_see
    )
    limit = min(query.limit, call.listener.options.page_entries_max)
    rows, total = await broker.topic_table.page(wanted, query.offset, limit)
    topics = [listed(row, permit) async for row in broker.slices.each(rows)]
    return TopicList(
        topics=topics, total=total, offset=query.offset, defaults=broker.topic_defaults
    )


def sight_of(permit: Permit, epoch: int) -> tuple[Hashable, Callable[[str], bool] | None]:
    """Which topics an account may see: who shares this answer, and how to check a topic. None:
    everything."""
    if not permit.guarded:
        return None, None
    who = permit.who
    # An account is one object as long as it does not change.
    viewer = (epoch, who.user if who.account is None else who.account)
    # An account that may see the widest pattern needs no check for each topic.
    everything = permit.may(Verb.DESCRIBE, ">")
    return viewer, lambda name: (everything and not is_own(name)) or permit.may(Verb.DESCRIBE, name)


def listed(row: TopicRow, permit: Permit) -> ListedTopic:
    """A row as it is shown."""
    topic, figures, lag = row
    rates = topic.rates or (0.0, 0.0)
    settings = topic.settings
    named = lag is not None and permit.may_see(
        Verb.QUEUE if lag.kind == "queue" else Verb.GROUP, lag.name
    )
    return ListedTopic(
        name=topic.name,
        partitions=len(topic.partitions),
        durability=settings.durability,
        cleanup=settings.cleanup,
        role=settings.role,
        internal=is_own(topic.name),
        messages=figures.messages,
        published=figures.published,
        bytes=figures.bytes,
        messages_per_second=round(rates[0], 3),
        bytes_per_second=round(rates[1], 3),
        readers=figures.readers,
        lag=None if lag is None else lag.lag,
        lag_by=lag.name if lag is not None and named else "",
        lag_kind=lag.kind if lag is not None and named else None,
        missed=missed_in(topic),
        state=figures.state,
        newest_us=figures.newest_us,
        retention_seconds=settings.retention_seconds,
        retention_bytes=settings.retention_bytes,
    )


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/topic-list",
        search_topics,
        "Search and sort topics",
        "topics",
        description="A page of a table of all topics, with stored messages, rates, readers and "
        "lag. Figures are current. With very many topics, their order may be some "
        "seconds old. To list all topics with their partitions, use /v1/topics.",
        query=TopicListQuery,
        query_example={"search": "orders", "sort": "lag", "descending": True},
        answer=TopicList,
        errors=(InvalidArgumentError,),
    ),
]
