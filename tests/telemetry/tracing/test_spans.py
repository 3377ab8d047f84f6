"""The broker's ring of spans is bounded, in size and in what it takes in a second."""

from __future__ import annotations

from fanlog.format.trace_context import TraceContext
from fanlog.telemetry.tracing.spans import SPANS_KEPT_MAX, Span, SpanLog


def add(log: SpanLog, context: TraceContext, start_us: int = 1) -> Span:
    return log.add(
        context, b"", "append t", kind="server", start_us=start_us, end_us=start_us, attributes={}
    )


def test_it_keeps_the_last_4096_and_finds_a_trace_in_its_order() -> None:
    log = SpanLog(10, lambda: 0)
    first = log.new_trace()
    add(log, first)
    for _ in range(SPANS_KEPT_MAX):
        add(log, log.new_trace())
    assert len(log) == SPANS_KEPT_MAX
    assert log.recorded == SPANS_KEPT_MAX + 1
    assert log.of_trace(first.trace_id) == []
    mine = log.new_trace()
    later = add(log, mine, start_us=20)
    sooner = add(log, mine._replace(span_id=log.new_span_id()), start_us=10)
    assert log.of_trace(mine.trace_id) == [sooner, later]
    assert next(log.newest()) is sooner


def test_more_than_its_share_of_a_second_is_left_out_and_counted() -> None:
    now_us = 5_000_000
    log = SpanLog(3, lambda: now_us)
    assert [log.admits() for _ in range(5)] == [True, True, True, False, False]
    assert log.left_out == 2
    now_us += 1_000_000
    assert log.admits()
    # The clock is set back: that is another second too.
    now_us -= 3_600_000_000
    assert log.admits()


def test_a_span_never_ends_before_it_began() -> None:
    log = SpanLog(3, lambda: 0)
    span = log.add(
        log.new_trace(), b"", "append t", kind="server", start_us=10, end_us=4, attributes={}
    )
    assert span.end_us == 10
