"""The benchmarks of the web listener, short."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.bench import (
    BenchError,
    IdleOptions,
    WebFanoutOptions,
    WebLatencyOptions,
    load_report,
    render,
    run_idle,
    run_web_fanout,
    run_web_latency,
    save_plot,
    save_report,
)
from fanlog.bench import web as web_bench
from fanlog.bench.web_load import _Marks
from tests.bench.moments import until_counted

pytestmark = pytest.mark.timeout(400)


def test_fanout_counts_every_message_of_every_system() -> None:
    report = until_counted(
        lambda seconds: run_web_fanout(
            WebFanoutOptions(
                systems=("fanlog", "aiohttp", "websockets", "socketio"),
                fanlog_batches=(1,),
                subscribers=(3,),
                warmup_s=0.02,
                run_s=seconds,
            )
        ),
        lambda report: [row.delivered_per_s for row in report.rows],
    )
    assert [(row.system, row.batch, row.listener) for row in report.rows] == [
        ("fanlog", 1, "websocket"),
        ("aiohttp", 1, "websocket"),
        ("websockets", 1, "websocket"),
        ("socketio", 1, "websocket"),
    ]
    assert all(row.delivered_per_s > 0 for row in report.rows)
    assert render(report)


def test_server_sent_events_are_counted_too() -> None:
    report = until_counted(
        lambda seconds: run_web_fanout(
            WebFanoutOptions(
                listener="sse",
                systems=("fanlog", "aiohttp"),
                fanlog_batches=(64,),
                subscribers=(2,),
                warmup_s=0.02,
                run_s=seconds,
            )
        ),
        lambda report: [row.delivered_per_s for row in report.rows],
    )
    assert [row.listener for row in report.rows] == ["sse", "sse"]
    assert all(row.delivered_per_s > 0 for row in report.rows)


def test_latency_has_the_native_listener_beside_the_web() -> None:
    options = WebLatencyOptions(systems=("fanlog",), subscribers=(2,), warmup_s=0.02, run_s=0.1)
    rows = run_web_latency(options).rows
    assert [row.listener for row in rows] == ["native", "websocket"]
    assert all(0 < row.p50_us <= row.p99_us <= row.p999_us for row in rows)


def test_idle_connections_are_weighed_and_all_get_a_message(tmp_path: Path) -> None:
    report = run_idle(IdleOptions(connections=(120,)))
    (row,) = report.rows
    assert row.connections == 120
    save_report(report, tmp_path / "idle.json")
    assert load_report(tmp_path / "idle.json") == report
    save_plot(report, tmp_path / "idle.png")
    with pytest.raises(BenchError, match="connections"):
        IdleOptions(connections=(1_000_000,))


def test_a_server_that_is_not_installed_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_bench.importlib.util, "find_spec", lambda name: None)
    available, left_out = web_bench.split_web(("fanlog", "socketio"), "websocket")
    assert available == ["fanlog"]
    assert "pip install python-socketio" in left_out[0].reason
    assert web_bench.split_web(("fanlog", "socketio"), "sse")[0] == ["fanlog"]


def test_marks_are_counted_wherever_the_stream_is_cut() -> None:
    stream = b'xx"offset":1,"offset":2"off"offset":3'
    for size in range(1, len(stream)):
        marks = _Marks(b'"offset":')
        for at in range(0, len(stream), size):
            marks.take(stream[at : at + size])
        assert marks.count == 3, size
