"""A member of a consumer group: a subscription whose partitions the broker chooses, and takes back
when others come. `core/member_core.py` decides; this is what applications and the client call."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Protocol

from fanlog.client.arguments import StartLike
from fanlog.client.core.member_core import MemberCore
from fanlog.client.core.offset_commits import ReachedPositions
from fanlog.client.core.reached import as_positions
from fanlog.client.groups.attendant import PartitionAttendant, called_back
from fanlog.client.groups.offset_committer import GroupHost, OffsetCommitter
from fanlog.client.groups.options import MemberOptions
from fanlog.client.message import Message
from fanlog.client.subscription import Subscription, SubscriptionHost
from fanlog.client.waiting import begin
from fanlog.errors import ClosedError, FanlogError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")


class MemberHost(SubscriptionHost, GroupHost, Protocol):
    """The client, as far as a member needs it."""


class GroupMember(Subscription):
    """Made by `client.consume(...)`; use it with `async with`, then iterate.

    >>> async with client.consume("orders", group="billing") as orders:  # doctest: +SKIP
    ...     async for message in orders:
    ...         bill(message.json())
    """

    def __init__(self, host: MemberHost, core: MemberCore, options: MemberOptions) -> None:
        super().__init__(host, core)
        self._group_host: GroupHost = host
        self._member_core = core
        self._options = options
        self._owned = core.owned
        self._commits = OffsetCommitter(host, core.owned)
        self._attendant = PartitionAttendant(
            host, core.owned, self._commits, options.on_assign, options.on_revoke
        )
        self._timer: asyncio.Task[None] | None = None
        core.arrivals.on_close = self._stop_timer

    # The life of it

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._member_core.join.group

    @property
    def member(self) -> str:
        """Name of this member."""
        return self._member_core.join.member

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What this member reads now, as topics and partitions."""
        return tuple(sorted(self._owned.active))

    async def start(self) -> None:
        """Joins the group. `async with` does it.

        >>> orders = client.consume("orders", group="billing")
        >>> await orders.start()
        """
        if not self._arrivals.started:
            self._commits.start()
            await begin(self._arrivals, lambda: self._host.attach(self._member_core, leaving=self))
            # It may be over before it began: what ends it can come right behind the answer.
            if self._options.commit == "auto" and self._arrivals.closed is None:
                self._timer = asyncio.create_task(self._commit_now_and_then())

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_seconds)
            self._owned.commits.done_soon()

    async def close(self) -> None:
        """Commits the offsets of finished messages, unless commits are manual, and leaves the
        group. Raises errors of offset commits in the background.

        >>> await orders.close()
        """
        if self._arrivals.closed is None:
            self._core.end(ClosedError("The member was closed: call consume() again."))
            if self._arrivals.started:
                try:
                    await self._leave()
                finally:
                    await self._host.detach(self._core)
        self._owned.commits.raise_error()

    async def _leave(self) -> None:
        """Notifies the application, and commits the offsets of finished messages, unless commits
        are manual."""
        await self._attendant.finish()
        if self._group_host.connected:
            await self._commits.flush(done=self._owned.commits_by_itself)
        else:
            self._owned.check_all_committed()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except FanlogError as fault:
            if error is None:
                raise
            logger.warning("leaving the group %s: %s", self.group, fault)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Committing

    @property
    def positions(self) -> tuple[messages.Position, ...]:
        """What `commit()` would commit."""
        return as_positions(self.reached(None))

    def offsets_for_commit(
        self, positions: tuple[messages.Position, ...] | None = None
    ) -> messages.GroupOffsets:
        """These positions, or those after all messages taken, for a transaction to commit.

        >>> tx.commit_offsets(orders)
        """
        if positions is None:
            self._owned.check_hand()
            positions = self.positions
        return self._member_core.group_offsets(positions)

    def times_came(self, tp: TopicPartition) -> int:
        """How often this member has got a partition that it has; 0 if it does not have it."""
        return self._owned.times_came(tp)

    async def commit(self, message: Message | None = None) -> None:
        """Commits offsets up to this message, or of all messages taken, including the one in hand.
        In a callback, which may run while that message is processed, it does not count. Returns
        when the offsets are stored. Raises FencedError if another member has a partition now; then
        nothing was committed.

        >>> async for message in orders:
        ...     await orders.commit(message)
        """
        await self._commits.now(self.reached(message))

    def commit_soon(self, message: Message | None = None) -> None:
        """The same in the background. The next commit or close raises its errors.

        >>> orders.commit_soon()
        """
        self.commit_reached_soon(self.reached(message))

    async def commit_reached(self, reached: ReachedPositions) -> None:
        """Commits these positions, which the application has read. Returns when it is done."""
        for tp, at in reached.items():
            self._owned.check_read(tp, at.offset)
        await self._commits.now(reached)

    def commit_reached_soon(self, reached: ReachedPositions) -> None:
        self._commits.soon(reached)

    def reached(self, message: Message | None) -> ReachedPositions:
        """The positions that a commit now would store."""
        return self._owned.reached(message, in_callback=called_back.get())

    async def seek(
        self, start: StartLike, topic: str = "", partition: int | None = None
    ) -> tuple[messages.Position, ...]:
        """Moves in all partitions of this member, in those of a topic, or in one: to "earliest",
        "latest", an offset or a time. Messages received before are dropped, and the next offset
        commit has the new position.

        >>> await orders.seek("earliest", topic="orders", partition=0)
        """
        await self.start()
        return await self._seek_now(start, topic, partition)

    async def _seek_now(
        self, start: StartLike, topic: str, partition: int | None
    ) -> tuple[messages.Position, ...]:
        """The same of a member that has joined."""
        wanted = self._owned.seek_request(start, topic, partition)
        moved = await self._group_host.ask(FrameKind.SEEK, wanted, aux=self._owned.key)
        return decode(messages.Positions, moved).positions
