"""What operators ask about groups."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fanlog.client.arguments import StartLike, as_start, checked
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.model import GroupInfo, ResetStep

# `list` means something else inside of `Groups`.
GroupInfos = list[GroupInfo]
ResetStepList = list[ResetStep]


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
    ) -> ResetStepList:
        """Moves the offsets of a group without members: wherever it has committed offsets, in one
        topic, or in some of its partitions. A dry run changes nothing and returns the result."""
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
