"""A collector that is slow, away or picky costs the broker nothing but spans."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

import fanlog
from fanlog.config import Config
from fanlog.config_security import TelemetryOptions
from fanlog.errors import ConfigError
from fanlog.node import Node
from fanlog.telemetry.otlp_metrics import metrics_data
from fanlog.telemetry.prometheus import families
from fanlog.telemetry.snapshot import Snapshot
from fanlog.telemetry.tracing.otlp import OtlpExport, maybe_exporter, read_headers
from fanlog.telemetry.tracing.spans import Span, SpanLog
from tests.telemetry.tracing.collector import collecting


class Picky:
    """Takes spans only while it is `open`, and waits for `go` before it answers."""

    def __init__(self) -> None:
        self.open = True
        self.go = threading.Event()
        self.go.set()
        self.got: list[Span] = []

    def export_spans(self, spans: Sequence[Span]) -> bool:
        self.go.wait()
        if self.open:
            self.got += spans
        return self.open

    def export_metrics(self, snapshot: Snapshot) -> bool:
        return self.open

    def close(self) -> None:
        self.go.set()


async def no_snapshot() -> Snapshot:
    return None  # pyright: ignore[reportReturnType]


def add(log: SpanLog, count: int = 1) -> None:
    for _ in range(count):
        log.add(
            log.new_trace(), b"", "append t", kind="server", start_us=1, end_us=2, attributes={}
        )


async def test_a_slow_collector_holds_nobody_up_and_loses_the_oldest() -> None:
    log, exporter = SpanLog(10, lambda: 0), Picky()
    export = OtlpExport(log, exporter, no_snapshot)
    exporter.go.clear()
    add(log)
    await export.tick()
    add(log, 16_384 + 10)
    # It is still busy with the first: nothing else begins.
    await export.tick()
    assert export.dropped == 10
    await export.close()


async def test_a_collector_that_refuses_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    log, exporter = SpanLog(10, lambda: 0), Picky()
    export = OtlpExport(log, exporter, no_snapshot)
    exporter.open = False
    with caplog.at_level(logging.WARNING, "fanlog.telemetry"):
        for _ in range(3):
            add(log, 2)
            await export.tick()
            assert export._sending is not None
            await asyncio.wrap_future(export._sending)
    assert export.dropped == 6
    assert sum("did not accept" in record.message for record in caplog.records) == 1
    exporter.open = True
    add(log)
    await export.close()
    assert len(exporter.got) == 1


async def test_headers_from_a_file_go_to_the_collector(tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("# The collector's key\nAuthorization: Bearer x:y\n\nx-team: tea\n")
    with collecting() as collector:
        telemetry = TelemetryOptions(otlp_endpoint=collector.url, otlp_headers_file=str(secret))
        node = Node(None, Config(telemetry=telemetry))
        node.start()
        add(node.core.traces.spans)
        await node.stop()
        spans = collector.wait_for("append t")
    assert spans[0].service == "fanlog"
    sent = {name.lower(): value for name, value in collector.headers[0].items()}
    assert (sent["authorization"], sent["x-team"]) == ("Bearer x:y", "tea")


async def test_the_broker_stops_although_its_collector_is_gone() -> None:
    with collecting() as collector:
        collector.refusing = True
        node = Node(None, Config(telemetry=TelemetryOptions(otlp_endpoint=collector.url)))
        node.start()
        add(node.core.traces.spans)
        await node.stop()


async def test_metrics_have_the_names_and_values_of_prometheus() -> None:
    async with fanlog.Broker() as broker:
        await broker.publish_many("t", [b"x"] * 3)
        assert broker._node is not None
        snapshot = await broker._node.core.metrics.snapshot()
    data = metrics_data(snapshot, Resource.create({}))
    metrics: dict[str, Any] = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    assert set(metrics) == {family.name for family in families(snapshot)}
    published = metrics["fanlog_published_messages"].data
    assert (published.is_monotonic, published.data_points[0].value) == (True, 3)
    assert metrics["fanlog_ready"].data.data_points[0].value == 1
    [point] = metrics["fanlog_turn_seconds"].data.data_points
    assert point.count == sum(point.bucket_counts) == snapshot.times.turn_us.count > 0
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1


@pytest.mark.parametrize("text", ["no colon", ": nothing"])
def test_a_bad_line_of_headers_is_named_without_what_is_in_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "headers"
    file.write_text(f"a: b\n{text}\n")
    with pytest.raises(ConfigError, match="Line 2") as caught:
        read_headers(str(file))
    assert text not in str(caught.value)
    with pytest.raises(ConfigError, match="can't be read"):
        read_headers(str(tmp_path / "none"))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    assert maybe_exporter(TelemetryOptions()) is None
    with pytest.raises(ConfigError, match=r"fanlog\[otel\]"):
        maybe_exporter(TelemetryOptions(otlp_endpoint="http://127.0.0.1:1"))
