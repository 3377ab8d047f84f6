"""Notifies an application of granted and revoked partitions, and gives back those that the broker
wants back. `core/partition_grants.py` says which and when; this calls and asks, one step after the
other, and commits finished messages before a partition goes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from fanlog.client.core.owned_partitions import OwnedPartitions
from fanlog.client.core.partition_grants import releases
from fanlog.client.groups.offset_committer import GroupHost, OffsetCommitter
from fanlog.errors import FanlogError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import Release
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")

OnPartitions = Callable[[tuple[TopicPartition, ...]], Awaitable[None] | None]
# Pending releases: well below a connection's limit of requests.
_RELEASES_AT_ONCE = 256

# Whether `on_assign` or `on_revoke` is running: the application may be busy with a message then.
called_back: ContextVar[bool] = ContextVar("called_back", default=False)


class PartitionAttendant:
    """For one member."""

    def __init__(
        self,
        host: GroupHost,
        owned: OwnedPartitions,
        commits: OffsetCommitter,
        on_assign: OnPartitions | None,
        on_revoke: OnPartitions | None,
    ) -> None:
        self._host = host
        self._owned = owned
        self._grants = owned.grants
        self._grants.on_news = self._soon
        self._commits = commits
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._task: asyncio.Task[None] | None = None

    def _soon(self) -> None:
        if self._task is None or self._task.done():
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
        await self._call(self._on_revoke, self._grants.leave())
        self._grants.left()

    async def _attend(self) -> None:
        while (step := self._grants.next_step()) is not None:
            if step.came:
                await self._call(self._on_assign, step.partitions)
                for partition in self._grants.heard(step):
                    self._owned.receiving.let_through(partition)
                continue
            await self._call(self._on_revoke, step.partitions)
            if step.releasing:
                await self._give_back(step.releasing)

    async def _call(
        self, callback: OnPartitions | None, partitions: tuple[TopicPartition, ...]
    ) -> None:
        if callback is None or not partitions:
            return
        before = called_back.set(True)
        try:
            answer = callback(partitions)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("a callback of group %s failed", self._owned.group)
        finally:
            called_back.reset(before)

    async def _give_back(self, partitions: tuple[TopicPartition, ...]) -> None:
        await self._commits.flush(done=self._owned.commits_by_itself)
        wanted = releases(partitions)
        # Many at once: a group may follow thousands of topics.
        for at in range(0, len(wanted), _RELEASES_AT_ONCE):
            await asyncio.gather(*map(self._release, wanted[at : at + _RELEASES_AT_ONCE]))

    async def _release(self, wanted: Release) -> None:
        def released(_: bytes) -> None:
            self._owned.released(wanted)

        try:
            await self._host.ask(FrameKind.RELEASE, wanted, aux=self._owned.key, on_answer=released)
        except FanlogError as fault:
            logger.warning("releasing partitions of %s: %s", wanted.topic, fault)
