"""Groups from the client: joining one, and what operators ask about them."""

from __future__ import annotations

import secrets
from typing import Protocol, get_args

import msgspec

from fanlog.client.groups.member import CommitMode
from fanlog.client.starts import StartLike, as_start, checked, reset_policy, topic_name
from fanlog.errors import InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.patterns import is_pattern
from fanlog.model import GroupInfo, ResetPolicy, ResetStep

# `list` means something else inside of `Groups`.
GroupInfos = list[GroupInfo]
ResetSteps = list[ResetStep]


class GroupsHost(Protocol):
    """The client, as far as operators' calls need it."""

    async def ask(self, kind: FrameKind, message: msgspec.Struct) -> bytes: ...


class Groups:
    """Groups and queues, with or without members. It is `client.groups`."""

    def __init__(self, host: GroupsHost) -> None:
        self._host = host

    async def list(self, pattern: str = ">") -> GroupInfos:
        """All groups whose names fit a pattern."""
        found: GroupInfos = []
        after = ""
        while True:
            wanted = messages.ListGroups(pattern, after)
            answer = await self._host.ask(FrameKind.LIST_GROUPS, wanted)
            page = decode(messages.GroupPage, answer)
            found += page.groups
            after = page.next
            if not after:
                return found

    async def describe(self, name: str) -> GroupInfo:
        """A group's members, its partitions, and how far it is behind."""
        found = await self._host.ask(FrameKind.DESCRIBE_GROUP, checked(messages.NamedGroup(name)))
        return decode(GroupInfo, found)

    async def reset(
        self,
        name: str,
        start: StartLike,
        topic: str = "",
        partitions: tuple[int, ...] | None = None,
        *,
        dry_run: bool = False,
    ) -> ResetSteps:
        """Moves a group that has no members: everywhere that it has committed, in a topic, or in
        some of its partitions. A dry run only says what it would do."""
        wanted = messages.ResetGroup(
            group=name,
            start=as_start(start),
            topic=topic,
            partitions=partitions,
            dry_run=dry_run,
        )
        moved = await self._host.ask(FrameKind.RESET_GROUP, checked(wanted))
        return decode(list[ResetStep], moved)

    async def delete(self, name: str) -> None:
        """Forgets what a group without members has committed."""
        await self._host.ask(FrameKind.DELETE_GROUP, checked(messages.NamedGroup(name)))


def joining(
    topic: str,
    *,
    group: str,
    member: str,
    reset: ResetPolicy,
    commit: CommitMode,
    session_seconds: float,
    window_bytes: int,
    client: str,
) -> messages.JoinGroup:
    """The request to join a group. A member without a name gets one of its own."""
    if not isinstance(group, str) or not group:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError("A group needs a name: consume(topic, group='billing').")
    reset_policy(reset)
    if commit not in get_args(CommitMode):
        raise InvalidArgumentError(
            f"There is no commit mode {commit!r}: use one of {', '.join(get_args(CommitMode))}."
        )
    wanted = messages.JoinGroup(
        group=group,
        member=member or f"{client or 'member'}-{secrets.token_hex(4)}",
        target=topic_name(topic),
        wildcard=is_pattern(topic),
        reset=reset,
        session_seconds=session_seconds,
        window_bytes=window_bytes,
        static=bool(member),
    )
    return checked(wanted)
