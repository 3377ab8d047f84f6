"""A member of a group whose messages go to handlers, several at a time. What it has received and
not handled counts against its window, so that a slow handler holds a bounded amount of memory.

A partition that waits, because a message is tried again or takes long, must not fill that window:
nothing would come of the others. Then what came of it and was not begun is dropped, and its cursor
is parked at the end of the log. It comes again when the partition can go on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import msgspec

from fanlog.client.groups.handling import Desk, Parcel
from fanlog.client.groups.member import GroupMember, MemberHost, MemberOptions
from fanlog.client.message import MessageBatch
from fanlog.client.reached import Reached
from fanlog.client.subscription import Subscription
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
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
        options = replace(options, on_gap=options.on_gap or self._log_gap)
        super().__init__(host, key, wanted, options, desk)
        self.desk = desk
        self._connection = 0
        self._held_bytes = 0
        self._held = True
        self._parked: dict[TopicPartition, _Parked] = {}

    def _log_gap(self, gap: Gap) -> None:
        logger.error(
            "Group %s misses the offsets %d to %d of %s/%d: %s",
            self.group,
            gap.first,
            gap.next - 1,
            gap.topic,
            gap.partition,
            gap.reason.value,
        )

    # Receiving

    async def receive(self) -> None:
        """Waits for the next batch, and puts it on the desk."""
        await self.start()
        batch = await Subscription._next_batch(self)
        self._put_on_desk(batch)

    def _take_item(self) -> MessageBatch | None:
        item = self._items[0]
        batch = super()._take_item()
        if batch is None and isinstance(item, MessageBatch):
            # One that can't be read: there is nothing of it to handle.
            self._put_on_desk(item.from_record(item.batch.header.record_count))
        return batch

    def _took(self, batch: MessageBatch) -> None:
        """Its bytes are freed when it was handled, unless they are of a connection before."""
        size = batch.batch.header.length
        self._queued_bytes -= size
        self._held = self._stale_bytes <= 0
        if not self._held:
            self._stale_bytes -= size

    def _put_on_desk(self, batch: MessageBatch) -> None:
        size = batch.batch.header.length
        connection = self._connection if self._held else -1
        self._held_bytes += size

        def done() -> None:
            self._held_bytes -= size
            if connection == self._connection:
                self._consume(size)

        parcel = Parcel(batch, done)
        if self._partings.is_stale(batch.batch):
            # It is in no log any more, and the application was told of the gap.
            done()
        else:
            self.desk.put(TopicPartition(batch.topic, batch.partition), parcel)

    def handled(self, place: TopicPartition) -> None:
        """A message of this partition is not in hand any more."""
        parked = self._parked.get(place)
        if parked is not None and self.desk.is_drained(place):
            parked.drained.set()
        if place in self._revoking and not self.desk.holds(place):
            self._attend_soon()

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        self._connection += 1
        for place in list(self._parked):
            # The broker continues at its offset, as everywhere.
            self._unpark(place)
            self._muted.discard(place)
        return super().resuming()

    def end(self, error: FanlogError) -> None:
        for place in list(self._parked):
            self._unpark(place)
        super().end(error)

    # Room for others

    def make_room(self) -> None:
        """Parks the partition that holds most of what waits, where that keeps others from coming.
        To be called when a handler is idle."""
        window = self._wanted.window_bytes
        if not window or self._held_bytes < window // 2 or len(self._active) < 2:
            return
        place = self.desk.hoarding()
        if place is None or place in self._parked or place not in self._active:
            return
        # First: what it frees may bring more at once.
        self._muted.add(place)
        offset = self.desk.drop_waiting(place)
        if offset is None:
            self._muted.discard(place)
            return
        self._drop_queued(place)
        self._next[place] = offset
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

    def _place(self, place: TopicPartition, start: Reached, last: Reached | None) -> None:
        parked = self._parked.get(place)
        if parked is None:
            super()._place(place, start, last)
            return
        self._epochs[place] = start.epoch
        if parked.returning or start.offset == parked.offset:
            self._next[place] = start.offset
            self._muted.discard(place)
            # Its task gets the answer, which is behind this.
            del self._parked[place]

    def missed_some(self, notice: messages.GapNotice) -> None:
        place = (self._names.get(notice.number, ""), notice.partition)
        if place not in self._parked:
            super().missed_some(notice)

    def _retire(self, place: TopicPartition) -> None:
        self._unpark(place)
        super()._retire(place)
