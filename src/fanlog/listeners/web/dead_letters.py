"""Dead letters over REST: their topics, and lists for programs. Pages for people are in
`dead_browse.py`, changes in `dead_changes.py`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.client import dead_letters
from fanlog.errors import DeadLetterNotFoundError, FanlogError, NotSupportedError
from fanlog.format.dead_letters import ID_PATTERN
from fanlog.identity import Verb
from fanlog.listeners.web import dead_browse, dead_changes
from fanlog.listeners.web.dead_answers import (
    DeadLetterAnswer,
    DeadLettersAnswer,
    LetterQuery,
    answer_of,
)
from fanlog.listeners.web.dead_browse import ERRORS, ERRORS_OF_ONE, index_of, moment
from fanlog.listeners.web.dead_index import PATIENCE_SECONDS
from fanlog.listeners.web.dead_matches import DeadLetterFilter
from fanlog.listeners.web.dead_reading import read_letters
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.shared_answers import SharedAnswers
from fanlog.listeners.web.sorted_pages import page_of

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.listeners.web.dead_index import DeadLetterIndex

# Topics of a page that are read together.
_TOGETHER = 20
# Bytes of the values in one answer. A larger value comes alone.
_ANSWER_BYTES_MAX = 4 << 20


class DeadLetterPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list."""

    limit: Annotated[
        int, Meta(ge=1, description="The largest number of entries in the answer.")
    ] = 100
    after: Annotated[
        str, Meta(description="Start after this one: the `next` of the previous page.")
    ] = ""


class DeadLetterTopicsQuery(DeadLetterPageQuery, frozen=True, kw_only=True):
    """Which dead-letter topics. Pages in the order of names use `after`, other pages `offset`."""

    search: Annotated[
        str, Meta(max_length=255, description="Only topics with this text in their name.")
    ] = ""
    sort: Annotated[
        Literal["name", "letters", "newest"],
        Meta(
            description="Sort by name, or put the topics with the most or the newest dead "
            "letters first."
        ),
    ] = "name"
    offset: Annotated[
        int, Meta(ge=0, le=1 << 53, description="Entries to skip before the page.")
    ] = 0
    empty: Annotated[bool, Meta(description="Include topics without dead letters.")] = True


class LettersQuery(DeadLetterPageQuery, frozen=True, kw_only=True):
    """Which dead letters."""

    after: Annotated[
        str,
        Meta(
            description="Start after this one: the `next` of the previous page.",
            extra_json_schema={"pattern": f"^({ID_PATTERN})?$"},
        ),
    ] = ""
    queue: Annotated[str, Meta(description="Only dead letters of this queue.")] = ""
    reason: Annotated[
        str, Meta(description="Only dead letters whose reason contains this text.")
    ] = ""


class DeadLetterTopicAnswer(dead_letters.DeadLetterTopic, frozen=True, kw_only=True):
    """A dead-letter topic and its dead letters. `top_reason` is the reason of most of its dead
    letters. Until it is `complete`, the topic is still being read: ask again."""

    top_reason: str = ""
    top_count: int = 0
    complete: bool = True


class DeadLetterTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead-letter topics. With `next` there are more."""

    topics: list[DeadLetterTopicAnswer]
    next: str | None = None
    total: Annotated[int, Meta(description="Dead-letter topics that match.")] = 0


async def list_topics(call: Call[DeadLetterTopicsQuery, None]) -> DeadLetterTopics:
    query = call.query
    limit = min(query.limit, call.listener.options.page_entries_max)
    if not call.bus.is_broker:
        return await _topics_upstream(call, limit)
    broker, permit = call.broker, call.permit
    every = await _TOPICS.get(call.listener, lambda: _dead_letter_topics(broker))
    known = call.listener.dead_letters
    found = [
        topic
        async for topic in broker.slices.each(every)
        if query.search in topic.name
        and not topic.deleted
        and (query.empty or known.about(topic) > 0)
        and permit.may(Verb.SUBSCRIBE, topic.name)
    ]
    total = len(found)
    if query.sort == "name":
        found = [topic for topic in found if topic.name > query.after][query.offset :]
        more = found[limit - 1].name if len(found) > limit else None
        page = found[:limit]
    else:
        by_letters = query.sort == "letters"

        def rank(topic: BrokerTopic) -> tuple[int, str]:
            newest = max(partition.last_time_us for partition in topic.partitions)
            return (known.about(topic) if by_letters else newest), topic.name

        page = await page_of(
            broker.slices,
            found,
            rank,
            offset=query.offset,
            limit=limit,
            descending=True,
        )
        more = None
    answers = await _summaries(call, page)
    return DeadLetterTopics(topics=answers, next=more, total=total)


async def _topics_upstream(call: Call[DeadLetterTopicsQuery, None], limit: int) -> DeadLetterTopics:
    """Through an edge's client of the upstream broker."""
    query = call.query
    if query.search or query.sort != "name" or query.offset or not query.empty:
        raise NotSupportedError("An edge can't search. Ask the broker behind it.")
    found = [
        DeadLetterTopicAnswer(**{name: getattr(topic, name) for name in topic.__struct_fields__})
        for topic in await call.client.dead_letters.topics()
        if topic.name > query.after and call.permit.may(Verb.SUBSCRIBE, topic.name)
    ]
    more = found[limit - 1].name if len(found) > limit else None
    return DeadLetterTopics(topics=found[:limit], next=more, total=len(found))


_TOPICS: SharedAnswers[list[BrokerTopic]] = SharedAnswers()


async def _dead_letter_topics(broker: BrokerCore) -> list[BrokerTopic]:
    """Dead-letter topics: those that the broker created, and any topic that a queue uses as one."""
    chosen = {queue.settings.dead_letter for queue in broker.queues.every()}
    return [
        topic
        async for topic in broker.slices.each(broker.catalog.each_matching(">"))
        if topic.settings.role == "dead-letter" or topic.name in chosen
    ]


async def _summaries(
    call: Call[Any, Any], topics: list[BrokerTopic]
) -> list[DeadLetterTopicAnswer]:
    """The content of each. The time limit of one answer holds for all together."""
    until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    answers: list[DeadLetterTopicAnswer] = []
    for begin in range(0, len(topics), _TOGETHER):
        some = [call.listener.dead_letters.of(topic) for topic in topics[begin : begin + _TOGETHER]]
        left = max(0.0, until - asyncio.get_running_loop().time())
        ready = await asyncio.gather(*(index.ready(left) for index in some), return_exceptions=True)
        for index, complete in zip(some, ready, strict=True):
            answers.append(await _summary(call.broker, index, complete=complete is True))
    return answers


async def _summary(
    broker: BrokerCore, index: DeadLetterIndex, *, complete: bool
) -> DeadLetterTopicAnswer:
    table, topic = index.table, index.topic
    async for _ in broker.slices.each(table.freshen()):
        pass
    groups = [group for group in table.group_list if group.count]
    top = max(groups, key=lambda group: group.count, default=None)
    sources = {
        source.topic
        for source, count in zip(table.source_list, table.source_counts, strict=True)
        if count and source.topic
    }
    return DeadLetterTopicAnswer(
        name=topic.name,
        letters=table.count,
        oldest=moment(min(group.first_us for group in groups)) if groups else None,
        newest=moment(max(group.last_us for group in groups)) if groups else None,
        sources=tuple(sorted(sources)[:_SOURCES_SHOWN]),
        bytes=sum(partition.log.bytes for partition in topic.partitions),
        top_reason=top.title if top else "",
        top_count=top.count if top else 0,
        complete=complete,
    )


# Origin topics in a list.
_SOURCES_SHOWN = 20


async def list_letters(call: Call[LettersQuery, None]) -> DeadLettersAnswer:
    query, topic = call.query, call.path("topic")
    call.permit.ask(Verb.SUBSCRIBE, topic)
    limit = min(query.limit, call.listener.options.page_entries_max)
    if not call.bus.is_broker:
        return await _letters_upstream(call, limit)
    broker, index = call.broker, index_of(call, topic)
    behind = dead_letters.position_of(query.after) if query.after else (-1, -1)
    positions = await index.positions(DeadLetterFilter(queue=query.queue, reason=query.reason))
    page = await positions.page_after(broker.slices, behind, limit + 1)
    found: list[DeadLetterAnswer] = []
    size = 0
    async for letters in read_letters(broker, index.topic, page[:limit]):
        for letter in letters:
            size += len(letter.value or b"")
            if found and size > _ANSWER_BYTES_MAX:
                return DeadLettersAnswer(letters=found, next=found[-1].id)
            found.append(answer_of(letter))
    partition, offset = page[limit - 1] if len(page) > limit else (-1, -1)
    return DeadLettersAnswer(
        letters=found, next=f"{partition}:{offset}" if len(page) > limit else None
    )


async def _letters_upstream(call: Call[LettersQuery, None], limit: int) -> DeadLettersAnswer:
    query = call.query

    def wanted(letter: dead_letters.DeadLetter) -> bool:
        death = letter.death
        return query.queue in ("", death.queue) and query.reason in death.reason

    found = await call.client.dead_letters.list(
        call.path("topic"), after=query.after, limit=limit + 1, where=wanted
    )
    more = found[limit - 1].id if len(found) > limit else None
    return DeadLettersAnswer(letters=[answer_of(letter) for letter in found[:limit]], next=more)


async def show(call: Call[LetterQuery, None]) -> DeadLetterAnswer:
    topic, id, as_text = call.path("topic"), call.path("id"), call.query.as_text
    call.permit.ask(Verb.SUBSCRIBE, topic)
    if not call.bus.is_broker:
        return answer_of(await call.client.dead_letters.show(topic, id), as_text=as_text)
    index = index_of(call, topic)
    try:
        position = dead_letters.position_of(id)
    except FanlogError as fault:
        raise DeadLetterNotFoundError(str(fault)) from None
    # Until the topic has been read once, only its log knows the number.
    complete = await index.ready(PATIENCE_SECONDS)
    if not complete or index.table.find(*position) is not None:
        async for letters in read_letters(call.broker, index.topic, [position]):
            return answer_of(letters[0], as_text=as_text)
    raise DeadLetterNotFoundError(
        f"There is no dead letter {id!r} in {topic!r}: replayed or deleted already, or never "
        f"there. List them with: fanlog dead list {topic}"
    )


ROUTES = [
    Route(
        "GET",
        "/v1/dead-letters",
        list_topics,
        "List dead-letter topics",
        "dead letters",
        query=DeadLetterTopicsQuery,
        answer=DeadLetterTopics,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{topic}",
        list_letters,
        "List dead letters",
        "dead letters",
        query=LettersQuery,
        answer=DeadLettersAnswer,
        errors=ERRORS,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{topic}/letters/{id}",
        show,
        "Read a dead letter",
        "dead letters",
        query=LetterQuery,
        answer=DeadLetterAnswer,
        errors=ERRORS_OF_ONE,
    ),
    *dead_browse.ROUTES,
    *dead_changes.ROUTES,
]
