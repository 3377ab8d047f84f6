"""Sampled batches on their way through the broker: an `append` span from the socket until readers
may see them, and `deliver` spans when they go out.

Law: a batch that is not sampled costs nothing here. Whoever publishes says in front of a batch
which of its records are sampled (`format/trace_context.py`), so that nobody looks into records.
What is followed is bounded: by time, by the spans of a second, and by spans for each batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fanlog.config_security import TelemetryOptions
from fanlog.errors import FanlogError
from fanlog.format.batch import INCOMING, KIND_BATCH
from fanlog.format.frames import PREFIX, PREFIX_BYTES
from fanlog.format.trace_context import Mark, TraceContext
from fanlog.telemetry.tracing.spans import Attribute, SpanLog

if TYPE_CHECKING:
    from fanlog.broker.cursors import Cursor
    from fanlog.broker.ports import Origin
    from fanlog.broker.topics import Partition

# Batches that may still be delivered to somebody. Each is a few hundred bytes.
_FOLLOWED_MAX = 1024
# Spans for readers of one batch that come later, and for its jobs. With thousands of readers a
# trace would be nothing else.
_LATE_SPANS_MAX = 8

Take = Callable[[bytes, int, "Origin"], int]

Find = Callable[[int], "Partition | None"]


class Followed:
    """A sampled batch. `appended` are its append spans, once it is visible."""

    __slots__ = ("appended", "base", "bytes", "late", "marks", "next", "partition", "taken_us")

    def __init__(
        self, partition: Partition, base: int, marks: Sequence[Mark], size: int, taken_us: int
    ) -> None:
        self.partition = partition
        self.base = base
        self.next = partition.next_offset
        self.marks = marks
        self.bytes = size
        self.taken_us = taken_us
        self.appended: list[TraceContext] | None = None
        self.late = 0

    def attributes(self, operation: str, offset: int) -> dict[str, Attribute]:
        partition = self.partition
        found: dict[str, Attribute] = {
            "messaging.system": "fanlog",
            "messaging.destination.name": partition.topic.name,
            "messaging.operation.name": operation,
            "messaging.destination.partition.id": str(partition.index),
            "messaging.fanlog.offset": offset,
        }
        if self.next - self.base > 1:
            found["messaging.batch.message_count"] = self.next - self.base
        return found


class Traces:
    """Follows sampled batches. `recent` is empty as long as nothing is sampled."""

    def __init__(self, options: TelemetryOptions, now_us: Callable[[], int]) -> None:
        self.per_second_max = options.traced_per_second_max
        self.spans = SpanLog(self.per_second_max, now_us)
        self.recent: dict[Partition, deque[Followed]] = {}
        self._order: deque[Followed] = deque()
        self._ratio = options.trace_ratio
        # Whether traces begin here, for some of the batches that belong to none.
        self.begins_some = self._ratio > 0
        # Batches until the next one in which a trace begins.
        self._gap = self._next_gap() if self._ratio else 0

    def maybe_begin(self) -> TraceContext | None:
        """A new trace, for its share of what belongs to none."""
        if not self._ratio or self.spans.chance() >= self._ratio or not self.spans.admits():
            return None
        return self.spans.new_trace()

    # In

    def take(
        self,
        data: bytes,
        at: int,
        origin: Origin,
        marks: Sequence[Mark],
        *,
        take: Take,
        find: Find,
    ) -> int:
        """Takes the one batch at `at`, and follows it if it is new. Where it stopped: `at`, if the
        batch has to wait."""
        length, _, _, _, topic, _, _, _, index, _, _, _ = INCOMING.unpack_from(data, at)
        partition = find(topic << 16 | index)
        if partition is None:
            return at + take(data[at : at + length], 0, origin)
        base, taken_us = partition.next_offset, self.spans.now_us()
        taken = take(data[at : at + length], 0, origin)
        count = partition.next_offset - base
        if count > 0:
            admits = self.spans.admits
            kept = [mark for mark in marks if mark.record < count and admits(taken_us)]
            if kept:
                self._follow(Followed(partition, base, kept, length, taken_us))
        return at + taken

    def take_some(self, data: bytes, at: int, origin: Origin, take: Take, find: Find) -> int:
        """Takes the whole batches from `at` on, and begins a trace with some of them."""
        begin, size = at, len(data)
        while size - at >= PREFIX_BYTES:
            length, kind = PREFIX.unpack_from(data, at)
            if kind != KIND_BATCH or at + length > size or length < INCOMING.size:
                break
            if self._gap:
                self._gap -= 1
                at += length
                continue
            self._gap = self._next_gap()
            if at > begin and (taken := take(data[begin:at], 0, origin)) < at - begin:
                # One in between has to wait, and all comes again from there.
                return begin + taken
            began = self.spans.new_trace()
            marks = [Mark(0, began.trace_id, b"")]
            after = self.take(data, at, origin, marks, take=take, find=find)
            if after == at:
                return at
            begin = at = after
        return take(data, begin, origin) if begin < at else begin

    def _next_gap(self) -> int:
        if self._ratio >= 1:
            return 0
        return int(math.log(1 - self.spans.chance()) / math.log(1 - self._ratio))

    def _follow(self, followed: Followed) -> None:
        self.recent.setdefault(followed.partition, deque()).append(followed)
        self._order.append(followed)
        if len(self._order) > _FOLLOWED_MAX:
            self._forget(self._order.popleft())

    def _forget(self, followed: Followed) -> None:
        mine = self.recent.get(followed.partition)
        if mine and mine[0] is followed:
            mine.popleft()
            if not mine:
                del self.recent[followed.partition]

    # Visible, or not

    def shown(self, partition: Partition) -> None:
        """What was followed is visible up to the partition's visible end."""
        end_us = self.spans.now_us()
        for followed in reversed(self.recent.get(partition, ())):
            if followed.appended is not None:
                break
            if followed.next <= partition.visible_end:
                followed.appended = [
                    self._append(followed, mark, end_us) for mark in followed.marks
                ]

    def _append(
        self, followed: Followed, mark: Mark, end_us: int, error: FanlogError | None = None
    ) -> TraceContext:
        context = TraceContext(mark.trace_id, self.spans.new_span_id())
        partition = followed.partition
        attributes = followed.attributes("append", followed.base + mark.record)
        attributes["messaging.fanlog.batch.bytes"] = followed.bytes
        attributes["messaging.fanlog.durability"] = partition.durability.name.lower()
        if error is not None:
            attributes["error.type"] = error.code
        self.spans.add(
            context,
            mark.span_id,
            f"append {partition.topic.name}",
            kind="server",
            start_us=followed.taken_us,
            end_us=end_us,
            attributes=attributes,
            error="" if error is None else str(error),
        )
        return context

    def refused(self, partition: Partition, stored_end: int, error: FanlogError) -> None:
        """What was taken in from `stored_end` on is not stored. Other batches get its offsets."""
        end_us = self.spans.now_us()
        for followed in [f for f in self.recent.get(partition, ()) if f.next > stored_end]:
            for mark in followed.marks if followed.appended is None else ():
                self._append(followed, mark, end_us, error)
            self._remove(followed)

    def _remove(self, followed: Followed) -> None:
        self._order.remove(followed)
        mine = self.recent[followed.partition]
        mine.remove(followed)
        if not mine:
            del self.recent[followed.partition]

    def forget(self, partition: Partition) -> None:
        """The partition is gone."""
        for followed in list(self.recent.get(partition, ())):
            self._remove(followed)

    # Out

    def fanned_out(self, partition: Partition, base: int, start_us: int, readers: int) -> None:
        """Everybody who was at the end has got what became visible from `base` on."""
        for followed in reversed(self.recent.get(partition, ())):
            if followed.next <= base:
                break
            more: dict[str, Attribute] = {"messaging.fanlog.readers": readers}
            self._deliver(followed, followed.base, followed.next, start_us, more)

    def sent(self, cursor: Cursor, first: int, next: int) -> None:
        """A reader that was behind has got these offsets."""
        reader = cursor.subscription
        for followed in reversed(self.recent.get(cursor.partition, ())):
            if followed.next <= first:
                break
            if followed.base < next:
                more: dict[str, Attribute] = {"messaging.fanlog.readers": 1}
                if reader.client:
                    more["messaging.client.id"] = reader.client
                if reader.group or reader.durable:
                    more["messaging.consumer.group.name"] = reader.group or reader.durable
                self._deliver_late(followed, followed.base, followed.next, more)

    def leased(
        self, partition: Partition, first: int, next: int, *, queue: str, worker: str, times: int
    ) -> None:
        """A worker has got these jobs, the first time or once more."""
        for followed in reversed(self.recent.get(partition, ())):
            if followed.next <= first:
                break
            if followed.base < next:
                more: dict[str, Attribute] = {
                    "messaging.consumer.group.name": queue,
                    "messaging.client.id": worker,
                    "messaging.fanlog.deliveries": times,
                }
                self._deliver_late(followed, first, next, more)

    def _deliver_late(
        self, followed: Followed, first: int, next: int, more: dict[str, Attribute]
    ) -> None:
        if followed.late < _LATE_SPANS_MAX and self._deliver(
            followed, first, next, self.spans.now_us(), more
        ):
            followed.late += 1

    def _deliver(
        self,
        followed: Followed,
        first: int,
        next: int,
        start_us: int,
        more: dict[str, Attribute],
    ) -> bool:
        """A span for each sampled record among these offsets; whether there is one."""
        end_us, found = self.spans.now_us(), False
        for mark, appended in zip(followed.marks, followed.appended or (), strict=False):
            offset = followed.base + mark.record
            if first <= offset < next:
                found = True
                self.spans.add(
                    TraceContext(mark.trace_id, self.spans.new_span_id()),
                    appended.span_id,
                    f"deliver {followed.partition.topic.name}",
                    kind="server",
                    start_us=start_us,
                    end_us=end_us,
                    attributes=followed.attributes("deliver", offset) | more,
                )
        return found
