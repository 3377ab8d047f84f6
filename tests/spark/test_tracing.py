"""A trace goes through Spark: the headers come with the rows, and go out with them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fanlog
import fanlog.spark
from fanlog.format.trace_context import TraceContext, context_of
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.conftest import Reading

CONTEXT = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))


def test_a_trace_goes_through_spark(
    client: fanlog.sync.Client,
    topic: str,
    reading: Reading,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.publish(topic, b"traced", headers={"traceparent": CONTEXT.traceparent, "a": "b"})
    client.publish(topic, b"plain")
    client.publish(topic, b"odd", headers={"traceparent": "nonsense"})
    rows = reading(topics=topic)
    seen = rows.select(
        fanlog.spark.trace_id().alias("trace"), fanlog.spark.header("a").alias("a"), "value"
    )
    found = {bytes(row.value): (row.trace, row.a) for row in seen.collect()}
    expected = (CONTEXT.trace_id.hex(), "b")
    assert found == {b"traced": expected, b"plain": (None, None), b"odd": (None, None)}

    out = f"{topic}-out"
    kept = rows.select("value", "headers")
    kept.write.format("fanlog").option("url", broker.url).option("topic", out).mode("append").save()
    with client.subscribe(out, start="earliest") as reader:
        messages = [reader.next(timeout_seconds=60) for _ in range(3)]
    contexts = {message.value: context_of(message.headers) for message in messages}
    assert contexts == {b"traced": CONTEXT, b"plain": None, b"odd": None}
    _process(monkeypatch, rows.where("value = 'traced'").collect()[0])


def _process(monkeypatch: pytest.MonkeyPatch, row: Any) -> None:
    """Python code that works on a row has a span in the trace of its message."""
    with fanlog.spark.processing(row):
        pass
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with fanlog.spark.processing(row, "billing"):
        pass
    [span] = exporter.get_finished_spans()
    assert span.parent is not None
    assert span.parent.trace_id.to_bytes(16) == CONTEXT.trace_id
    assert span.parent.span_id.to_bytes(8) == CONTEXT.span_id
    assert (span.attributes or {})["messaging.consumer.group.name"] == "billing"
    provider.shutdown()
