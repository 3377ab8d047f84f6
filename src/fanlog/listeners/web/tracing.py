"""Traces over HTTP: the broker's spans, and the `publish` spans of messages that come over HTTP. A
request may bring its trace in the header `traceparent`, as browsers and services send it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    context_of,
    maybe_context,
)
from fanlog.format.traces import ListTraces, SpanInfo
from fanlog.listeners.trace_requests import find_spans
from fanlog.listeners.web.ports import MessageToPublish, Published
from fanlog.listeners.web.routes import Call, Nothing, Param, Route
from fanlog.telemetry.tracing.spans import SPANS_KEPT_MAX, messaging_attributes

if TYPE_CHECKING:
    from aiohttp import web

    from fanlog.broker.messages.tracing import Traces

# What a `tracestate` may have by its standard.
_TRACESTATE_BYTES_MAX = 512
TRACE = Param(TRACEPARENT, "The trace that the messages belong to, as W3C Trace Context writes it.")


class TracesQuery(msgspec.Struct, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(max_length=255, description="Only spans about this topic.")] = ""
    limit: Annotated[
        int, Meta(ge=1, le=SPANS_KEPT_MAX, description="The largest number of spans on the page.")
    ] = 100


class TracesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of this process."""

    spans: list[SpanInfo]
    kept: Annotated[int, Meta(description="Spans in memory: the last 4,096.")] = 0
    left_out: Annotated[
        int,
        Meta(
            description="Sampled messages without spans: there were more per second than "
            "`telemetry.traced_per_second_max`."
        ),
    ] = 0


async def list_traces(call: Call[TracesQuery, None]) -> TracesAnswer:
    query = call.query
    return _found(call, ListTraces("", query.topic, query.limit))


async def show_trace(call: Call[Nothing, None]) -> TracesAnswer:
    return _found(call, ListTraces(call.path("trace"), "", SPANS_KEPT_MAX))


def _found(call: Call[TracesQuery, None] | Call[Nothing, None], wanted: ListTraces) -> TracesAnswer:
    page = find_spans(call.bus.core.traces.spans, wanted, call.permit)
    return TracesAnswer(spans=list(page.spans), kept=page.kept, left_out=page.left_out)


class PublishSpans:
    """The spans of messages that one request publishes. They are under the span that the message's
    own headers name, or else the request's; without either, some begin a trace."""

    def __init__(self, request: web.BaseRequest, traces: Traces) -> None:
        self._traces = traces
        self._state = request.headers.get(TRACESTATE, "").encode(errors="replace")
        self._asked = maybe_context(request.headers.get(TRACEPARENT))
        self._begun: list[tuple[int, str, TraceContext, bytes, int]] = []
        self._count = 0

    def begin(self, topic: str, messages: list[MessageToPublish]) -> list[MessageToPublish]:
        """The messages, with what their headers should say."""
        return [self._begin_one(topic, message) for message in messages]

    def _begin_one(self, topic: str, message: MessageToPublish) -> MessageToPublish:
        index, self._count = self._count, self._count + 1
        own = context_of(message.headers)
        parent = own or self._asked
        spans = self._traces.spans
        if parent is None:
            began = self._traces.maybe_begin()
            if began is None:
                return message
            context, parent_id = began, b""
        elif not parent.sampled or not spans.admits():
            # The readers of the message still get its trace.
            return message if own else self._with(message, parent)
        else:
            context = TraceContext(parent.trace_id, spans.new_span_id())
            parent_id = parent.span_id
        self._begun.append((index, topic, context, parent_id, spans.now_us()))
        return self._with(message, context)

    def _with(self, message: MessageToPublish, context: TraceContext) -> MessageToPublish:
        headers = {**message.headers, TRACEPARENT: context.traceparent.encode()}
        if 0 < len(self._state) <= _TRACESTATE_BYTES_MAX:
            headers.setdefault(TRACESTATE, self._state)
        return msgspec.structs.replace(message, headers=headers)

    def end(self, stored: list[Published] | None, error: BaseException | None = None) -> None:
        """The messages are stored, in the order in which they began, or they are not."""
        spans = self._traces.spans
        for index, topic, context, parent_id, start_us in self._begun:
            attributes = messaging_attributes(
                topic, "publish", **{"messaging.operation.type": "send"}
            )
            if stored is not None:
                attributes["messaging.destination.partition.id"] = str(stored[index].partition)
                attributes["messaging.fanlog.offset"] = stored[index].offset
            elif error is not None:
                known = isinstance(error, FanlogError)
                attributes["error.type"] = error.code if known else type(error).__name__
            spans.add(
                context,
                parent_id,
                f"publish {topic}",
                kind="producer",
                start_us=start_us,
                end_us=spans.now_us(),
                attributes=attributes,
                error="" if error is None else str(error) or type(error).__name__,
            )
        self._begun.clear()


_EXAMPLE = {
    "spans": [
        {
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id": "00f067aa0ba902b7",
            "parent_id": "",
            "name": "append orders",
            "kind": "server",
            "start_us": 1700000000000000,
            "end_us": 1700000000000150,
            "attributes": {"messaging.system": "fanlog", "messaging.destination.name": "orders"},
        }
    ],
    "kept": 1,
}

ROUTES = [
    Route(
        "GET",
        "/v1/traces",
        list_traces,
        "The latest spans of the broker, newest first",
        "status",
        description="The broker keeps its last 4,096 spans in memory, even without a collector."
        " Spans of programs that publish and process messages are in their own "
        "collector.",
        query=TracesQuery,
        answer=TracesAnswer,
        answer_example=_EXAMPLE,
    ),
    Route(
        "GET",
        "/v1/traces/{trace}",
        show_trace,
        "The spans of one trace, in their order",
        "status",
        description="Empty if the broker has no spans of it, or no longer has them.",
        answer=TracesAnswer,
        answer_example=_EXAMPLE,
        errors=(InvalidArgumentError,),
    ),
]
