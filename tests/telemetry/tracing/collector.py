"""A collector of a test's own: it takes OTLP over HTTP and keeps what comes in memory."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected(NamedTuple):
    """A span, and which service it is from."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """`spans` and `metrics` are what came so far; `refusing` makes it answer 503."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        self.metrics: dict[str, list[Any]] = {}
        self.headers: list[dict[str, str]] = []
        self.refusing = False
        self.url = ""
        self._changed = threading.Condition()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        with self._changed:
            self.headers.append(headers)
            if path == "/v1/traces":
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/metrics":
                self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            self._changed.notify_all()

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [
                    Collected(
                        about.get("service.name", ""),
                        span.name,
                        span.kind,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _values(span.attributes),
                        span.status.code == 2,
                    )
                    for span in scope.spans
                ]

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self.metrics.setdefault(metric.name, []).append(metric)

    def wait_for(self, *names: str, seconds: float = 60) -> list[Collected]:
        """Waits until there is a span of each of these names."""

        def there() -> bool:
            return set(names) <= {span.name for span in self.spans}

        with self._changed:
            assert self._changed.wait_for(there, seconds), [span.name for span in self.spans]
            return list(self.spans)

    def wait_for_metric(self, name: str, seconds: float = 60) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.metrics, seconds), self.metrics
            return self.metrics[name][-1]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if not collector.refusing:
                collector.take(self.path, body, dict(self.headers))
            self.send_response(503 if collector.refusing else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
