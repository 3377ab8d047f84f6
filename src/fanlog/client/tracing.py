"""Spans of a program that uses the client: `publish` for each message that it sends, and `process`
for each that a handler works on.

Law: the program's own OpenTelemetry decides. Without one, or before it is set up, there is no
tracer, and a message costs one comparison; nothing is imported for it. Headers that the program
sets itself are sent unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fanlog.errors import FanlogError
from fanlog.format.trace_context import TRACEPARENT, TRACESTATE, TraceContext
from fanlog.release import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider


# Values of headers that are no text can't be what a propagator looks for.
_HEADER_BYTES_MAX = 8192
# The last one: a program has one provider, unless it is a test.
_KNOWN: list[OtelTracer] = []


def maybe_tracer() -> OtelTracer | None:
    """The program's tracer; None if it has not set up OpenTelemetry."""
    # A program that has set it up has imported it.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    known = _KNOWN[0] if _KNOWN else None
    if known is not None and known.provider is provider:
        return known
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    _KNOWN[:] = [OtelTracer(provider)]
    return _KNOWN[0]


class WithPosition(Protocol):
    """A message or a job, as far as its span needs it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def headers(self) -> dict[str, bytes]: ...


class OtelTracer:
    """OpenTelemetry's tracer, and what the conventions for messaging want of its spans."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("fanlog", VERSION)

    def publishing(
        self, topic: str, headers: Mapping[str, bytes] | None, value: bytes | None
    ) -> tuple[OtelPublishSpan | None, dict[str, bytes]]:
        """The span of a message, and its headers with the context of that. None: not sampled.

        It belongs under the current span. Without one, under the span that its headers name: a dead
        letter continues the trace of its message."""
        from opentelemetry import propagate, trace

        own = dict(headers or {})
        current = trace.get_current_span().get_span_context()
        parent = None if current.is_valid else _context_in(own)
        span = self._tracer.start_span(
            f"publish {topic}",
            parent,
            trace.SpanKind.PRODUCER,
            {
                **_about(topic, "publish", "send"),
                "messaging.message.body.size": len(value or b""),
            },
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span, parent))
        for name in (TRACEPARENT, TRACESTATE):
            own.pop(name, None)
        own.update((name, text.encode()) for name, text in carrier.items())
        if TRACEPARENT not in own:
            # The program may propagate in other ways too.
            own[TRACEPARENT] = _traceparent(span.get_span_context())
        return (OtelPublishSpan(span) if span.is_recording() else None), own

    @contextmanager
    def processing(self, message: WithPosition, group: str = "") -> Generator[Span]:
        """The span of a message that the block processes; it is the current span there. It records
        exceptions of the block."""
        from opentelemetry import trace

        attributes: dict[str, Any] = _about(message.topic, "process", "process")
        attributes["messaging.destination.partition.id"] = str(message.partition)
        attributes["messaging.fanlog.offset"] = message.offset
        deliveries = getattr(message, "deliveries", 0)
        if deliveries:
            attributes["messaging.fanlog.deliveries"] = deliveries
        if group:
            attributes["messaging.consumer.group.name"] = group
        parent = _context_in(message.headers)
        current = trace.get_current_span().get_span_context()
        links = [trace.Link(current)] if parent is not None and current.is_valid else None
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            parent,
            trace.SpanKind.CONSUMER,
            attributes,
            links,
            set_status_on_exception=False,
            record_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _note(span, error)
                raise


class OtelPublishSpan:
    """The span of a message until the broker has answered for it."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, partition: int | None, offset: int | None, error: FanlogError | None) -> None:
        span = self._span
        if partition is not None and offset is not None:
            span.set_attribute("messaging.destination.partition.id", str(partition))
            span.set_attribute("messaging.fanlog.offset", offset)
        if error is not None:
            _note(span, error)
        span.end()


@contextmanager
def processing(message: WithPosition, group: str = "") -> Generator[None]:
    """Processes a message, or a job, within a span of its trace. Use it when a loop, not a handler,
    gets it. Handlers of `consume`, `work` and `serve`, and `async with job`, have one already.
    Without OpenTelemetry it does nothing.

    >>> async for message in subscription:  # doctest: +SKIP
    ...     with fanlog.processing(message):
    ...         await save(message.json())
    """
    tracer = maybe_tracer()
    if tracer is None:
        yield
    else:
        with tracer.processing(message, group):
            yield


def _about(topic: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "fanlog",
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _note(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    said = error.code if isinstance(error, FanlogError) else type(error).__qualname__
    span.set_attribute("error.type", said)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _context_in(headers: Mapping[str, bytes]) -> Context | None:
    """The context that a message's headers name; None if they name none."""
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context

    if not headers:
        return None
    carrier = {
        name: bytes(value).decode("utf-8", "replace")
        for name, value in headers.items()
        if len(value) <= _HEADER_BYTES_MAX
    }
    context = propagate.extract(carrier, Context())
    if trace.get_current_span(context).get_span_context().is_valid:
        return context
    return None


def _traceparent(context: SpanContext) -> bytes:
    known = TraceContext(
        context.trace_id.to_bytes(16), context.span_id.to_bytes(8), context.trace_flags.sampled
    )
    return known.traceparent.encode()
