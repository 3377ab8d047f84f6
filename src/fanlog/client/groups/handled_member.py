"""A member of a group whose messages go to handlers, several at a time. What it has received and
not handled counts against its window, so that a slow handler holds a bounded amount of memory.

A partition that waits, because a message is tried again or takes long, must not fill that window:
nothing would come of the others. Then what came of it and was not begun is dropped, and its cursor
is parked at the end of the log. It comes again when the partition can go on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial

from fanlog.client.core.reached import Reached
from fanlog.client.core.receiving import Receiving
from fanlog.client.groups.handling import Desk, Parcel
from fanlog.client.groups.member import GroupMember, MemberCore, MemberHost, followed
from fanlog.client.groups.partitions import MemberOptions, OwnedPartitions
from fanlog.client.message import MessageBatch
from fanlog.client.subscription import next_batch
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.model import Gap, TopicPartition

logger = logging.getLogger("fanlog.client")


class _Parked:
    """Where a parked partition continues. It is `drained` when all that came of it was begun, and
    `returning` when the broker was asked for more."""

    __slots__ = ("drained", "offset", "returning", "task")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.drained = asyncio.Event()
        self.returning = False
        self.task: asyncio.Task[None] | None = None


class HandledPartitions(OwnedPartitions):
    """The partitions of such a member. Their messages wait on the desk until they are handled."""

    def __init__(
        self,
        host: MemberHost,
        receiving: Receiving,
        wanted: messages.JoinGroup,
        options: MemberOptions,
        desk: Desk,
    ) -> None:
        super().__init__(host, receiving, wanted.group, options, desk)
        self._desk = desk
        self._window_bytes = wanted.window_bytes
        self._connection = 0
        self._held_bytes = 0
        # Whether the batch that was taken last came on this connection.
        self._fresh = True
        self._parked: dict[TopicPartition, _Parked] = {}

    # Receiving

    async def receive(self) -> None:
        """Waits for the next batch, and puts it on the desk."""
        self._put_on_desk(await next_batch(self))

    def maybe_next(self) -> MessageBatch | None:
        return self.receiving.maybe_take(self)

    def took(self, batch: MessageBatch) -> None:
        """Its bytes are freed when it was handled, unless they are of a connection before."""
        self._fresh = self.receiving.window.take(batch.batch.header.length)

    def unreadable(self, batch: MessageBatch) -> None:
        """There is nothing of it to handle."""
        self._put_on_desk(batch.from_record(batch.batch.header.record_count))

    def _put_on_desk(self, batch: MessageBatch) -> None:
        size = batch.batch.header.length
        connection = self._connection if self._fresh else -1
        self._held_bytes += size

        def done() -> None:
            self._held_bytes -= size
            if connection == self._connection:
                self.receiving.window.consume(size)

        parcel = Parcel(batch, done)
        if self.receiving.partings.is_stale(batch.batch):
            # It is in no log any more, and the application was told of the gap.
            done()
        else:
            self._desk.put(TopicPartition(batch.topic, batch.partition), parcel)

    def handled(self, place: TopicPartition) -> None:
        """A message of this partition is not in hand any more."""
        parked = self._parked.get(place)
        if parked is not None and self._desk.is_drained(place):
            parked.drained.set()
        if place in self.attendant.revoking and not self._desk.holds(place):
            self.attendant.soon()

    def claims(self) -> tuple[messages.Claim, ...]:
        self._connection += 1
        for place in list(self._parked):
            # The broker continues at its offset, as everywhere.
            self._unpark(place)
            self.receiving.muted.discard(place)
        return super().claims()

    def ended(self, *, lost: bool) -> None:
        for place in list(self._parked):
            self._unpark(place)
        super().ended(lost=lost)

    # Room for others

    def make_room(self) -> None:
        """Parks the partition that holds most of what waits, where that keeps others from coming.
        To be called when a handler is idle."""
        window = self._window_bytes
        if not window or self._held_bytes < window // 2 or len(self.active) < 2:
            return
        place = self._desk.hoarding()
        if place is None or place in self._parked or place not in self.active:
            return
        # First, because the freed window may bring more at once.
        self.receiving.muted.add(place)
        offset = self._desk.drop_waiting(place)
        if offset is None:
            self.receiving.muted.discard(place)
            return
        self.receiving.drop_queued(place)
        self.receiving.next[place] = offset
        parked = self._parked[place] = _Parked(offset)
        parked.task = asyncio.get_running_loop().create_task(self._park(place, parked))

    async def _park(self, place: TopicPartition, parked: _Parked) -> None:
        try:
            await self.seek("latest", *place)
            await parked.drained.wait()
            if self._parked.get(place) is parked:
                parked.returning = True
                await self.seek(parked.offset, *place)
        except FanlogError as fault:
            # The partition is gone, or the connection is: both say where it continues.
            logger.debug("Group %s could not park %s/%d: %s", self.group, *place, fault)

    def _unpark(self, place: TopicPartition) -> None:
        parked = self._parked.pop(place, None)
        if parked is not None and parked.task is not None:
            parked.task.cancel()

    def placed(self, place: TopicPartition, start: Reached, last: Reached | None) -> None:
        parked = self._parked.get(place)
        if parked is None:
            super().placed(place, start, last)
            return
        self.receiving.epochs[place] = start.epoch
        if parked.returning or start.offset == parked.offset:
            self.receiving.next[place] = start.offset
            self.receiving.muted.discard(place)
            # Its task gets the answer, which is behind this.
            del self._parked[place]

    def is_parked(self, place: TopicPartition) -> bool:
        return place in self._parked

    def retire(self, place: TopicPartition) -> None:
        self._unpark(place)
        super().retire(place)


class HandledMemberCore(MemberCore):
    """The follower of such a member. Gaps of parked partitions come again when they return."""

    def __init__(
        self,
        host: MemberHost,
        key: int,
        join: messages.JoinGroup,
        options: MemberOptions,
        owned: HandledPartitions,
    ) -> None:
        super().__init__(host, key, join, options, owned)
        self._handled_partitions = owned

    def missed_some(self, notice: messages.GapNotice) -> None:
        name = self.receiving.names.get(notice.number, "")
        if not self._handled_partitions.is_parked(TopicPartition(name, notice.partition)):
            super().missed_some(notice)


class HandledMember(GroupMember):
    """Made by `client.consume(topic, handler, ...)`."""

    def __init__(
        self,
        host: MemberHost,
        key: int,
        wanted: messages.JoinGroup,
        options: MemberOptions,
        desk: Desk,
    ) -> None:
        # A gap must not end what runs for good: after a new start it would be there again.
        options = replace(options, on_gap=options.on_gap or partial(_log_gap, wanted.group))
        receiving = Receiving(host, key, followed(wanted), options.on_gap)
        self.desk = desk
        self.handled_partitions = HandledPartitions(host, receiving, wanted, options, desk)
        core = HandledMemberCore(host, key, wanted, options, self.handled_partitions)
        super().__init__(host, core, options)

    async def receive(self) -> None:
        """Waits for the next batch, and puts it on the desk."""
        await self.start()
        await self.handled_partitions.receive()


def _log_gap(group: str, gap: Gap) -> None:
    logger.error(
        "Group %s misses the offsets %d to %d of %s/%d: %s",
        group,
        gap.first,
        gap.next - 1,
        gap.topic,
        gap.partition,
        gap.reason.value,
    )
