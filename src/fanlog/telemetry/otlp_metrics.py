"""A snapshot in OTLP's form, under the names of the Prometheus metrics, so that dashboards and
alerts work with both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from fanlog.release import VERSION
from fanlog.telemetry.prometheus import families
from fanlog.telemetry.snapshot import Snapshot

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

_SECOND_NS = 1_000_000_000


def metrics_data(snapshot: Snapshot, resource: Resource) -> MetricsData:
    """All metrics of a snapshot, cumulative since the start of the process."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = int(snapshot.time * _SECOND_NS)
    start_ns = now_ns - int(snapshot.uptime_seconds * _SECOND_NS)
    metrics = list(_metrics(snapshot, start_ns, now_ns))
    scope = ScopeMetrics(InstrumentationScope("fanlog.broker", VERSION), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metrics(snapshot: Snapshot, start_ns: int, now_ns: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics import export

    for family in families(snapshot):
        if family.type == "histogram":
            points = [_histogram(family, start_ns, now_ns)]
            data: Any = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
        else:
            samples = [
                export.NumberDataPoint(dict(sample.labels), start_ns, now_ns, sample.value)
                for sample in family.samples
            ]
            if family.type == "counter":
                cumulative = export.AggregationTemporality.CUMULATIVE
                data = export.Sum(samples, cumulative, is_monotonic=True)
            else:
                data = export.Gauge(samples)
        yield export.Metric(family.name, family.documentation, family.unit or "", data)


def _histogram(family: Metric, start_ns: int, now_ns: int) -> Any:
    """Prometheus adds buckets up; OTLP does not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    bounds: list[float] = []
    counts: list[int] = []
    below, total = 0, 0.0
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            counts.append(int(sample.value) - below)
            below = int(sample.value)
            if sample.labels["le"] != "+Inf":
                bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            total = sample.value
    return HistogramDataPoint(
        {}, start_ns, now_ns, below, total, counts, bounds, min=0.0, max=float("inf")
    )
