"""Sampled batches on their way through the broker: an `append` span from the socket until readers
may see them, and `deliver` spans when they go out.

Law: a batch that is not sampled costs nothing here. A publisher says in front of a batch which of
its records are sampled (`format/trace_context.py`), so that nobody looks into records. What is
followed is bounded: by time, by the spans of a second, and by spans for each batch.

What happens on the hot path is written down by `Sampled`, and `settle` makes spans of it: a few
times a second, when there is enough of it, and before anybody looks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.messages.sampled_batches import Find, Sampled, SampledBatch, VisibleRange
from fanlog.config_security import TelemetryOptions
from fanlog.errors import FanlogError
from fanlog.format.frames import FRAME_HEADER_BYTES, PREFIX, PREFIX_BYTES
from fanlog.format.header import HEADER_BYTES, INCOMING, KIND_BATCH
from fanlog.format.trace_context import KIND_TRACED, SampledRecord, TraceContext, read_traced
from fanlog.telemetry.tracing.spans import Attribute, SpanLog

if TYPE_CHECKING:
    from fanlog.broker.messages.restrictions import RestrictedOrigin
    from fanlog.broker.messages.topics import Cursor, Partition

# Batches that may still be delivered. Each takes a few hundred bytes.
_FOLLOWED_MAX = 1024
# Spans for readers of one batch that come later, and for its jobs. With thousands of readers a
# trace would be nothing else.
_LATE_SPANS_MAX = 8

TakeBatch = Callable[[bytes, int, "RestrictedOrigin"], int]
_NEXT = attrgetter("next")


class TracedBatch:
    """A sampled batch. `appended` are its append spans, once it is visible."""

    __slots__ = ("appended", "base", "bytes", "late", "marks", "next", "partition", "taken_us")

    def __init__(self, noted: SampledBatch, marks: Sequence[SampledRecord]) -> None:
        self.partition = noted.partition
        self.base = noted.base
        self.next = noted.next
        self.marks = marks
        self.bytes = noted.bytes
        self.taken_us = noted.taken_us
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
    """Follows sampled batches. `following` is False as long as nothing is sampled."""

    def __init__(self, options: TelemetryOptions, now_us: Callable[[], int]) -> None:
        self.per_second_max = options.traced_per_second_max
        self.spans = SpanLog(self.per_second_max, now_us)
        self.spans.settle = self.settle
        self.sampled = Sampled(self.spans, self.settle)
        self._recent: dict[Partition, deque[TracedBatch]] = {}
        self._order: deque[TracedBatch] = deque()
        self._ratio = options.trace_ratio
        # Whether traces begin here, for some of the batches that belong to none.
        self.begins_some = self._ratio > 0
        # Batches until the next one in which a trace begins.
        self._gap = self._next_gap() if self._ratio else 0

    def maybe_begin(self) -> TraceContext | None:
        """A new trace, for a share of the batches without one."""
        if not self._ratio or self.spans.chance() >= self._ratio or not self.spans.admits():
            return None
        return self.spans.new_trace()

    # In

    @property
    def following(self) -> bool:
        return bool(self._recent or self.sampled.pending)

    @property
    def recent(self) -> dict[Partition, deque[TracedBatch]]:
        """Batches that may still be delivered."""
        self.settle()
        return self._recent

    def settle(self) -> None:
        """Makes spans of the noted events."""
        pending, self.sampled.pending = self.sampled.pending, []
        for one in pending:
            if isinstance(one, SampledBatch):
                self._taken(one)
            else:
                self._shown(one)

    def _taken(self, noted: SampledBatch) -> None:
        admits, count = self.spans.admits, noted.next - noted.base
        marks = noted.marks if isinstance(noted.marks, list) else read_traced(noted.marks)
        kept = [mark for mark in marks if mark.record < count and admits(noted.taken_us)]
        if kept:
            self._follow(TracedBatch(noted, kept))

    def take_some(
        self, data: bytes, at: int, origin: RestrictedOrigin, take: TakeBatch, find: Find
    ) -> int:
        """Takes the whole batches from `at` on, and starts a trace for some of those without
        one."""
        sampled = self.sampled
        begin, size, traced = at, len(data), bool(sampled.noted)
        if traced:
            # The marks are about the first batch, with which the intake begins.
            sampled.noted = [msgspec.structs.replace(one, begin=0, at=0) for one in sampled.noted]
        while size - at >= PREFIX_BYTES:
            length, kind = PREFIX.unpack_from(data, at)
            if at + length > size or length < FRAME_HEADER_BYTES:
                break
            if kind == KIND_TRACED:
                traced = True
            elif kind != KIND_BATCH or length < INCOMING.size:
                break
            elif traced:
                traced = False
            elif self._gap:
                self._gap -= 1
            else:
                self._gap = self._next_gap()
                if at > begin and (taken := take(data[begin:at], 0, origin)) < at - begin:
                    # One in between has to wait, and all comes again from there.
                    return begin + taken
                sampled.taken()
                begin = at
                marks = [SampledRecord(0, self.spans.new_trace().trace_id, b"")]
                header = data[at : at + HEADER_BYTES]
                sampled.note(header, 0, marks, find, self.spans.now_us())
            at += length
        return begin + take(data[begin:at], 0, origin)

    def _next_gap(self) -> int:
        if self._ratio >= 1:
            return 0
        return int(math.log(1 - self.spans.chance()) / math.log(1 - self._ratio))

    def _follow(self, followed: TracedBatch) -> None:
        self._recent.setdefault(followed.partition, deque()).append(followed)
        self._order.append(followed)
        if len(self._order) > _FOLLOWED_MAX:
            self._forget(self._order.popleft())

    def _forget(self, followed: TracedBatch) -> None:
        mine = self._recent.get(followed.partition)
        if mine and mine[0] is followed:
            mine.popleft()
            if not mine:
                del self._recent[followed.partition]

    # Visible, or not

    def _shown(self, shown: VisibleRange) -> None:
        for followed in reversed(self._recent.get(shown.partition, ())):
            if followed.appended is not None:
                break
            if followed.next <= shown.end:
                followed.appended = [
                    self._append(followed, mark, shown.start_us) for mark in followed.marks
                ]
        if shown.readers:
            more: dict[str, Attribute] = {"messaging.fanlog.readers": shown.readers}
            for followed in self._past(shown.partition, shown.base):
                times = shown.start_us, shown.end_us
                self._deliver(followed, followed.base, followed.next, times, more)

    def _append(
        self,
        followed: TracedBatch,
        mark: SampledRecord,
        end_us: int,
        error: FanlogError | None = None,
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
        """Batches from `stored_end` on were not stored. Other batches get their offsets."""
        end_us = self.spans.now_us()
        for followed in [f for f in self.recent.get(partition, ()) if f.next > stored_end]:
            for mark in followed.marks if followed.appended is None else ():
                self._append(followed, mark, end_us, error)
            self._remove(followed)
        if self.sampled.hidden.get(partition, 0) > stored_end:
            del self.sampled.hidden[partition]

    def _remove(self, followed: TracedBatch) -> None:
        self._order.remove(followed)
        mine = self._recent[followed.partition]
        mine.remove(followed)
        if not mine:
            del self._recent[followed.partition]

    def forget(self, partition: Partition) -> None:
        """The partition is gone."""
        if self.following:
            for followed in list(self.recent.get(partition, ())):
                self._remove(followed)
        self.sampled.hidden.pop(partition, None)

    # Out

    def _past(self, partition: Partition, first: int) -> Iterator[TracedBatch]:
        """The followed batches from offset `first` on, in order. Mostly there are none, which the
        last one shows."""
        mine = self._recent.get(partition)
        if mine and mine[-1].next > first:
            for number in range(bisect_right(mine, first, key=_NEXT), len(mine)):
                yield mine[number]

    def sent(self, cursor: Cursor, first: int, next: int) -> None:
        """A reader that was behind has received these offsets."""
        self.settle()
        reader = cursor.subscription
        for followed in self._past(cursor.partition, first):
            if followed.base >= next:
                break
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
        self.settle()
        for followed in self._past(partition, first):
            if followed.base >= next:
                break
            more: dict[str, Attribute] = {
                "messaging.consumer.group.name": queue,
                "messaging.client.id": worker,
                "messaging.fanlog.deliveries": times,
            }
            self._deliver_late(followed, first, next, more)

    def _deliver_late(
        self, followed: TracedBatch, first: int, next: int, more: dict[str, Attribute]
    ) -> None:
        now_us = self.spans.now_us()
        if followed.late < _LATE_SPANS_MAX and self._deliver(
            followed, first, next, (now_us, now_us), more
        ):
            followed.late += 1

    def _deliver(
        self,
        followed: TracedBatch,
        first: int,
        next: int,
        times: tuple[int, int],
        more: dict[str, Attribute],
    ) -> bool:
        """A span for each sampled record among these offsets; whether there is one."""
        (start_us, end_us), found = times, False
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
