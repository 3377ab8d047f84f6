"""Requests about traces. Spans describe what happens to topics: a peer that may not describe a
topic does not see its spans."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from fanlog.errors import InvalidArgumentError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.traces import ListTraces, SpanInfo, TracesPage
from fanlog.identity import Verb
from fanlog.telemetry.tracing.spans import SPANS_KEPT_MAX, Span, SpanLog

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def find_spans(log: SpanLog, wanted: ListTraces, permit: Permit) -> TracesPage:
    """The wanted spans that the peer may see. Spans of one trace are in order, others newest
    first."""
    kept: Iterable[Span] = log.newest()
    if wanted.trace_id:
        kept = log.of_trace(_trace_id(wanted.trace_id))
    count = max(1, min(wanted.count, SPANS_KEPT_MAX))
    may: dict[str, bool] = {}
    seen: list[Span] = []
    for span in kept:
        topic = span.topic
        if wanted.topic and topic != wanted.topic:
            continue
        if topic not in may:
            may[topic] = permit.may(Verb.DESCRIBE, topic)
        if may[topic]:
            seen.append(span)
    found = tuple(span_info(span) for span in islice(seen, count))
    return TracesPage(found, len(log), log.left_out)


def span_info(span: Span) -> SpanInfo:
    return SpanInfo(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_id.hex(),
        span.name,
        span.kind,
        span.start_us,
        span.end_us,
        span.attributes,
        span.error,
    )


def _trace_id(given: str) -> bytes:
    try:
        found = bytes.fromhex(given)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise InvalidArgumentError(f"A trace id has 32 hexadecimal digits, not {given[:64]!r}.")
    return found


def list_traces(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(ListTraces, payload)
    session.answer(request, find_spans(session.broker.traces.spans, wanted, session.permit))


HANDLERS: dict[FrameKind, NativeHandler] = {FrameKind.TRACES: list_traces}
