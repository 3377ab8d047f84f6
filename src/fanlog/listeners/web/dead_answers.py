"""The requests and answers for dead letters over REST."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from fanlog.client import dead_letters
from fanlog.errors import InvalidArgumentError
from fanlog.format.web import OutgoingMessage, says_json, value_json
from fanlog.listeners.web.dead_matches import DeadLetterFilter
from fanlog.listeners.web.dead_reading import microseconds
from fanlog.listeners.web.dead_reasons import group_of
from fanlog.listeners.web.openapi_names import (
    LETTER_ID_PATTERN,
    NAME_OR_NONE_PATTERN,
    NOT_INTERNAL,
)
from fanlog.model import TOPIC_NAME_BYTES_MAX

# Bytes of a value that a list shows.
PREVIEW_BYTES = 160


class DeadLetterCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: those that match all given conditions."""

    group: Annotated[
        str, Meta(max_length=1024, description="Only dead letters of this group of reasons.")
    ] = ""
    reason: Annotated[
        str, Meta(max_length=1024, description="Only dead letters whose reason contains this text.")
    ] = ""
    queue: Annotated[str, Meta(max_length=255, description="Only dead letters of this queue.")] = ""
    origin: Annotated[
        str, Meta(max_length=255, description="Only dead letters whose job came from this topic.")
    ] = ""
    key: Annotated[
        str, Meta(max_length=1024, description="Only dead letters whose job has this key.")
    ] = ""
    text: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Only dead letters with this text in the reason, key, headers or value.",
        ),
    ] = ""
    since: (
        Annotated[
            dt.datetime,
            Meta(tz=True, description="Only jobs that failed for good at this time or later."),
        ]
        | None
    ) = None
    until: (
        Annotated[
            dt.datetime,
            Meta(tz=True, description="Only jobs that failed for good before this time."),
        ]
        | None
    ) = None

    def wanted(self) -> DeadLetterFilter:
        for name in ("group", "reason", "queue", "origin", "key", "text"):
            try:
                getattr(self, name).encode()
            except UnicodeEncodeError:
                raise InvalidArgumentError(f"{name!r} is text that UTF-8 can't hold.") from None
        return DeadLetterFilter(
            group=self.group,
            reason=self.reason,
            queue=self.queue,
            origin=self.origin,
            key=self.key,
            text=self.text,
            since_us=None if self.since is None else microseconds(self.since),
            until_us=None if self.until is None else microseconds(self.until),
        )


class BrowseQuery(DeadLetterCondition, frozen=True, kw_only=True):
    """A condition, and which page of its matches."""

    offset: Annotated[
        int, Meta(ge=0, le=1 << 53, description="Dead letters to skip before the page.")
    ] = 0
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of dead letters in the answer.")
    ] = 50
    order: Annotated[
        Literal["newest", "oldest"],
        Meta(description="The order, by the time when the jobs failed for good."),
    ] = "newest"


class LettersWhere(DeadLetterCondition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters that match all of these."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter in a list, without its headers, and with the beginning of its value. `group` is
    the group of its reason."""

    id: str
    topic: Annotated[str, Meta(description="The topic that the job came from.")]
    partition: int
    offset: int
    queue: str
    reason: str
    group: str
    deliveries: int
    died: dt.datetime
    key: Annotated[str | None, Meta(description="The job's key, as far as it is text.")]
    preview: Annotated[str, Meta(description="The beginning of the value, as far as it is text.")]
    value_bytes: Annotated[int | None, Meta(description="The length of the value; null: no value.")]


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters. Until it is `complete`, the topic is still being read: `looked_at` of
    `records` records. Ask again then; the answer has what is known so far."""

    letters: list[Preview]
    total: Annotated[int, Meta(description="How many match.")]
    complete: bool
    looked_at: int
    records: int


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A group of dead letters whose reasons differ only in numbers and ids."""

    group: Annotated[str, Meta(description="The reason, with <n> and <id> where reasons differ.")]
    error: Annotated[
        str, Meta(description="The class of the error; empty if the reason names none.")
    ]
    count: int
    first: dt.datetime
    last: dt.datetime
    example: Annotated[str, Meta(description="The id of the newest dead letter.")]


class DeadLetterOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where dead letters came from. An empty topic stands for others beyond the first 5,000."""

    topic: str
    queue: str
    count: int


class Reasons(msgspec.Struct, frozen=True, kw_only=True):
    """Why jobs became dead letters, the most frequent reason first, and their topics. Until it is
    `complete`, the topic is still being read: `looked_at` of `records` records. Ask again then."""

    reasons: list[Reason]
    origins: list[DeadLetterOrigin]
    groups: Annotated[int, Meta(description="Groups of reasons; the list may be shorter.")]
    total: Annotated[int, Meta(description="Dead letters.")]
    complete: bool
    looked_at: int
    records: int


class DeadLetterAnswer(msgspec.Struct, frozen=True, kw_only=True):
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
    worker: Annotated[
        str, Meta(description="The worker that had the job last; empty if not known.")
    ] = ""
    message: OutgoingMessage


class RawDeadLetter(DeadLetterAnswer, frozen=True, kw_only=True):
    """The same, with a message that is JSON already."""

    message: Raw  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]


class LetterQuery(msgspec.Struct, frozen=True, kw_only=True):
    as_text: Annotated[
        bool, Meta(description="A JSON value is also in `text`, as it was published.")
    ] = False


class DeadLettersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters, the oldest first. With `next` there are more."""

    letters: Sequence[DeadLetterAnswer]
    next: str | None = None


class ChosenLetters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: by id, by a condition, or all."""

    ids: (
        Annotated[
            list[Annotated[str, Meta(extra_json_schema={"pattern": LETTER_ID_PATTERN})]],
            Meta(max_length=100_000, examples=[["0:12"]]),
        ]
        | UnsetType
    ) = UNSET
    where: LettersWhere | UnsetType = UNSET
    all: bool = False
    background: Annotated[
        bool,
        Meta(description="Answer at once with the id of a task. /v1/tasks shows its progress."),
    ] = False

    def check(self) -> None:
        given = isinstance(self.ids, list) + isinstance(self.where, LettersWhere) + self.all
        if given != 1:
            raise InvalidArgumentError(
                'Choose the dead letters in one way: "ids": ["0:12"], "where": {"group": "…"}, '
                'or "all": true.'
            )

    def chosen(self) -> list[str] | None:
        """The ids; None if the request has no ids."""
        self.check()
        return self.ids if isinstance(self.ids, list) else None

    def wanted(self) -> DeadLetterFilter:
        """The condition, if the request has no ids."""
        return self.where.wanted() if isinstance(self.where, LettersWhere) else DeadLetterFilter()

    def detail(self) -> str:
        """The choice, in a few words."""
        if isinstance(self.ids, list):
            return f"{len(self.ids)} by id"
        if isinstance(self.where, LettersWhere):
            given = msgspec.to_builtins(self.where)
            named = [f"{name} {value!r}" for name, value in given.items() if value]
            return f"those with {', '.join(named)}"[:200] if named else "all"
        return "all"


_To = Annotated[
    str,
    Meta(
        description="Send them to this topic, not to the original one.",
        max_length=TOPIC_NAME_BYTES_MAX,
        extra_json_schema={"pattern": NAME_OR_NONE_PATTERN, **NOT_INTERNAL},
    ),
]


class ReplayedLetters(ChosenLetters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to replay, and where to."""

    to: _To = ""


class EditedLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dead letter to replay, changed. The `message` replaces the whole job: its key, headers and
    value. Without one, the job is replayed as it is."""

    message: OutgoingMessage | UnsetType = UNSET
    to: _To = ""


class DeadLetterCountAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The number of dead letters, or the task that works on them."""

    count: int
    task: str = ""


def message_of(letter: dead_letters.DeadLetter, *, as_text: bool = False) -> Raw:
    """The job as a message to publish. `as_text`: JSON too is a text, as it was published."""
    fields: dict[str, Any] = {}
    key = letter.death.key
    if key is not None:
        try:
            fields["key"] = key.decode()
        except UnicodeDecodeError:
            fields["key_base64"] = b64encode(key).decode()
    headers: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in letter.headers.items():
        try:
            headers[name] = value.decode()
        except UnicodeDecodeError:
            others[name] = b64encode(value).decode()
    if headers:
        fields["headers"] = headers
    if others:
        fields["headers_base64"] = others
    pairs = tuple((name.encode(), value) for name, value in letter.headers.items())
    value = value_json(letter.value, said=False if as_text else says_json(pairs))
    front = msgspec.json.encode(fields).decode()[:-1]
    return Raw(f"{front}{',' if fields else ''}{value}}}".encode())


def answer_of(letter: dead_letters.DeadLetter, *, as_text: bool = False) -> RawDeadLetter:
    death = letter.death
    return RawDeadLetter(
        id=letter.id,
        topic=death.topic,
        partition=death.partition,
        offset=death.offset,
        queue=death.queue,
        reason=death.reason,
        deliveries=death.deliveries,
        died=death.time,
        worker=death.worker,
        message=message_of(letter, as_text=as_text),
    )


def preview_of(letter: dead_letters.DeadLetter) -> Preview:
    death, value = letter.death, letter.value
    return Preview(
        id=letter.id,
        topic=death.topic,
        partition=death.partition,
        offset=death.offset,
        queue=death.queue,
        reason=death.reason,
        group=group_of(death.reason),
        deliveries=death.deliveries,
        died=death.time,
        key=None if death.key is None else death.key[:PREVIEW_BYTES].decode(errors="replace"),
        preview=(value or b"")[:PREVIEW_BYTES].decode(errors="replace"),
        value_bytes=None if value is None else len(value),
    )
