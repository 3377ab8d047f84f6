"""Groups and queues over REST: list, describe, reset and delete."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fanlog.errors import (
    GroupActiveError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidNameError,
    NoPositionError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from fanlog.format.frames import FrameKind
from fanlog.format.messages import GroupPage, ListGroups, decode
from fanlog.identity import Verb
from fanlog.listeners.web.local_bus import LocalBus
from fanlog.listeners.web.openapi_names import NOT_INTERNAL, START_SCHEMAS
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.topic_bodies import Offset
from fanlog.model import (
    PARTITIONS_MAX,
    GroupInfo,
    GroupKind,
    GroupMemberInfo,
    GroupPartitionInfo,
    GroupState,
    QueueSettings,
    ResetStep,
)


class GroupsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which groups."""

    limit: Annotated[int, Meta(ge=1, description="The largest number of groups in the answer.")] = (
        100
    )
    after: Annotated[
        str, Meta(description="Start after this name: the `next` of the previous page.")
    ] = ""
    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            description="Only groups whose names match this pattern.",
            examples=["billing.>"],
        ),
    ] = ">"


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group or a queue. `lag` counts messages that are not committed, or jobs that are
    not done; `lag_seconds` is the age of the oldest of them."""

    name: str
    kind: GroupKind
    state: GroupState
    lag: int
    lag_seconds: float
    rebalances: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    members: tuple[GroupMemberInfo, ...] = ()
    partitions: tuple[GroupPartitionInfo, ...] = ()
    queue: QueueSettings | None = None


class GroupsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some groups, by name. With `next` there are more."""

    groups: list[GroupAnswer]
    next: (
        Annotated[str, Meta(description="For the next page, use `after=` with this value.")] | None
    ) = None


class GroupReset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a group should resume."""

    start: (
        Annotated[
            str,
            Meta(
                description="`earliest`, `latest`, an offset, a time such as 2026-01-31T12:00Z, or "
                "an age such as 10m.",
                examples=["earliest"],
                extra_json_schema={"anyOf": START_SCHEMAS},
            ),
        ]
        | Offset
    )
    topic: Annotated[
        str, Meta(description="Only in this topic.", extra_json_schema=NOT_INTERNAL)
    ] = ""
    partitions: (
        Annotated[
            tuple[Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)], ...],
            Meta(description="Only in these partitions of the topic."),
        ]
        | None
    ) = None
    dry_run: Annotated[bool, Meta(description="Change nothing; show what would happen.")] = False


class ResetSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The change of each partition by the reset."""

    steps: list[ResetStep]


def _group(info: GroupInfo) -> GroupAnswer:
    return GroupAnswer(
        name=info.name,
        kind=info.kind,
        state=info.state,
        lag=info.lag,
        lag_seconds=info.lag_seconds,
        rebalances=info.rebalances,
        redelivered=info.redelivered,
        dead_lettered=info.dead_lettered,
        members=info.members,
        partitions=info.partitions,
        queue=info.queue,
    )


async def list_groups(call: Call[GroupsQuery, None]) -> GroupsPage:
    query = call.query
    limit = min(query.limit, call.listener.options.page_entries_max)
    found: list[GroupInfo] = []
    after = query.after
    while True:
        wanted = ListGroups(query.pattern, after)
        page = decode(GroupPage, await call.client.ask(FrameKind.LIST_GROUPS, wanted))
        found += [group for group in page.groups if _may_see(call, group)]
        after = page.next
        if len(found) > limit or not after:
            break
    more = found[limit - 1].name if len(found) > limit else after
    return GroupsPage(groups=[_group(info) for info in found[:limit]], next=more or None)


def _may_see(call: Call[GroupsQuery, None], group: GroupInfo) -> bool:
    return call.permit.may_see(Verb.QUEUE if group.queue else Verb.GROUP, group.name)


def _verbs(call: Call[Any, Any], name: str) -> tuple[Verb, ...]:
    """The permissions that a name needs. It may be a group's or a queue's. An edge does not know
    which, so it asks for both."""
    if not isinstance(call.bus, LocalBus):
        return Verb.GROUP, Verb.QUEUE
    return (Verb.GROUP,) if call.bus.core.queues.find(name) is None else (Verb.QUEUE,)


async def describe(call: Call[Nothing, None]) -> GroupAnswer:
    name = call.path("group")
    for verb in _verbs(call, name):
        call.permit.ask_state(verb, name)
    return _group(await call.client.groups.describe(name))


async def reset(call: Call[Nothing, GroupReset]) -> ResetSteps:
    name, wanted = call.path("group"), call.body
    for verb in _verbs(call, name):
        call.permit.ask(verb, name)
    steps = await call.client.groups.reset(
        name, wanted.start, wanted.topic, wanted.partitions, dry_run=wanted.dry_run
    )
    if not wanted.dry_run:
        call.listener.group_tables.forget(name)
    return ResetSteps(steps=steps)


async def delete(call: Call[Nothing, None]) -> None:
    name = call.path("group")
    for verb in _verbs(call, name):
        call.permit.ask(verb, name)
    await call.client.groups.delete(name)
    call.listener.group_tables.forget(name)


ROUTES = [
    Route(
        "GET",
        "/v1/groups",
        list_groups,
        "List groups and queues",
        "groups",
        query=GroupsQuery,
        answer=GroupsPage,
        errors=(InvalidArgumentError, InvalidNameError),
    ),
    Route(
        "GET",
        "/v1/groups/{group}",
        describe,
        "Describe a group or queue",
        "groups",
        answer=GroupAnswer,
        errors=(InvalidArgumentError, GroupNotFoundError),
    ),
    Route(
        "POST",
        "/v1/groups/{group}/reset",
        reset,
        "Reset a group without members",
        "groups",
        body=GroupReset,
        answer=ResetSteps,
        errors=(
            InvalidArgumentError,
            GroupNotFoundError,
            TopicNotFoundError,
            PartitionNotFoundError,
            GroupActiveError,
            NoPositionError,
        ),
        action="group.reset",
    ),
    Route(
        "DELETE",
        "/v1/groups/{group}",
        delete,
        "Delete a group without members",
        "groups",
        status=204,
        errors=(InvalidArgumentError, GroupNotFoundError, GroupActiveError),
        action="group.delete",
    ),
]
