"""Dead letters over REST: list, read, replay and delete."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from fanlog.client import dead_letters
from fanlog.errors import (
    DeadLetterNotFoundError,
    InvalidArgumentError,
    TopicDiffersError,
    TopicNotFoundError,
)
from fanlog.format.dead_letters import ID_PATTERN
from fanlog.format.web import OutgoingMessage, says_json, value_json
from fanlog.identity import Verb
from fanlog.listeners.web.openapi_names import (
    LETTER_ID_PATTERN,
    NAME_OR_NONE_PATTERN,
    NOT_INTERNAL,
)
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.topics import refused_by_topic
from fanlog.model import TOPIC_NAME_BYTES_MAX


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list."""

    limit: Annotated[int, Meta(ge=1, description="Most entries in the answer.")] = 100
    after: Annotated[
        str, Meta(description="Begin behind this one: the `next` of the page before.")
    ] = ""


class LettersQuery(PageQuery, frozen=True, kw_only=True):
    """Which dead letters."""

    after: Annotated[
        str,
        Meta(
            description="Begin behind this one: the `next` of the page before.",
            extra_json_schema={"pattern": f"^({ID_PATTERN})?$"},
        ),
    ] = ""
    queue: Annotated[str, Meta(description="Only those of this queue.")] = ""
    reason: Annotated[str, Meta(description="Only those whose reason has this text.")] = ""


class DeadLetterTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead-letter topics, by name. With `next` there are more."""

    topics: list[dead_letters.DeadLetterTopic]
    next: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed for good. `topic`, `partition` and `offset` are where it came from. The
    job itself is in `message`."""

    id: str
    topic: str
    partition: int
    offset: int
    queue: str
    reason: str
    deliveries: int
    died: dt.datetime
    message: OutgoingMessage


class _DeadLetter(DeadLetter, frozen=True, kw_only=True):
    """The same, with a message that is JSON already."""

    message: Raw  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters, the oldest first. With `next` there are more."""

    letters: Sequence[DeadLetter]
    next: str | None = None


class ChosenLetters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: by id, or all of them."""

    ids: (
        Annotated[
            list[Annotated[str, Meta(extra_json_schema={"pattern": LETTER_ID_PATTERN})]],
            Meta(max_length=100_000, examples=[["0:12"]]),
        ]
        | UnsetType
    ) = UNSET
    all: bool = False

    def chosen(self) -> list[str] | None:
        """The ids; None for all."""
        if isinstance(self.ids, list) == self.all:
            raise InvalidArgumentError('Say which dead letters: "ids": ["0:12"], or "all": true.')
        return self.ids if isinstance(self.ids, list) else None


class ReplayedLetters(ChosenLetters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to put back, and where."""

    to: Annotated[
        str,
        Meta(
            description="Another topic than the one that they came from.",
            max_length=TOPIC_NAME_BYTES_MAX,
            extra_json_schema={"pattern": NAME_OR_NONE_PATTERN, **NOT_INTERNAL},
        ),
    ] = ""


class LetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many it was done to."""

    count: int


def _message(letter: dead_letters.DeadLetter) -> Raw:
    """The job as a message to publish."""
    fields: dict[str, Any] = {}
    key = letter.death.key
    if key is not None:
        try:
            fields["key"] = key.decode()
        except UnicodeDecodeError:
            fields["key_base64"] = b64encode(key).decode()
    headers = {name: value.decode(errors="replace") for name, value in letter.headers.items()}
    if headers:
        fields["headers"] = headers
    said = says_json(tuple((name.encode(), value) for name, value in letter.headers.items()))
    value = value_json(letter.value, said=said)
    front = msgspec.json.encode(fields).decode()[:-1]
    return Raw(f"{front}{',' if fields else ''}{value}}}".encode())


def _letter(letter: dead_letters.DeadLetter) -> _DeadLetter:
    death = letter.death
    return _DeadLetter(
        id=letter.id,
        topic=death.topic,
        partition=death.partition,
        offset=death.offset,
        queue=death.queue,
        reason=death.reason,
        deliveries=death.deliveries,
        died=death.time,
        message=_message(letter),
    )


async def list_topics(call: Call[PageQuery, None]) -> DeadLetterTopics:
    query = call.query
    limit = min(query.limit, call.listener.options.page_entries_max)
    found = [
        topic
        for topic in await call.client.dead_letters.topics()
        if topic.name > query.after and call.permit.may(Verb.SUBSCRIBE, topic.name)
    ]
    more = found[limit - 1].name if len(found) > limit else None
    return DeadLetterTopics(topics=found[:limit], next=more)


async def list_letters(call: Call[LettersQuery, None]) -> DeadLetters:
    query, topic = call.query, call.path("topic")
    call.permit.ask(Verb.SUBSCRIBE, topic)
    limit = min(query.limit, call.listener.options.page_entries_max)

    def wanted(letter: dead_letters.DeadLetter) -> bool:
        death = letter.death
        return query.queue in ("", death.queue) and query.reason in death.reason

    found = await call.client.dead_letters.list(
        topic, after=query.after, limit=limit + 1, where=wanted
    )
    more = found[limit - 1].id if len(found) > limit else None
    return DeadLetters(letters=[_letter(letter) for letter in found[:limit]], next=more)


async def show(call: Call[Nothing, None]) -> DeadLetter:
    topic = call.path("topic")
    call.permit.ask(Verb.SUBSCRIBE, topic)
    return _letter(await call.client.dead_letters.show(topic, call.path("id")))


async def replay(call: Call[Nothing, ReplayedLetters]) -> LetterCount:
    topic, wanted = call.path("topic"), call.body
    call.permit.ask(Verb.MANAGE, topic)
    if wanted.to:
        call.permit.ask(Verb.PUBLISH, wanted.to)
    ids = wanted.chosen()
    places = None if ids is None else {dead_letters.place_of(id) for id in ids}

    def may_go_back(letter: dead_letters.DeadLetter) -> bool:
        """A letter says itself where it came from, and whoever made it may have lied."""
        if places is not None and dead_letters.place_of(letter.id) not in places:
            return False
        if not wanted.to:
            call.permit.ask(Verb.PUBLISH, letter.death.topic)
        return True

    count = await call.client.dead_letters.replay(topic, ids, to=wanted.to, where=may_go_back)
    return LetterCount(count=count)


async def delete(call: Call[Nothing, ChosenLetters]) -> LetterCount:
    topic, ids = call.path("topic"), call.body.chosen()
    call.permit.ask(Verb.MANAGE, topic)
    letters = call.client.dead_letters
    if ids is not None:
        return LetterCount(count=await letters.delete(topic, ids))
    with refused_by_topic():
        return LetterCount(count=await letters.purge(topic))


async def delete_one(call: Call[Nothing, None]) -> None:
    topic = call.path("topic")
    call.permit.ask(Verb.MANAGE, topic)
    await call.client.dead_letters.delete(topic, [call.path("id")])


_ERRORS = (InvalidArgumentError, TopicNotFoundError)
_ERRORS_OF_ONE = (*_ERRORS, DeadLetterNotFoundError)

ROUTES = [
    Route(
        "GET",
        "/v1/dead-letters",
        list_topics,
        "List dead-letter topics",
        "dead letters",
        query=PageQuery,
        answer=DeadLetterTopics,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{topic}",
        list_letters,
        "List dead letters",
        "dead letters",
        query=LettersQuery,
        answer=DeadLetters,
        errors=_ERRORS,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{topic}/letters/{id}",
        show,
        "Read a dead letter",
        "dead letters",
        answer=DeadLetter,
        errors=_ERRORS_OF_ONE,
    ),
    Route(
        "POST",
        "/v1/dead-letters/{topic}/replay",
        replay,
        "Put dead letters back",
        "dead letters",
        body=ReplayedLetters,
        answer=LetterCount,
        description="A dead letter is back in its topic, and gone here: both, or neither.",
        errors=_ERRORS_OF_ONE,
        action="dead.replay",
    ),
    Route(
        "POST",
        "/v1/dead-letters/{topic}/delete",
        delete,
        "Delete dead letters",
        "dead letters",
        body=ChosenLetters,
        answer=LetterCount,
        errors=(*_ERRORS_OF_ONE, TopicDiffersError),
        action="dead.delete",
    ),
    Route(
        "DELETE",
        "/v1/dead-letters/{topic}/letters/{id}",
        delete_one,
        "Delete a dead letter",
        "dead letters",
        status=204,
        errors=_ERRORS_OF_ONE,
        action="dead.delete",
    ),
]
