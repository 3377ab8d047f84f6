"""Notifies an application of granted and revoked partitions, and releases those that the broker
wants back. Law: a partition is released only when the application has no message of it in hand, and
after its finished messages are committed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol

import msgspec

from fanlog.client.groups.commits import GroupCommits
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")

OnPartitions = Callable[[tuple[TopicPartition, ...]], Awaitable[None] | None]
# Pending releases: well below a connection's limit of requests.
_RELEASES_AT_ONCE = 256

# Whether `on_assign` or `on_revoke` is running: the application may be busy with a message then.
called_back: ContextVar[bool] = ContextVar("called_back", default=False)


class AttendantHost(Protocol):
    """The client, as far as this needs it."""

    @property
    def connected(self) -> bool: ...
    async def ask(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        on_answer: Callable[[bytes], None] | None = None,
    ) -> bytes: ...


class AttendedPartitions(Protocol):
    """The partitions of a member, as far as this needs them."""

    group: str
    active: set[TopicPartition]
    commits: GroupCommits

    @property
    def key(self) -> int: ...
    @property
    def commits_by_itself(self) -> bool: ...
    def in_hand(self, place: TopicPartition) -> bool: ...
    def let_through(self, place: TopicPartition) -> None: ...
    def forget(self, place: TopicPartition) -> None: ...


class PartitionAttendant:
    """For one member. `revoking` has the partitions that are being released: False until the
    application is notified."""

    def __init__(
        self,
        host: AttendantHost,
        partitions: AttendedPartitions,
        on_assign: OnPartitions | None,
        on_revoke: OnPartitions | None,
    ) -> None:
        self._host = host
        self._partitions = partitions
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self.revoking: dict[TopicPartition, bool] = {}
        self._assigned: list[TopicPartition] = []
        self._gone: list[TopicPartition] = []
        self._task: asyncio.Task[None] | None = None
        # Set when it leaves: all its partitions go, and there are no further notifications.
        self.leaving = False

    def came(self, place: TopicPartition) -> None:
        self._assigned.append(place)
        self.soon()

    def lost(self, place: TopicPartition) -> None:
        """A partition already belongs to another member."""
        if not self.revoking.pop(place, False):
            self._gone.append(place)

    def lost_all(self) -> None:
        self._gone += self._partitions.active
        self.revoking.clear()
        self.soon()

    def soon(self) -> None:
        if not self.leaving and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._attend())

    async def finish(self) -> None:
        """Notifies the application that all its partitions go. It is the last notification."""
        # Another one may have begun before the wait for this one is over.
        while (task := self._task) is not None and not task.done():
            if task is asyncio.current_task():
                break
            if not self._host.connected:
                task.cancel()
            await asyncio.wait([task])
        self.leaving = True
        told = {place for place, told in self.revoking.items() if told}
        mine = sorted((self._partitions.active | self.revoking.keys()) - told)
        await self._tell(self._on_revoke, mine)

    async def _attend(self) -> None:
        """Notifies of granted and revoked partitions, one after the other, and releases those
        without a message in hand."""
        while True:
            assigned, self._assigned = self._assigned, []
            if assigned:
                await self._tell(self._on_assign, assigned)
                for place in assigned:
                    self._partitions.let_through(place)
            ready = [
                place
                for place, told in self.revoking.items()
                if not told and not self._partitions.in_hand(place)
            ]
            gone, self._gone = self._gone, []
            if not ready and not gone and not self._assigned:
                return
            for place in ready:
                self.revoking[place] = True
            await self._tell(self._on_revoke, sorted({*ready, *gone}))
            if ready:
                await self._let_go(ready)

    async def _tell(self, callback: OnPartitions | None, places: list[TopicPartition]) -> None:
        if callback is None or not places:
            return
        before = called_back.set(True)
        try:
            told = callback(tuple(places))
            if inspect.isawaitable(told):
                await told
        except Exception:
            logger.exception("a callback of group %s failed", self._partitions.group)
        finally:
            called_back.reset(before)

    async def _let_go(self, places: list[TopicPartition]) -> None:
        await self._partitions.commits.flush(done=self._partitions.commits_by_itself)
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        releases = [messages.Release(topic, tuple(some)) for topic, some in by_topic.items()]
        # Many at once: a group may follow thousands of topics.
        for at in range(0, len(releases), _RELEASES_AT_ONCE):
            await asyncio.gather(*map(self._release, releases[at : at + _RELEASES_AT_ONCE]))

    async def _release(self, wanted: messages.Release) -> None:
        def released(_: bytes) -> None:
            for partition in wanted.partitions:
                place = TopicPartition(wanted.topic, partition)
                if self.revoking.pop(place, False):
                    self._partitions.forget(place)

        try:
            await self._host.ask(
                FrameKind.RELEASE, wanted, aux=self._partitions.key, on_answer=released
            )
        except FanlogError as fault:
            logger.warning("releasing partitions of %s: %s", wanted.topic, fault)
