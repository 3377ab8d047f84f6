"""The partitions of a member whose messages go to handlers, without I/O. What it has received and
not handled counts against its window, so that a slow handler holds a bounded amount of memory.

A partition that waits, because a message is tried again or takes long, must not fill that window:
then no messages of other partitions would come. So its messages that were not begun are dropped,
and its cursor is parked at the end of the log. They come again when the partition can resume.

| state     | meaning                                                                   |
| --------- | ------------------------------------------------------------------------- |
| LEAVING   | the shell moves its cursor to the end; what was begun is still handled    |
| DRAINED   | all that came of it was begun                                             |
| RETURNING | the shell moves its cursor back to where it was parked                    |
| OVER      | it is read from there, or the member does not read it any more            |
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from fanlog.client.core.handling import Desk, Parcel
from fanlog.client.core.member_core import MemberCore
from fanlog.client.core.offset_commits import CommitMode
from fanlog.client.core.owned_partitions import OwnedPartitions
from fanlog.client.core.reached import Reached
from fanlog.client.core.receiving import Receiving, ReceivingHost
from fanlog.client.message import MessageBatch
from fanlog.format import messages
from fanlog.model import TopicPartition


class ParkingState(Enum):
    LEAVING = auto()
    DRAINED = auto()
    RETURNING = auto()
    OVER = auto()


_P = ParkingState
PARKING_TRANSITIONS: dict[ParkingState, frozenset[ParkingState]] = {
    _P.LEAVING: frozenset({_P.DRAINED, _P.OVER}),
    _P.DRAINED: frozenset({_P.RETURNING, _P.OVER}),
    _P.RETURNING: frozenset({_P.OVER}),
    _P.OVER: frozenset(),
}


class ParkedPartition:
    """Where a parked partition continues. `on_change` is called when the shell need not wait any
    longer, and `on_dropped` when it has to stop moving the cursor."""

    __slots__ = ("offset", "on_change", "on_dropped", "partition", "state")

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.state = ParkingState.LEAVING
        self.on_change: Callable[[], None] | None = None
        self.on_dropped: Callable[[], None] | None = None

    def change(self, state: ParkingState) -> bool:
        """Whether it is in that state now. An event that comes too late changes nothing."""
        if state not in PARKING_TRANSITIONS[self.state]:
            return False
        self.state = state
        if state in (_P.DRAINED, _P.OVER) and self.on_change is not None:
            self.on_change()
        return True


class HandledPartitions(OwnedPartitions):
    """Their messages wait on the desk until they are handled."""

    def __init__(
        self,
        host: ReceivingHost,
        receiving: Receiving,
        join: messages.JoinGroup,
        desk: Desk,
        *,
        commit: CommitMode = "auto",
        announces: bool = False,
    ) -> None:
        super().__init__(
            host, receiving, join.group, commit=commit, announces=announces, progress=desk
        )
        self._desk = desk
        self._window_bytes = join.window_bytes
        self._connection = 0
        self._held_bytes = 0
        # Whether the batch that was taken last came on this connection.
        self._fresh = True
        self._parked: dict[TopicPartition, ParkedPartition] = {}

    # Receiving

    def maybe_next(self) -> MessageBatch | None:
        return self.receiving.maybe_take(self)

    def took(self, batch: MessageBatch) -> None:
        """Its bytes are freed when it was handled, unless they are of a connection before."""
        self._fresh = self.receiving.window.take(batch.batch.header.length)

    def unreadable(self, batch: MessageBatch) -> None:
        """There is nothing of it to handle."""
        self.put_on_desk(batch.from_record(batch.batch.header.record_count))

    def put_on_desk(self, batch: MessageBatch) -> None:
        """The batch that was taken last will be handled."""
        size = batch.batch.header.length
        connection = self._connection if self._fresh else -1
        self._held_bytes += size

        def done() -> None:
            self._held_bytes -= size
            if connection == self._connection:
                self.receiving.window.consume(size)

        parcel = Parcel(batch, done)
        if self.receiving.partings.is_stale(batch.batch):
            # It is in no log any more, and the application was notified of the gap.
            done()
        else:
            self._desk.put(TopicPartition(batch.topic, batch.partition), parcel)

    def handled(self, partition: TopicPartition) -> None:
        """A message of this partition is not in hand any more."""
        parked = self._parked.get(partition)
        if parked is not None and self._desk.is_drained(partition):
            parked.change(ParkingState.DRAINED)
        if partition in self.grants.going and not self._desk.holds(partition):
            self.grants.look()

    def claims(self) -> tuple[messages.Claim, ...]:
        self._connection += 1
        for partition in list(self._parked):
            # The broker continues at its offset, as everywhere.
            self._unpark(partition)
            self.receiving.muted.discard(partition)
        return super().claims()

    def ended(self, *, lost: bool) -> None:
        for partition in list(self._parked):
            self._unpark(partition)
        super().ended(lost=lost)

    # Room for others

    def maybe_park(self) -> ParkedPartition | None:
        """Parks the partition with the most waiting messages, if they keep others from coming. Call
        it when a handler is idle. The shell moves the cursor of the returned partition."""
        window = self._window_bytes
        if not window or self._held_bytes < window // 2 or len(self.active) < 2:
            return None
        partition = self._desk.hoarding()
        if partition is None or partition in self._parked or partition not in self.active:
            return None
        # First, because the freed window may bring more at once.
        self.receiving.muted.add(partition)
        offset = self._desk.drop_waiting(partition)
        if offset is None:
            self.receiving.muted.discard(partition)
            return None
        self.receiving.drop_queued(partition)
        self.receiving.next[partition] = offset
        parked = self._parked[partition] = ParkedPartition(partition, offset)
        return parked

    def may_return(self, parked: ParkedPartition) -> bool:
        """Whether to move the cursor of a drained partition back now."""
        return parked.change(ParkingState.RETURNING)

    def _unpark(self, partition: TopicPartition) -> None:
        parked = self._parked.pop(partition, None)
        if parked is not None:
            parked.change(ParkingState.OVER)
            if parked.on_dropped is not None:
                parked.on_dropped()

    def positioned(self, tp: TopicPartition, start: Reached, last: Reached | None) -> None:
        parked = self._parked.get(tp)
        if parked is None:
            super().positioned(tp, start, last)
            return
        self.receiving.epochs[tp] = start.epoch
        if parked.state is ParkingState.RETURNING or start.offset == parked.offset:
            self.receiving.next[tp] = start.offset
            self.receiving.muted.discard(tp)
            # The shell gets its answer behind this: it is not stopped.
            parked.change(ParkingState.OVER)
            del self._parked[tp]

    def is_parked(self, partition: TopicPartition) -> bool:
        return partition in self._parked

    def retire(self, tp: TopicPartition) -> None:
        self._unpark(tp)
        super().retire(tp)


class HandledMemberCore(MemberCore):
    """The follower of such a member. Gaps of parked partitions come again when they return."""

    def __init__(
        self, host: ReceivingHost, key: int, join: messages.JoinGroup, owned: HandledPartitions
    ) -> None:
        super().__init__(host, key, join, owned)
        self._handled_partitions = owned

    def missed_some(self, notice: messages.GapNotice) -> None:
        name = self.receiving.names.get(notice.number, "")
        if not self._handled_partitions.is_parked(TopicPartition(name, notice.partition)):
            super().missed_some(notice)
