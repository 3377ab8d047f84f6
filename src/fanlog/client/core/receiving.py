"""What comes of the partitions that a subscription or a group's member reads: where each partition
continues, also on the next connection, and the batches that were not taken yet.

Law: of each partition the batches are given in order, each offset once. What is missing is a gap,
which is raised or reported, never left out silently."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fanlog.client.core.arrivals import Arrivals
from fanlog.client.core.credit_window import CreditWindow
from fanlog.client.core.reached import Partings, Reached
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import FanlogError, MessagesLostError, UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.frames import credit_frame
from fanlog.format.messages import GapNotice, Joined, Left, Notice, Position, Subscribe
from fanlog.model import Gap, GapReason, SlowPolicy, TopicPartition

logger = logging.getLogger("fanlog.client")

OnGap = Callable[[Gap], None]


class ReceivingHost(Protocol):
    """The client, as far as receiving needs it."""

    def write(self, data: bytes) -> None: ...
    def decoded(self, batch: Batch) -> MessageBatch: ...


class ReaderProgress(Protocol):
    """Keeps account of how far the application is. A subscription and a member of a group do so in
    different ways."""

    def positioned(self, tp: TopicPartition, start: Reached, last: Reached | None) -> None:
        """The broker begins at `start`; `last` is where this reader was, if it comes back."""
        ...

    def took(self, batch: MessageBatch) -> None:
        """The application gets a batch."""
        ...

    def unreadable(self, batch: MessageBatch) -> None:
        """A batch was left out, because it does not decode; after `took`."""
        ...


class Receiving:
    """The partitions of one follower, whose number on the connection is `key`."""

    def __init__(
        self, host: ReceivingHost, key: int, wanted: Subscribe, on_gap: OnGap | None
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._on_gap = on_gap
        self.key = key
        self.arrivals: Arrivals[MessageBatch] = Arrivals()
        self.window = CreditWindow(wanted.window_bytes, self._grant)
        self.partings = Partings()
        self.names: dict[int, str] = {}
        self.numbers: dict[str, int] = {}
        self.next: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        # Partitions whose messages are dropped, whatever is still on its way.
        self.muted: set[TopicPartition] = set()
        # Batches of partitions that are held back.
        self._held_back: dict[TopicPartition, list[MessageBatch]] = {}
        # Offsets below it are left out. It belongs to a topic that did not exist when the reader
        # subscribed.
        self._floor = 0
        # The message in hand, where messages are taken one by one.
        self.current: Message | None = None
        self.gaps = 0
        self.missed = 0

    def _grant(self, until: int) -> None:
        if self.arrivals.closed is None:
            self._host.write(credit_frame(self.key, until))

    # For the application

    def maybe_take(self, progress: ReaderProgress) -> MessageBatch | None:
        """The next batch, if one has come that can be read."""
        return self.take(progress) if self.arrivals.items else None

    def take(self, progress: ReaderProgress) -> MessageBatch | None:
        """The next batch that decodes completely. One that can't is a gap: it is raised, or, if
        that is what `on_gap` is for, left out."""
        batch = self.arrivals.take()
        progress.took(batch)
        try:
            batch.batch.check()
        except UnreadableError as fault:
            gap = Gap(
                batch.topic, batch.partition, batch.base_offset, fault.next, GapReason.UNREADABLE
            )
            self.gaps += 1
            self.missed += len(batch)
            if self._on_gap is None:
                raise lost_error(gap) from fault
            logger.warning("%s", fault)
            self._on_gap(gap)
            progress.unreadable(batch)
            return None
        return batch

    # From the link

    def joined(self, joined: Joined, progress: ReaderProgress) -> None:
        """Partitions of a topic are read from now on."""
        before = self.numbers.get(joined.name)
        if before is not None and self.names.get(before) == joined.name:
            del self.names[before]
        self.names[joined.number] = joined.name
        self.numbers[joined.name] = joined.number
        for start in joined.starts:
            tp = TopicPartition(joined.name, start.partition)
            last = None
            if tp in self.next:
                last = Reached(self.next[tp], self.epochs.get(tp, 0), before or 0)
            progress.positioned(tp, Reached(start.offset, joined.epoch, joined.number), last)

    def left(self, left: Left) -> None:
        """A topic is gone."""
        self._floor = 0
        self.names.pop(left.number, None)
        self.numbers.pop(left.name, None)
        for known in (self.next, self.epochs):
            for tp in [tp for tp in known if tp[0] == left.name]:
                del known[tp]

    def noticed(self, notice: Notice) -> None:
        if notice.kind == "missing" and self._wanted.start.kind == "offset" and not self.next:
            self._floor = self._wanted.start.value

    def delivered(self, batch: Batch) -> None:
        header = batch.header
        name = self.names.get(header.topic)
        if name is None or (tp := TopicPartition(name, header.partition)) in self.muted:
            self.window.consume(header.length)
            return
        wanted = self.next.get(tp, 0)
        end = batch.next_offset
        if wanted >= end:
            self.window.consume(header.length)
            return
        self.next[tp] = end
        if header.leader_epoch > self.epochs.get(tp, 0):
            # An edge continues with the next broker, and its readers don't join again.
            self.epochs[tp] = header.leader_epoch
        if self._floor > wanted:
            wanted = self._floor
            if wanted >= end:
                self.window.consume(header.length)
                return
        batch.topic_name = name
        self.window.queued_bytes += header.length
        coming = self._host.decoded(batch).from_offset(wanted)
        if self._held_back and tp in self._held_back:
            self._held_back[tp].append(coming)
        else:
            self.arrivals.put(coming)

    def missed_some(self, notice: GapNotice) -> None:
        name = self.names.get(notice.number, "")
        gap = Gap(name, notice.partition, notice.first, notice.next, notice.reason)
        self.next[TopicPartition(name, notice.partition)] = notice.next
        self.gaps += 1
        self.missed += max(0, notice.next - notice.first)
        if self._on_gap is not None:
            self._on_gap(gap)
        elif self._wanted.policy is SlowPolicy.SKIP and gap.reason is GapReason.SKIPPED:
            logger.warning("%s", lost_error(gap))
        else:
            self.arrivals.put(lost_error(gap))

    def position(self, tp: TopicPartition) -> Position:
        """Where a partition continues on the next connection."""
        epoch, number = self.epochs.get(tp, 0), self.numbers.get(tp[0], 0)
        return Position(*tp, self.next[tp], epoch=epoch, number=number)

    # Partitions that come and go

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not read any more."""
        self.next.pop(tp, None)
        self.epochs.pop(tp, None)

    def hold_back(self, tp: TopicPartition) -> None:
        """Gives nothing of a partition until `let_through`."""
        self._held_back[tp] = []

    def let_through(self, tp: TopicPartition) -> None:
        for batch in self._held_back.pop(tp, ()):
            self.arrivals.put(batch)

    def drop_all(self) -> None:
        """Drops all that has come and was not given yet; no more will come."""
        self.arrivals.items.clear()
        self._held_back.clear()

    def drop_queued(self, tp: TopicPartition) -> None:
        """Drops what has come of a partition and was not given yet. What came on a connection
        before this one had its bytes counted there."""
        arrivals = self.arrivals
        if held_back := self._held_back.get(tp):
            arrivals.items.extend(held_back)
            self._held_back[tp] = []
        if not arrivals.items:
            return
        stale_bytes = self.window.stale_bytes
        freed = 0
        kept: deque[MessageBatch | FanlogError] = deque()
        for item in arrivals.items:
            if not isinstance(item, MessageBatch):
                kept.append(item)
                continue
            size = item.batch.header.length
            stale = stale_bytes > 0
            stale_bytes -= size if stale else 0
            if (item.topic, item.partition) != tp:
                kept.append(item)
                continue
            self.window.queued_bytes -= size
            if stale:
                self.window.stale_bytes -= size
            else:
                freed += size
        arrivals.items = kept
        # Last: a broker in this program sends more at once.
        self.window.consume(freed)


def lost_error(gap: Gap) -> MessagesLostError:
    where = f"partition {gap.partition} of {gap.topic!r}"
    if gap.reason is GapReason.RESET:
        text = (
            f"The log of {where} has changed since it was read up to offset {gap.first - 1}: a "
            "power cut took its end, the topic was created again, or the topic lives in memory "
            "and the broker was restarted. Messages after that offset may be lost; reading "
            f"continues at offset {gap.next}."
        )
    else:
        because = {
            GapReason.SKIPPED: "the reader was too slow and its policy is to skip",
            GapReason.RETENTION: "they were deleted before they were read",
            GapReason.DAMAGED: "they are damaged on disk",
            GapReason.UNREADABLE: "their producer made a batch that does not decode",
        }[gap.reason]
        text = f"Offsets {gap.first} to {gap.next - 1} of {where} can't be delivered: {because}."
    return MessagesLostError(
        text,
        topic=gap.topic,
        partition=gap.partition,
        first=gap.first,
        next=gap.next,
        reason=gap.reason.value,
    )
