"""A member of a consumer group: a subscription whose partitions the broker chooses, and takes back
when others come. `partitions.py` has them; this is what applications and the client call."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Protocol

import msgspec

from fanlog.client.arguments import StartLike
from fanlog.client.core.reached import Reached
from fanlog.client.core.receiving import Receiving
from fanlog.client.core.subscription_core import SubscriptionCore
from fanlog.client.groups.partitions import MemberOptions, OwnedPartitions, PartitionsHost
from fanlog.client.message import Message
from fanlog.client.subscription import Subscription, SubscriptionHost
from fanlog.client.waiting import begin
from fanlog.errors import ClosedError, FanlogError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")


class MemberHost(SubscriptionHost, PartitionsHost, Protocol):
    """The client, as far as a member needs it."""


def followed(wanted: messages.JoinGroup) -> messages.Subscribe:
    """What a member follows, as a subscription."""
    return messages.Subscribe(
        target=wanted.target, wildcard=wanted.wildcard, window_bytes=wanted.window_bytes
    )


class MemberCore(SubscriptionCore):
    """The follower of a member: it asks for its group, and comes back with its partitions."""

    def __init__(
        self,
        host: MemberHost,
        key: int,
        join: messages.JoinGroup,
        options: MemberOptions,
        owned: OwnedPartitions | None = None,
    ) -> None:
        if owned is None:
            receiving = Receiving(host, key, followed(join), options.on_gap)
            owned = OwnedPartitions(host, receiving, join.group, options)
        super().__init__(host, key, followed(join), options.on_gap, owned)
        self.join = join
        self.owned = owned

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.JOIN_GROUP, self.join

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        self.receiving.window.reconnect()
        claims = self.owned.claims()
        wanted = msgspec.structs.replace(self.join, claims=claims, missing="wait", start=None)
        return FrameKind.JOIN_GROUP, wanted

    def opened(self, payload: bytes) -> None:
        epoch = decode(messages.GroupJoined, payload).epoch
        self.join = msgspec.structs.replace(self.join, epoch=epoch)

    def revoked(self, revoke: messages.Revoke) -> None:
        self.owned.revoked(revoke)

    def end(self, error: FanlogError) -> None:
        """No more messages come, and those here are not given out: other members will get them."""
        super().end(error)
        self.owned.ended(lost=not isinstance(error, ClosedError))


class GroupMember(Subscription):
    """Made by `client.consume(...)`; use it with `async with`, then iterate.

    >>> async with client.consume("orders", group="billing") as orders:  # doctest: +SKIP
    ...     async for message in orders:
    ...         bill(message.json())
    """

    def __init__(self, host: MemberHost, core: MemberCore, options: MemberOptions) -> None:
        super().__init__(host, core)
        self._member_core = core
        self._options = options
        self._owned = core.owned
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
            self._owned.commits.start()
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
                    await self._owned.leave()
                finally:
                    await self._host.detach(self._core)
        self._owned.commits.raise_error()

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
        return self._owned.positions()

    def offsets_for_commit(
        self, positions: tuple[messages.Position, ...] | None = None
    ) -> messages.GroupOffsets:
        """These positions, or those of all that was taken, for a transaction to commit.

        >>> tx.commit_offsets(orders)
        """
        if positions is None:
            self._owned.check_hand()
            positions = self.positions
        self._owned.check_hand([TopicPartition(p.topic, p.partition) for p in positions])
        for position in positions:
            self._owned.check_read(
                TopicPartition(position.topic, position.partition), position.offset
            )
        return messages.GroupOffsets(
            self.group, self.member, self._member_core.join.epoch, positions
        )

    def times_came(self, place: TopicPartition) -> int:
        """How often this member has got a partition that it has; 0 if it does not have it."""
        return self._owned.times_came(place)

    async def commit(self, message: Message | None = None) -> None:
        """Commits up to this message, or all that was taken, the one in hand included; in a
        callback, which may come while that one is worked on, all but it. Returns when it is done.
        Raises FencedError if a partition is somebody else's by now; then nothing was committed.

        >>> async for message in orders:
        ...     await orders.commit(message)
        """
        await self._owned.commits.now(self.reached(message))

    def commit_soon(self, message: Message | None = None) -> None:
        """The same in the background. What goes wrong is raised by the next commit or close.

        >>> orders.commit_soon()
        """
        self.commit_reached_soon(self.reached(message))

    async def commit_reached(self, reached: dict[TopicPartition, Reached]) -> None:
        """Commits these places, which the application has read. Returns when it is done."""
        for place, at in reached.items():
            self._owned.check_read(place, at.offset)
        await self._owned.commits.now(reached)

    def commit_reached_soon(self, reached: dict[TopicPartition, Reached]) -> None:
        self._owned.commits.soon(reached)

    def reached(self, message: Message | None) -> dict[TopicPartition, Reached]:
        """What a commit now is of."""
        return self._owned.reached(message)

    async def seek(
        self, start: StartLike, topic: str = "", partition: int | None = None
    ) -> tuple[messages.Position, ...]:
        """Moves in all partitions of this member, in those of a topic, or in one: to "earliest",
        "latest", an offset or a time. Messages received before are dropped, and the next offset
        commit has the new position.

        >>> await orders.seek("earliest", topic="orders", partition=0)
        """
        await self.start()
        return await self._owned.seek(start, topic, partition)
