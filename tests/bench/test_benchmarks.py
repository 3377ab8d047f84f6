"""Every benchmark, short, through the functions that the command line calls."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from fanlog.bench import (
    ClientsOptions,
    DurableOptions,
    EmbeddedOptions,
    FanoutOptions,
    LatencyOptions,
    PublishersOptions,
    RateOptions,
    load_report,
    run_clients,
    run_durable,
    run_embedded,
    run_fanout,
    run_latency,
    run_publishers,
    run_rate,
    save_report,
)
from fanlog.bench.plot import fanout_label
from fanlog.bench.runner import pick_run
from fanlog.bench.systems import SystemKind
from tests.bench.moments import until_counted
from tests.bench.programs import need

# Each starts many systems, one after the other.
pytestmark = pytest.mark.timeout(400)

ALL: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")


@pytest.fixture(autouse=True)
def programs() -> None:
    for kind in ALL:
        need(kind)


def test_fanout_reports_a_row_for_each_system_and_number_of_subscribers(tmp_path: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    options = FanoutOptions(systems=ALL, subscribers=(1, 3), warmup_s=0.02, run_s=0.05)
    report = run_fanout(options, lambda done, total, label: steps.append((done, total, label)))
    cells = [(row.system, row.batch, row.subscribers) for row in report.rows]
    systems = [("fanlog", 64), ("fanlog", 1), ("redis", 1), ("nats", 1)]
    assert cells == [(system, batch, n) for n in (1, 3) for system, batch in systems]
    assert steps[0] == (0, 8, "fanlog, 64 a batch, 1 subscribers")
    assert steps[-1] == (8, 8, "done")

    save_report(report, tmp_path / "fanout.json")
    assert load_report(tmp_path / "fanout.json") == report
    plain = msgspec.json.decode((tmp_path / "fanout.json").read_bytes())
    assert plain["benchmark"] == "fanout"
    assert plain["rows"][0]["payload"] == 128


def test_fanout_with_tls_has_every_row_twice(tmp_path: Path) -> None:
    report = until_counted(
        lambda seconds: run_fanout(
            FanoutOptions(
                systems=("fanlog", "redis", "nats"),
                fanlog_batches=(8,),
                subscribers=(2,),
                run_s=seconds,
                warmup_s=0.0,
                tls=True,
                directory=tmp_path,
            )
        ),
        lambda report: [min(row.delivered_per_s, row.system_ns) for row in report.rows],
    )
    assert [(row.system, row.tls) for row in report.rows] == [
        ("fanlog", False),
        ("redis", False),
        ("fanlog", True),
        ("redis", True),
    ]
    assert all(row.delivered_per_s > 0 and row.system_ns > 0 for row in report.rows)
    assert [left.system for left in report.left_out] == ["nats"]
    assert "fanlog, 8 a batch, TLS" in map(fanout_label, report.rows)


def test_the_redis_port_is_measured_with_redis_protocol_on_both_sides() -> None:
    systems: tuple[SystemKind, ...] = ("fanlog", "redis")
    fanout = until_counted(
        lambda seconds: run_fanout(
            FanoutOptions(
                systems=systems, subscribers=(3,), listener="redis", warmup_s=0.02, run_s=seconds
            )
        ),
        lambda report: [row.delivered_per_s for row in report.rows],
    )
    assert [(row.system, row.batch, row.listener) for row in fanout.rows] == [
        ("fanlog", 1, "redis"),
        ("redis", 1, "redis"),
    ]
    assert all(row.delivered_per_s > 0 for row in fanout.rows)
    assert [fanout_label(row) for row in fanout.rows] == ["fanlog, redis port", "redis"]
    latency = run_latency(
        LatencyOptions(
            systems=systems, subscribers=(2,), listener="redis", warmup_s=0.02, run_s=0.05
        )
    )
    assert all(row.p50_us > 0 for row in latency.rows)


def test_a_repeated_cell_is_one_row_with_every_run() -> None:
    options = FanoutOptions(
        systems=("redis",), subscribers=(1,), repeat=3, warmup_s=0.02, run_s=0.05, pick="best"
    )
    (row,) = run_fanout(options).rows
    assert len(row.runs) == 3
    assert row.delivered_per_s == max(row.runs)


def test_latency_percentiles_rise() -> None:
    options = LatencyOptions(systems=ALL, subscribers=(2,), warmup_s=0.02, run_s=0.1)
    rows = run_latency(options).rows
    assert [row.system for row in rows] == ["fanlog", "redis", "nats"]
    assert all(0 < row.p50_us <= row.p99_us <= row.p999_us for row in rows)


def test_latency_at_a_rate_has_every_port_beside_the_others(tmp_path: Path) -> None:
    options = RateOptions(
        systems=ALL, subscribers=(2,), rates=(200, 400), warmup_s=0.05, run_s=0.2, repeat=1
    )
    report = run_rate(options)
    assert [(row.system, row.rate) for row in report.rows] == [
        (system, rate)
        for rate in (200, 400)
        for system in ("fanlog", "fanlog, redis port", "redis", "nats")
    ]
    for row in report.rows:
        assert row.samples == row.rate * 0.2
        assert 0 < row.p50_us <= row.p99_us <= row.p999_us <= row.worst_us
        assert len(row.runs_p99_us) == 1
    again = dataclasses.replace(options, systems=("redis",), rates=(400,), repeat=2)
    assert [len(row.runs_p99_us) for row in run_rate(again).rows] == [2]
    save_report(report, tmp_path / "rate.json")
    assert load_report(tmp_path / "rate.json") == report


def test_publishers_that_wait_are_counted_for_every_port() -> None:
    report = until_counted(
        lambda seconds: run_publishers(
            PublishersOptions(
                systems=ALL,
                connections=(3,),
                subscribers=(1, 0),
                pipelines=(1, 16),
                warmup_s=0.02,
                run_s=seconds,
            )
        ),
        lambda report: [row.published_per_s for row in report.rows],
    )
    every, redis = (
        ("fanlog", "fanlog, redis port", "redis", "nats"),
        ("fanlog, redis port", "redis"),
    )
    assert [(row.pipeline, row.subscribers, row.system) for row in report.rows] == [
        (pipeline, subscribers, system)
        for pipeline, systems in ((1, every), (16, redis))
        for subscribers in (1, 0)
        for system in systems
    ]
    assert all(row.published_per_s > 0 and row.cpu_us >= 0 for row in report.rows)


def test_durable_reports_every_promise() -> None:
    rows = until_counted(
        lambda seconds: (
            run_durable(
                DurableOptions(
                    systems=ALL,
                    windows=(50,),
                    fanlog_batches=(1, 10, 64),
                    warmup_s=0.02,
                    run_s=seconds,
                )
            ).rows
        ),
        lambda rows: [row.acknowledged_per_s for row in rows],
    )
    assert len([row for row in rows if row.system == "fanlog"]) == 8
    assert len([row for row in rows if row.system != "fanlog"]) == 5
    assert all(row.acknowledged_per_s > 0 for row in rows)
    assert {row.durability for row in rows if row.synced} == {
        "appendfsync always",
        "sync_interval always",
        "fsync",
        "fsync, 64 partitions",
    }


def test_clients_pass_every_message_on() -> None:
    rows = run_clients(ClientsOptions(systems=ALL, messages=500)).rows
    assert [row.client for row in rows] == ["fanlog.connect", "redis-py asyncio", "nats-py"]
    assert all(row.messages_per_s > 0 for row in rows)


def test_the_embedded_broker_delivers_to_every_subscriber() -> None:
    rows = run_embedded(EmbeddedOptions(messages=500, subscribers=3)).rows
    assert [row.iteration for row in rows] == ["messages", "batches"]
    assert all(row.delivered_per_s == pytest.approx(3 * row.published_per_s) for row in rows)


@pytest.mark.parametrize(
    ("runs", "pick", "index"),
    [([3.0, 9.0, 5.0], "median", 2), ([3.0, 9.0, 5.0], "best", 1), ([4.0, 8.0], "median", 0)],
)
def test_a_row_shows_the_run_that_was_asked_for(runs: list[float], pick: str, index: int) -> None:
    assert pick_run(runs, "best" if pick == "best" else "median") == index
