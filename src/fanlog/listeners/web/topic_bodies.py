"""The requests and answers for topics over REST. Those with settings are made from `TopicSettings`,
so that a new setting needs no line here."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fanlog.listeners.web.openapi_names import (
    NAME_PATTERN,
    NOT_INTERNAL,
    PATTERN_PATTERN,
    TIME_SCHEMAS,
)
from fanlog.model import PARTITIONS_MAX, TopicInfo, TopicSettings

INT64_MAX = (1 << 63) - 1
# The role of a topic is the broker's own business.
_SETTINGS = [f for f in msgspec.structs.fields(TopicSettings) if f.name != "role"]


class TopicsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which topics."""

    limit: Annotated[int, Meta(ge=1, description="The largest number of topics in the answer.")] = (
        100
    )
    after: Annotated[
        str, Meta(description="Start after this name: the `next` of the previous page.")
    ] = ""
    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="Only topics that match this pattern, such as orders.*",
            examples=["orders.>"],
            extra_json_schema={"pattern": PATTERN_PATTERN},
        ),
    ] = ">"
    internal: Annotated[bool, Meta(description="Include the broker's internal topics.")] = False


class TopicsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some topics, by name. With `next` there are more."""

    topics: list[TopicInfo]
    next: (
        Annotated[str, Meta(description="For the next page, use `after=` with this value.")] | None
    ) = None


def _bounded(kind: Any) -> Any:
    """A type of a setting. No number is larger than the broker can take."""
    if get_args(kind)[0] is int and all(meta.le is None for meta in get_args(kind)[1:]):
        return Annotated[kind, Meta(le=INT64_MAX)]
    return kind


def _given(name: str, doc: str, *more: tuple[str, Any, Any], without: str = "") -> Any:
    """A struct of settings that may all be left out."""
    given = [(f.name, _bounded(f.type) | UnsetType, UNSET) for f in _SETTINGS if f.name != without]
    made = msgspec.defstruct(
        name, [*more, *given], kw_only=True, frozen=True, forbid_unknown_fields=True
    )
    made.__doc__ = doc
    return made


NewTopic = _given(
    "NewTopic",
    "A topic to create. By default a setting has the broker's default.",
    (
        "name",
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                examples=["orders"],
                extra_json_schema={"pattern": NAME_PATTERN, **NOT_INTERNAL},
            ),
        ],
        msgspec.NODEFAULT,
    ),
    (
        "exist_ok",
        Annotated[
            bool,
            Meta(description="Accept an existing topic if its settings are those given here."),
        ],
        False,
    ),
)
TopicChanges = _given(
    "TopicChanges",
    "Settings to change. The others do not change. Use `grow` for more partitions.",
    without="partitions",
)


class Growth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new number of partitions."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]


Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class Truncation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages to delete: those before an offset in each partition, or before a time."""

    offsets: Annotated[
        dict[str, Offset],
        Meta(
            description="The first offset to keep, by partition.",
            extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,4}$"}},
        ),
    ] = {}
    before: Annotated[
        str,
        Meta(
            description="A time such as 2026-01-31T12:00:00Z, an age such as 7d, or `latest` for "
            "everything.",
            examples=["7d"],
            extra_json_schema={"anyOf": [{"const": "latest"}, *TIME_SCHEMAS]},
        ),
    ] = ""
    dry_run: Annotated[bool, Meta(description="Delete nothing; show what would be deleted.")] = (
        False
    )


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    """Where each partition begins now, or would begin. `messages` is the number of deleted
    messages. It is too high if compaction or damage removed some of them before."""

    offsets: dict[str, int]
    messages: int = 0


def given_settings(body: Any) -> dict[str, Any]:
    """The settings that a body has."""
    found = {f.name: getattr(body, f.name, UNSET) for f in _SETTINGS}
    return {name: value for name, value in found.items() if value is not UNSET}
