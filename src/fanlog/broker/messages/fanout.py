"""Fan-out: one pass over a partition's live cursors for each piece that becomes visible, and the
way back to live for cursors that fell behind.

Each reader gets one `send` of shared memory per piece. A reader whose socket is full leaves the
pass and costs nothing until it is writable again. It then reads the missed pieces from the tail or
from disk, by offset.

It is long because the pass over live cursors and the way back to live hand cursors to each
other, within a turn.
"""

from __future__ import annotations

import logging
from functools import partial
from heapq import heapify, heappop, heapreplace

from fanlog.broker.messages.audience import PartitionAudience
from fanlog.broker.messages.drop_notes import DropKind, DropNotes
from fanlog.broker.messages.loader import Loader
from fanlog.broker.messages.topics import BrokerSubscription, Cursor, Outlet, Partition
from fanlog.broker.messages.tracing import Traces
from fanlog.broker.messages.views import LivePiece, Renderer
from fanlog.broker.messages.wire_forms import AnyView
from fanlog.broker.ports import Runtime
from fanlog.errors import (
    DamagedError,
    FanlogError,
    OffsetOutOfRangeError,
    SlowReaderError,
    UnavailableError,
)
from fanlog.format.header import read_header
from fanlog.format.record_views import RecordView
from fanlog.log.partition import Block
from fanlog.model import Gap, GapReason, SlowPolicy

logger = logging.getLogger("fanlog.broker")

# A reader that catches up sends this much before others get their turn.
_TURN_BYTES = 1 << 20
_SWEEP_US = 1_000_000


class FanOut:
    """Moves cursors. All of it runs on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        loader: Loader,
        renderer: Renderer,
        notes: DropNotes,
        traces: Traces,
    ) -> None:
        self._runtime = runtime
        self.traces = traces
        self._loader = loader
        self._renderer = renderer
        self._notes = notes
        self._disconnectable: dict[Cursor, None] = {}
        self._swept_at_us = 0
        self._together: dict[Outlet, list[Cursor]] = {}
        self._views_shown = False
        self.delivered_bytes = 0
        self.delivered_records = 0
        # Readers that were too slow for the tail and had to read from disk.
        self.catch_ups = 0

    def publish(
        self,
        partition: Partition,
        audience: PartitionAudience[Cursor],
        piece: bytes,
        base_offset: int,
    ) -> None:
        """Sends a piece that has just become visible to every live cursor of the partition."""
        if audience.viewed:
            self._publish_views(partition, audience, piece, base_offset)
        live = audience.live
        if not live:
            return
        size = len(piece)
        next_offset = partition.visible_end
        left: list[Cursor] = []
        unserved = 0
        for cursor in live:
            outlet = cursor.outlet
            subscription = cursor.subscription
            if outlet.blocked:
                cursor.offset = base_offset
                left.append(cursor)
                unserved += 1
                continue
            if outlet.feed is subscription:
                try:
                    sent = outlet.send(piece)
                except BlockingIOError:
                    sent = 0
                except OSError as fault:
                    cursor.offset = base_offset
                    outlet.lost(fault)
                    unserved += 1
                    continue
                if sent != size:
                    outlet.hold(piece, sent)
            else:
                outlet.push(subscription, [memoryview(piece)])
            subscription.sent_bytes += size
            if outlet.blocked or subscription.sent_bytes >= subscription.limit_bytes:
                cursor.offset = next_offset
                left.append(cursor)
        served = len(live) - unserved
        self.delivered_bytes += size * served
        self.delivered_records += (next_offset - base_offset) * served
        for cursor in left:
            del live[cursor]
            cursor.live = False
            self._park(cursor)

    def _publish_views(
        self,
        partition: Partition,
        audience: PartitionAudience[Cursor],
        piece: bytes,
        base_offset: int,
    ) -> None:
        """The same for cursors with a view: one rendering for all that share it. Its pieces need no
        marker, whichever subscription they belong to."""
        self._views_shown = True
        next_offset = partition.visible_end
        shown = LivePiece(self._renderer, partition, piece, base_offset)
        left: list[Cursor] = []
        late: list[Cursor] = []
        for view, cursors in audience.viewed.items():
            if shown.is_late(view):
                late += cursors
                continue
            rendered, size, served = None, 0, 0
            for cursor in cursors:
                outlet = cursor.outlet
                if outlet.blocked:
                    cursor.offset = base_offset
                    left.append(cursor)
                    continue
                if cursor.several:
                    cursor.offset = base_offset
                    self._together.setdefault(outlet, []).append(cursor)
                    continue
                if rendered is None:
                    rendered = shown.render(view)
                    size = len(rendered)
                if not size:
                    continue
                try:
                    sent = outlet.send(rendered)
                except BlockingIOError:
                    sent = 0
                except OSError as fault:
                    cursor.offset = base_offset
                    outlet.lost(fault)
                    continue
                if sent != size:
                    outlet.hold(rendered, sent)
                    cursor.offset = next_offset
                    left.append(cursor)
                elif outlet.blocked:
                    # It has taken all of the piece, and is full now.
                    cursor.offset = next_offset
                    left.append(cursor)
                served += 1
            self.delivered_bytes += size * served
            self.delivered_records += (next_offset - base_offset) * served
        for cursor in left:
            self._leave(cursor)
            self._park(cursor)
        for cursor in late:
            # It takes long to decode: they read it back from the tail.
            cursor.offset = base_offset
            self._leave(cursor)
            self._runtime.soon(partial(self._continue, cursor))

    def end_turn(self) -> None:
        """Sends readers of several partitions the pieces of this turn, in the order of
        publishing."""
        if not self._views_shown:
            return
        self._views_shown = False
        together, self._together = self._together, {}
        for outlet, cursors in together.items():
            both = [(c.partition, c.view) for c in cursors]
            keys = tuple((p, v) for p, v in both if v and not isinstance(v, RecordView))
            composed, records = self._renderer.compose(keys)
            try:
                sent = outlet.send(composed)
            except BlockingIOError:
                sent = 0
            except OSError as fault:
                outlet.lost(fault)
                continue
            self.delivered_bytes += len(composed)
            self.delivered_records += records
            if sent != len(composed):
                outlet.hold(composed, sent)
                for cursor in cursors:
                    cursor.offset = cursor.partition.visible_end
                    self._leave(cursor)
                    self._park(cursor)
        self._renderer.end_turn()

    def add(self, cursor: Cursor) -> None:
        """A cursor of a subscription: it counts as a reader. Nothing is sent before `start`."""
        cursor.subscription.cursors.append(cursor)
        cursor.partition.readers += 1

    def start(self, cursor: Cursor) -> None:
        """Sends the cursor all existing messages; then it is live."""
        cursor.started = True
        self.pump(cursor)

    def show(self, partition: Partition, base_offset: int) -> None:
        """For a mirror whose log continues elsewhere: cursors at the end read again from
        `base_offset`, like those that are behind, and waiting fetches wake up."""
        audience = partition.audience
        if audience is None:
            return
        for cursor in list(audience.cursors()):
            cursor.offset = base_offset
            audience.leave(cursor)
            self.pump(cursor)
        audience.wake()

    def pump(self, cursor: Cursor) -> None:
        """Sends the pieces that the cursor has not seen, until it is live, its socket or window is
        full, or other readers should have a turn."""
        budget = _TURN_BYTES
        while not self._park(cursor):
            partition = cursor.partition
            if cursor.offset >= partition.visible_end:
                self._go_live(cursor)
                return
            if budget <= 0:
                self._runtime.soon(lambda: self._continue(cursor))
                return
            if not self._within_kept(cursor):
                continue
            tail = partition.log.tail
            if cursor.offset < tail.start_offset:
                if self._may_read_disk(cursor):
                    self._loader.load(
                        partition, cursor.offset, lambda got: self._loaded(cursor, got)
                    )
                    return
                continue
            pieces, next_offset = tail.read(cursor.offset, partition.visible_end, budget)
            if cursor.view is not None:
                small = self._renderer.count_small(cursor.view, pieces)
                if not small:
                    self._render_first(cursor, cursor.view, pieces[0])
                    return
                if small < len(pieces):
                    next_offset = read_header(pieces[small]).base_offset
                    pieces = pieces[:small]
            budget -= self._push(cursor, pieces, next_offset)

    def _render_first(self, cursor: Cursor, view: AnyView, piece: memoryview) -> None:
        """Sends the cursor the first batches of a piece that takes long to decode, and then the
        rest."""

        def rendered(shown: memoryview) -> None:
            # Through the loop: a kept rendering calls back at once, before `next_offset` has a
            # value.
            self._runtime.soon(lambda: self._rendered(cursor, shown, next_offset))

        partition, first = cursor.partition, cursor.offset
        next_offset = self._renderer.render_first(partition, view, piece, first, rendered)

    def _rendered(self, cursor: Cursor, shown: memoryview, next_offset: int) -> None:
        # Other cursors of its connection may have filled it meanwhile; the rendering is kept.
        if not self._park(cursor):
            self.delivered_records += max(0, next_offset - cursor.offset)
            cursor.offset = next_offset
            self._send(cursor, [shown])
            self._continue(cursor)

    def resume(self, outlet: Outlet) -> None:
        """The outlet takes bytes again: the cursors that waited for it resume, in turn."""
        waiting, outlet.waiting = outlet.waiting, []
        if len(waiting) > 1 and waiting[0].several:
            self._pump_together(outlet, waiting)
            return
        for i, cursor in enumerate(waiting):
            if outlet.blocked:
                outlet.waiting = waiting[i:] + outlet.waiting
                return
            self.pump(cursor)

    def _pump_together(self, outlet: Outlet, waiting: list[Cursor]) -> None:
        """Sends a reader of several partitions the pieces in the tails, oldest first."""
        ready: list[tuple[int, int, Cursor]] = []
        for i, cursor in enumerate(waiting):
            if self._is_in_tail(cursor):
                ready.append((_next_time_us(cursor), i, cursor))
            else:
                self.pump(cursor)
        heapify(ready)
        while ready and not outlet.blocked:
            _, i, cursor = ready[0]
            partition = cursor.partition
            tail = partition.log.tail
            pieces, next_offset = tail.read(cursor.offset, partition.visible_end, 1)
            if cursor.view is not None and not self._renderer.count_small(cursor.view, pieces):
                heappop(ready)
                self._render_first(cursor, cursor.view, pieces[0])
                continue
            self._push(cursor, pieces, next_offset)
            if cursor.offset < partition.visible_end:
                heapreplace(ready, (_next_time_us(cursor), i, cursor))
            else:
                heappop(ready)
                self.pump(cursor)
        for _, _, cursor in ready:
            self._park(cursor)

    def _is_in_tail(self, cursor: Cursor) -> bool:
        """Whether the tail has the cursor's next offset."""
        partition = cursor.partition
        if cursor.subscription.closed or cursor.dropped or partition.topic.deleted:
            return False
        return partition.log.tail.start_offset <= cursor.offset < partition.visible_end

    def grant(self, subscription: BrokerSubscription, limit_bytes: int) -> None:
        """The reader has taken messages in: it may be sent up to `limit_bytes` in all."""
        subscription.limit_bytes = max(subscription.limit_bytes, limit_bytes)
        paused, subscription.paused = subscription.paused, None
        for cursor in paused or ():
            self.pump(cursor)

    def remove(self, cursor: Cursor) -> None:
        """Takes the cursor out of whatever it is in; its subscription is closed."""
        self._leave(cursor)
        self._disconnectable.pop(cursor, None)
        cursor.partition.readers -= 1

    def tick(self) -> None:
        """Sweeps once a second. The broker calls this several times a second."""
        now_us = self._runtime.monotonic_us()
        if now_us - self._swept_at_us >= _SWEEP_US:
            self._swept_at_us = now_us
            self.sweep()

    def sweep(self) -> None:
        """Disconnects readers with the `disconnect` policy that fell behind the tail."""
        for cursor in list(self._disconnectable):
            # A reader may be behind in several partitions: it is disconnected, and counted, once.
            if cursor.subscription.closed or cursor.behind:
                continue
            if cursor.offset < cursor.partition.log.tail.start_offset:
                self._disconnect(cursor)

    def _park(self, cursor: Cursor) -> bool:
        """True if the cursor can't continue now. Then it is registered where it will be woken."""
        subscription = cursor.subscription
        if subscription.closed or cursor.dropped or cursor.partition.topic.deleted:
            return True
        if cursor.outlet.blocked:
            cursor.outlet.waiting.append(cursor)
        elif subscription.sent_bytes >= subscription.limit_bytes:
            if subscription.paused is None:
                subscription.paused = []
            subscription.paused.append(cursor)
        else:
            return False
        if subscription.policy is SlowPolicy.DISCONNECT:
            self._disconnectable[cursor] = None
        return True

    def _continue(self, cursor: Cursor) -> None:
        if not cursor.subscription.closed and not cursor.dropped:
            self.pump(cursor)

    def _leave(self, cursor: Cursor) -> None:
        """Takes the cursor out of the pass."""
        audience = cursor.partition.audience
        if cursor.live and audience is not None:
            audience.leave(cursor)

    def _go_live(self, cursor: Cursor) -> None:
        cursor.partition.keep_audience().join(cursor)
        cursor.behind = False
        self._disconnectable.pop(cursor, None)

    def _push(self, cursor: Cursor, pieces: list[memoryview], next_offset: int) -> int:
        """Sends pieces up to an offset. Returns the bytes that count for the turn."""
        view, first = cursor.view, cursor.offset
        cursor.offset = next_offset
        self.delivered_records += max(0, next_offset - first)
        if self.traces.following:
            self.traces.sent(cursor, first, next_offset)
        if view is None:
            return self._send(cursor, pieces)
        render, partition = self._renderer.render_kept, cursor.partition
        shown = [render(partition, view, piece, first) for piece in pieces]
        # A filter may drop everything: the bytes that were read count too.
        return max(self._send(cursor, shown), sum(map(len, pieces)))

    def _send(self, cursor: Cursor, pieces: list[memoryview]) -> int:
        size = sum(map(len, pieces))
        if not size:
            return 0
        if cursor.view is not None:
            pieces = [piece for piece in pieces if piece]
        cursor.subscription.sent_bytes += size
        self.delivered_bytes += size
        cursor.outlet.push(cursor.subscription, pieces)
        return size

    def _within_kept(self, cursor: Cursor) -> bool:
        """False if the log has deleted the cursor's next offset; the reader is notified."""
        start_offset = cursor.partition.log.start_offset
        if cursor.offset >= start_offset:
            return True
        policy = cursor.subscription.policy
        if policy is SlowPolicy.SKIP and not cursor.behind:
            self._skip(cursor)
        elif policy is SlowPolicy.DISCONNECT and not cursor.behind:
            self._disconnect(cursor)
        else:
            self._lose(cursor, start_offset, GapReason.RETENTION)
        return False

    def _may_read_disk(self, cursor: Cursor) -> bool:
        """Counts a reader that fell behind the tail, by its policy."""
        policy = cursor.subscription.policy
        if not cursor.behind and policy is SlowPolicy.SKIP:
            self._skip(cursor)
            return False
        if not cursor.behind and policy is SlowPolicy.DISCONNECT:
            self._disconnect(cursor)
            return False
        if not cursor.behind:
            cursor.behind = True
            self.catch_ups += 1
            cursor.partition.topic.count().catch_ups += 1
        return True

    def _loaded(self, cursor: Cursor, got: Block | Exception) -> None:
        if cursor.subscription.closed or cursor.dropped or cursor.partition.topic.deleted:
            return
        if isinstance(got, Block):
            # Other cursors of its connection may have filled it meanwhile; the block is kept.
            if self._park(cursor):
                return
            view = cursor.view
            if view is not None and not self._renderer.count_small(view, [got.data]):
                self._render_first(cursor, view, got.data)
                return
            self._push(cursor, [got.data], got.next_offset)
        elif isinstance(got, DamagedError):
            self._lose(cursor, max(got.next, cursor.offset + 1), GapReason.DAMAGED)
        elif isinstance(got, UnavailableError):
            # Another node has it, and will be the primary: the client connects again and resumes.
            cursor.outlet.evict(got)
            return
        elif not isinstance(got, OffsetOutOfRangeError):
            error = got if isinstance(got, FanlogError) else FanlogError(f"Reading failed: {got}")
            logger.error("reading %s failed: %r", cursor.partition.topic.name, got)
            cursor.outlet.evict(error, cursor.subscription)
            return
        # Through the loop, so that a long run of cached blocks can't hold it up.
        self._runtime.soon(lambda: self._continue(cursor))

    def _skip(self, cursor: Cursor) -> None:
        counters = cursor.partition.topic.count()
        counters.skips += 1
        counters.skipped_records += cursor.partition.visible_end - cursor.offset
        self._move(cursor, cursor.partition.visible_end, GapReason.SKIPPED)

    def _lose(self, cursor: Cursor, next_offset: int, reason: GapReason) -> None:
        cursor.partition.topic.count().lost_records += next_offset - cursor.offset
        self._move(cursor, next_offset, reason)

    def _move(self, cursor: Cursor, next_offset: int, reason: GapReason) -> None:
        topic, first = cursor.partition.topic, cursor.offset
        cursor.offset = next_offset
        self._note(cursor, first, next_offset, reason, next_offset - first)
        gap = Gap(topic.name, cursor.partition.index, first, next_offset, reason)
        cursor.subscription.reader.gap(gap, topic.number)

    def _disconnect(self, cursor: Cursor) -> None:
        topic = cursor.partition.topic
        topic.count().disconnects += 1
        # The notice has the offset to resume from: the reader has not lost those messages.
        self._note(cursor, cursor.offset, cursor.partition.visible_end, DropKind.DISCONNECTED, 0)
        self._disconnectable.pop(cursor, None)
        cursor.outlet.evict(
            SlowReaderError(
                f"The reader of {topic.name!r} fell behind offset "
                f"{cursor.partition.log.tail.start_offset} and chose the policy 'disconnect'. "
                f"It got everything below offset {cursor.offset}: subscribe again from there."
            ),
            cursor.subscription,
        )

    def _note(
        self, cursor: Cursor, first: int, next: int, kind: GapReason | DropKind, records: int
    ) -> None:
        reader, begin = cursor.subscription, cursor.begin
        self._notes.note(cursor.partition, first, next, kind, reader, records=records, begin=begin)


def _next_time_us(cursor: Cursor) -> int:
    """Append time of the cursor's next message."""
    partition = cursor.partition
    pieces, _ = partition.log.tail.read(cursor.offset, partition.visible_end, 1)
    return read_header(pieces[0]).append_time_us
