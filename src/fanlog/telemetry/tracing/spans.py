"""The broker's own spans: the last few thousand, in memory, without a collector.

Law: the ring is bounded, and so is the number of spans in a second. A publisher decides what is
sampled, and must not be able to keep the broker busy with it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from fanlog.format.trace_context import SPAN_ID_BYTES, TRACE_ID_BYTES, TraceContext

SPANS_KEPT_MAX = 4096
Attribute = str | int | float | bool
SpanKind = Literal["internal", "server", "client", "producer", "consumer"]
_SECOND_US = 1_000_000


class Span(msgspec.Struct, frozen=True, gc=False):
    """Something that took its time within a trace. Times are microseconds since 1970."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: SpanKind
    start_us: int
    end_us: int
    attributes: dict[str, Attribute]
    error: str = ""

    @property
    def topic(self) -> str:
        """The topic that it is about, or nothing."""
        return str(self.attributes.get("messaging.destination.name", ""))


def messaging_attributes(topic: str, operation: str, **more: Attribute) -> dict[str, Attribute]:
    """What every span about messages says by the conventions of OpenTelemetry."""
    return {
        "messaging.system": "fanlog",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        **more,
    }


class SpanLog:
    """The last spans. `on_span` is called with each, for those who export them."""

    def __init__(
        self, per_second_max: int, now_us: Callable[[], int], kept_max: int = SPANS_KEPT_MAX
    ) -> None:
        self._ring: deque[Span] = deque(maxlen=kept_max)
        self._per_second_max = per_second_max
        self.now_us = now_us
        self._second = 0
        self._in_second = 0
        self._random = random.Random()
        self.on_span: list[Callable[[Span], None]] = []
        # Called before somebody looks: adds what has happened and is no span yet.
        self.settle: Callable[[], None] = _nothing
        self.recorded = 0
        self.left_out = 0

    def admits(self, now_us: int | None = None) -> bool:
        """Whether one more trace may be followed in this second. One that may not is counted."""
        second = (self.now_us() if now_us is None else now_us) // _SECOND_US
        if second != self._second:
            self._second, self._in_second = second, 0
        if self._in_second >= self._per_second_max:
            self.left_out += 1
            return False
        self._in_second += 1
        return True

    def is_full(self, now_us: int, waiting: int, traces: int) -> bool:
        """Whether those that wait are all that may be followed in this second. If so, these traces
        are counted."""
        followed = self._in_second if now_us // _SECOND_US == self._second else 0
        if followed + waiting < self._per_second_max:
            return False
        self.left_out += traces
        return True

    def new_trace(self) -> TraceContext:
        """A trace that begins here, with its first span."""
        return TraceContext(self._random.randbytes(TRACE_ID_BYTES), self.new_span_id())

    def new_span_id(self) -> bytes:
        return self._random.randbytes(SPAN_ID_BYTES)

    def chance(self) -> float:
        """A number from 0 to 1, for sampling."""
        return self._random.random()

    def add(
        self,
        context: TraceContext,
        parent_id: bytes,
        name: str,
        *,
        kind: SpanKind,
        start_us: int,
        end_us: int,
        attributes: dict[str, Attribute],
        error: str = "",
    ) -> Span:
        """Records a span that has ended, and keeps its attributes. The wall clock may have been set
        back meanwhile."""
        span = Span(
            context.trace_id,
            context.span_id,
            parent_id,
            name,
            kind,
            start_us,
            max(start_us, end_us),
            attributes,
            error,
        )
        self._ring.append(span)
        self.recorded += 1
        for tell in self.on_span:
            tell(span)
        return span

    def __len__(self) -> int:
        self.settle()
        return len(self._ring)

    def newest(self) -> Iterator[Span]:
        """The spans, the last first."""
        self.settle()
        return reversed(self._ring)

    def of_trace(self, trace_id: bytes) -> list[Span]:
        """The spans of one trace, in the order in which they began."""
        self.settle()
        found = [span for span in self._ring if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.start_us)


def _nothing() -> None: ...
