"""What `client.consume` takes, in the asyncio client and the blocking one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, get_args

import msgspec

from fanlog.client.arguments import StartLike
from fanlog.client.backoff import Backoff
from fanlog.client.core.handling import OnFailure, Order
from fanlog.client.core.offset_commits import CommitMode
from fanlog.client.core.receiving import OnGap
from fanlog.client.groups.attendant import OnPartitions
from fanlog.errors import InvalidArgumentError
from fanlog.model import MissingPolicy, ResetPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """What a member does by itself, and its callbacks."""

    commit: CommitMode = "auto"
    commit_interval_seconds: float = 1.0
    on_assign: OnPartitions | None = None
    on_revoke: OnPartitions | None = None
    on_gap: OnGap | None = None


class SharedOptions(TypedDict, total=False):
    member: str
    reset: ResetPolicy | StartLike
    commit: CommitMode
    commit_interval_seconds: float
    session_seconds: float
    window_bytes: int | None
    on_gap: OnGap | None
    missing: MissingPolicy


class HandlerOptions(TypedDict, total=False):
    """How a handler gets the messages of a group, in addition to the options of `ConsumeOptions`.
    There is no `commit`: the offsets of handled messages are committed.

    | option | default | |
    | --- | --- | --- |
    | `concurrency` | 1 | how many messages are handled at a time |
    | `order` | `"partition"` | what is handled in order: `"partition"`, or `"key"`, which lets \
different keys of a partition be handled at the same time |
    | `retry` | `Backoff()` | how long a message that failed waits |
    | `max_attempts` | 5 | after so many failures `on_failure` decides; None tries for ever |
    | `on_failure` | `"dead-letter"` | `"dead-letter"` stores it as one and resumes, `"skip"` logs \
it and resumes, `"stop"` ends with the handler's error |
    | `dead_letter` | `dead.` and the topic | the dead-letter topic |
    """

    order: Order
    retry: Backoff | None
    max_attempts: int | None
    on_failure: OnFailure
    dead_letter: str


class ConsumeOptions(SharedOptions, total=False):
    """How a member reads.

    | option | default | |
    | --- | --- | --- |
    | `member` | one of its own | a name, under which it keeps its partitions for \
`session_seconds`, also from another process |
    | `reset` | latest | where a new group begins: latest, earliest, none (an error), a time, or \
an age such as "10m" |
    | `commit` | auto | when what is done is committed: auto every now and then, iterate with each \
message, manual only by `commit()` |
    | `commit_interval_seconds` | 1 | how often, with auto |
    | `session_seconds` | 10 | how long a lost member keeps its partitions |
    | `window_bytes` | the client's | log bytes on the way to this member |
    | `on_assign`, `on_revoke` | | called with topics and partitions that come and go |
    | `on_gap` | | called with what is lost; without it, that is raised, or logged with a handler |
    | `missing` | wait | for a topic that does not exist; `fail` raises `TopicNotFoundError` |
    """

    on_assign: OnPartitions | None
    on_revoke: OnPartitions | None


class HandledOptions(ConsumeOptions, HandlerOptions, total=False):
    """Both."""


class HandlerRules(msgspec.Struct, frozen=True, kw_only=True):
    """`HandlerOptions`, checked."""

    concurrency: int
    order: Order = "partition"
    retry: Backoff
    max_attempts: int | None = 5
    on_failure: OnFailure = "dead-letter"
    dead_letter: str = ""


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses options that there are none of."""
    unknown = set(given) - set(known)
    if unknown:
        raise InvalidArgumentError(
            f"consume() has no option {min(unknown)!r}. It has {', '.join(sorted(known))}."
        )


def handler_rules(concurrency: int, options: HandledOptions) -> HandlerRules:
    if options.get("commit", "auto") != "auto":
        raise InvalidArgumentError(
            "A handler takes no commit option: the offset of a message is committed when it is "
            "handled."
        )
    order, on_failure = options.get("order", "partition"), options.get("on_failure", "dead-letter")
    for name, value, known in (("order", order, Order), ("on_failure", on_failure, OnFailure)):
        if value not in get_args(known):
            raise InvalidArgumentError(
                f"There is no {name} {value!r}: use one of {', '.join(get_args(known))}."
            )
    attempts = options.get("max_attempts", 5)
    if concurrency < 1 or (attempts is not None and attempts < 1):
        raise InvalidArgumentError("concurrency and max_attempts are 1 or more.")
    return HandlerRules(
        concurrency=concurrency,
        order=order,
        retry=options.get("retry") or Backoff(),
        max_attempts=attempts,
        on_failure=on_failure,
        dead_letter=options.get("dead_letter", ""),
    )
