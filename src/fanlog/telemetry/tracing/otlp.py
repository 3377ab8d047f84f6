"""Export of spans and metrics over OTLP/HTTP, with the packages of the extra `otel`.

What is exported is collected on the loop every few seconds and sent by one thread. Law: a collector
that is slow, or gone, costs the broker a bounded queue and nothing else. What it loses is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fanlog.config_security import TelemetryOptions
from fanlog.errors import ConfigError
from fanlog.release import VERSION
from fanlog.telemetry.snapshot import Snapshot
from fanlog.telemetry.tracing.spans import Span, SpanLog

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger("fanlog.telemetry")

# Spans that wait for the collector. A few hundred bytes each.
_WAITING_MAX = 16_384
_SPANS_IN_REQUEST = 512
# How long a request may take, with the exporter's own retries.
_REQUEST_SECONDS = 10
# How long the broker waits for the last ones when it stops.
_LAST_SECONDS = 3.0
_SCOPE = "fanlog.broker"


class Exporter(Protocol):
    """Sends spans, or metrics. Both block, and retry by themselves for a while."""

    def export_spans(self, spans: Sequence[Span]) -> bool: ...
    def export_metrics(self, snapshot: Snapshot) -> bool: ...
    def close(self) -> None: ...


class OtlpExport:
    """Sends the spans of a log, and a snapshot of the metrics, at every `tick`."""

    def __init__(
        self, spans: SpanLog, exporter: Exporter, snapshot: Callable[[], Awaitable[Snapshot]]
    ) -> None:
        self._exporter = exporter
        self._snapshot = snapshot
        self._waiting: deque[Span] = deque(maxlen=_WAITING_MAX)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="fanlog-otlp")
        self._sending: Future[None] | None = None
        self._fails = False
        self.dropped = 0
        spans.on_span.append(self._take)

    def _take(self, span: Span) -> None:
        if len(self._waiting) == _WAITING_MAX:
            self.dropped += 1
        self._waiting.append(span)

    async def run(self, interval_seconds: float) -> None:
        """Sends all that there is, every so often."""
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await self.tick()
            except Exception:
                logger.exception("collecting data for the export failed")

    async def tick(self) -> None:
        """Sends the waiting spans, unless the collector has not taken the last ones yet."""
        if self._sending is None or self._sending.done():
            snapshot = await self._snapshot()
            spans = [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._sending = self._threads.submit(self._send, spans, snapshot)

    def _send(self, spans: list[Span], snapshot: Snapshot) -> None:
        fine = True
        try:
            for at in range(0, len(spans), _SPANS_IN_REQUEST):
                part = spans[at : at + _SPANS_IN_REQUEST]
                if not self._exporter.export_spans(part):
                    self.dropped += len(part)
                    fine = False
            fine = self._exporter.export_metrics(snapshot) and fine
        except Exception:
            fine = False
            logger.exception("exporting over OTLP failed")
        if not fine and not self._fails:
            logger.warning(
                "the collector of telemetry.otlp_endpoint did not accept spans; %d spans are "
                "lost so far",
                self.dropped,
            )
        self._fails = not fine

    async def close(self) -> None:
        """Sends the last, for a moment."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LAST_SECONDS
        for last in (False, True):
            if self._sending is not None:
                waiting = asyncio.wrap_future(self._sending)
                await asyncio.wait({waiting}, timeout=max(0.0, end - loop.time()))
            if not last:
                await self.tick()
        await loop.run_in_executor(None, self._exporter.close)
        self._threads.shutdown(wait=False, cancel_futures=True)


def read_headers(path: str) -> dict[str, str]:
    """The headers in a file, one `name: value` a line: they may be secret."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"telemetry.otlp_headers_file can't be read: {fault}.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            # The line itself may be a secret.
            raise ConfigError(
                f"Line {number} of telemetry.otlp_headers_file is not a header: write `name: "
                "value`."
            )
        found[name.strip().lower()] = value.strip()
    return found


def maybe_exporter(options: TelemetryOptions) -> Exporter | None:
    """The exporter that the settings want."""
    if not options.otlp_endpoint:
        return None
    try:
        return OtelExporter(options)
    except ImportError:
        raise ConfigError(
            "telemetry.otlp_endpoint is set, but OpenTelemetry is not installed. Install it with: "
            "pip install 'fanlog[otel]'"
        ) from None


class OtelExporter:
    """OpenTelemetry's own exporters."""

    def __init__(self, options: TelemetryOptions) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        base, headers = options.otlp_endpoint.rstrip("/"), read_headers(options.otlp_headers_file)
        self._spans = OTLPSpanExporter(
            f"{base}/v1/traces", headers=headers, timeout=_REQUEST_SECONDS
        )
        # Its methods take arguments without types.
        self._metrics: Any = OTLPMetricExporter(
            f"{base}/v1/metrics", headers=headers, timeout=_REQUEST_SECONDS
        )
        self._resource: Resource = Resource.create(
            {"service.name": options.service_name, "service.version": VERSION}
        )

    def export_spans(self, spans: Sequence[Span]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        readable = [readable_span(span, self._resource) for span in spans]
        return self._spans.export(readable) is SpanExportResult.SUCCESS

    def export_metrics(self, snapshot: Snapshot) -> bool:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        # It imports prometheus-client, which takes a while.
        from fanlog.telemetry.otlp_metrics import metrics_data  # noqa: PLC0415

        data = metrics_data(snapshot, self._resource)
        return self._metrics.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        self._spans.shutdown()
        self._metrics.shutdown()


def readable_span(span: Span, resource: Resource) -> ReadableSpan:
    """A span as OpenTelemetry's exporters want it."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(span_id: bytes, *, remote: bool) -> SpanContext:
        return SpanContext(
            int.from_bytes(span.trace_id),
            int.from_bytes(span_id),
            is_remote=remote,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    return ReadableSpan(
        span.name,
        context(span.span_id, remote=False),
        context(span.parent_id, remote=True) if span.parent_id else None,
        resource,
        span.attributes,
        kind=SpanKind[span.kind.upper()],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.start_us * 1000,
        end_time=span.end_us * 1000,
        instrumentation_scope=InstrumentationScope(_SCOPE, VERSION),
    )
