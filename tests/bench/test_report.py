"""Tables and pictures, from reports made by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fanlog.bench import BenchError, Report, load_report, progress_bar, render, save_plot
from fanlog.bench.environment import Environment
from fanlog.bench.figures import count
from fanlog.bench.results import (
    ClientsReport,
    ClientsRow,
    CoresFanoutRow,
    CoresPublishRow,
    CoresReport,
    DurableReport,
    DurableRow,
    EdgesReport,
    EdgesRow,
    EmbeddedReport,
    EmbeddedRow,
    FanoutReport,
    FanoutRow,
    LatencyReport,
    LatencyRow,
    LeftOut,
    PublishersReport,
    PublishersRow,
    RateReport,
    RateRow,
)

ENVIRONMENT = Environment(
    when="2026-01-01T00:00:00Z",
    cpu="a processor",
    cores=2,
    pinned=True,
    kernel="Linux",
    python="3.11",
    filesystem="ext4",
    load_average=0.1,
    versions={"redis": "7.0"},
)


def _fanout(system: str, batch: int, rate: float) -> FanoutRow:
    return FanoutRow(
        system=system,
        batch=batch,
        subscribers=10,
        payload=128,
        receive="discard",
        published_per_s=rate / 10,
        delivered_per_s=rate,
        runs=[rate],
    )


def _durable(system: str, synced: bool, window: int) -> DurableRow:
    return DurableRow(
        system=system,
        durability="fsync",
        synced=synced,
        partitions=1,
        batch=1,
        window=window,
        payload=128,
        acknowledged_per_s=1000.0,
        runs=[1000.0],
    )


def _published(system: str, pipeline: int, rate: float) -> PublishersRow:
    return PublishersRow(
        system=system,
        connections=50,
        subscribers=0,
        pipeline=pipeline,
        payload=128,
        published_per_s=rate,
        cpu_us=8.5,
        busy=0.99,
        runs=[rate],
    )


def _at_rate(system: str, subscribers: int, rate: int) -> RateRow:
    return RateRow(
        system=system,
        subscribers=subscribers,
        rate=rate,
        payload=128,
        samples=2000,
        p50_us=80.0,
        p99_us=160.0,
        p999_us=1200.0,
        worst_us=1500.0,
        sent_p99_us=4.0,
        arrived_per_s=999.9,
        runs_p99_us=[160.0],
    )


PUBLISHERS = PublishersReport(
    rows=[
        _published("fanlog, redis port", 1, 8e4),
        _published("redis", 1, 1e5),
        _published("nats", 1, 1.6e5),
        _published("fanlog, redis port", 16, 5e5),
    ],
    left_out=[],
    environment=ENVIRONMENT,
)
FANOUT = FanoutReport(
    rows=[_fanout("fanlog", 64, 16e6), _fanout("redis", 1, 4e6), _fanout("nats", 1, 2e6)],
    left_out=[],
    environment=ENVIRONMENT,
)
REPORTS: list[Report] = [
    FANOUT,
    PUBLISHERS,
    RateReport(
        rows=[
            _at_rate(system, subscribers, rate)
            for subscribers in (10, 100)
            for rate in (1000, 5000)
            for system in ("fanlog", "redis")
        ],
        left_out=[],
        environment=ENVIRONMENT,
    ),
    LatencyReport(
        rows=[
            LatencyRow(
                system=system,
                subscribers=n,
                payload=128,
                samples=9,
                p50_us=30.0 * n,
                p99_us=70.0 * n,
                p999_us=90.0 * n,
            )
            for n in (1, 10)
            for system in ("fanlog", "redis")
        ],
        left_out=[],
        environment=ENVIRONMENT,
    ),
    DurableReport(
        rows=[_durable("fanlog", True, 1), _durable("nats", False, 1000)],
        left_out=[],
        environment=ENVIRONMENT,
    ),
    ClientsReport(
        rows=[
            ClientsRow(
                system="redis",
                client="redis-py asyncio",
                messages=10,
                payload=128,
                messages_per_s=100.0,
                runs=[100.0],
            )
        ],
        left_out=[LeftOut("nats", "nats-server was not found: run `pip`.")],
        environment=ENVIRONMENT,
    ),
    EdgesReport(
        rows=[
            EdgesRow(
                edges=edges,
                readers=1000,
                messages=10,
                payload=128,
                broker_us=cost,
                messages_per_s=100.0,
                runs=[cost],
            )
            for edges, cost in ((0, 8000.0), (4, 600.0))
        ],
        left_out=[],
        environment=ENVIRONMENT,
    ),
    CoresReport(
        rows=[
            CoresFanoutRow(
                workers=workers,
                batch=64,
                subscribers=1000,
                payload=128,
                published_per_s=rate / 1000,
                delivered_per_s=rate,
                core_s=0.02,
                workers_s=[0.03] * workers,
                runs=[rate],
            )
            for workers, rate in ((0, 40e6), (2, 60e6))
        ],
        publishing=[
            CoresPublishRow(
                system=system,
                workers=workers,
                connections=50,
                pipeline=16,
                payload=128,
                published_per_s=1e5,
                core_s=8.0,
                workers_s=[9.0] * workers,
                runs=[1e5],
            )
            for system, workers in (("fanlog, redis port", 2), ("redis", 0))
        ],
        left_out=[],
        environment=ENVIRONMENT,
    ),
    EmbeddedReport(
        rows=[
            EmbeddedRow(
                iteration="batches",
                subscribers=10,
                messages=10,
                payload=128,
                published_per_s=5e5,
                delivered_per_s=5e6,
                runs=[5e5],
            )
        ],
        left_out=[],
        environment=ENVIRONMENT,
    ),
]


def test_a_table_of_fan_out_says_what_readers_do_with_the_bytes() -> None:
    assert "readers leave the bytes in the kernel" in _shown(FANOUT)


def _shown(report: Report) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(render(report))
    return text.getvalue()


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_every_report_has_a_table_and_a_picture(report: Report, tmp_path: Path) -> None:
    shown = _shown(report)
    assert "a processor, 2 cores" in shown
    assert all(f"Left out: {left.system}" in shown for left in report.left_out)
    save_plot(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_fanout_table_compares_with_redis_and_nats() -> None:
    line = next(line for line in _shown(FANOUT).splitlines() if "fanlog, 64 a batch" in line)
    assert "16.00 M" in line
    assert "4.00×" in line
    assert "8.00×" in line


def test_a_report_without_rows_has_no_picture(tmp_path: Path) -> None:
    empty = FanoutReport(rows=[], left_out=[], environment=ENVIRONMENT)
    assert "subscribers" in _shown(empty)
    with pytest.raises(BenchError, match="nothing to draw"):
        save_plot(empty, tmp_path / "plot.png")


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"benchmark": "tea"}')
    with pytest.raises(BenchError, match="is not a benchmark's report"):
        load_report(tmp_path / "x.json")


def test_the_progress_bar_takes_steps() -> None:
    with progress_bar("fanout", Console(file=io.StringIO())) as progress:
        progress(0, 2, "first")
        progress(2, 2, "done")


@pytest.mark.parametrize(
    ("value", "text"), [(812.4, "812"), (97_140.0, "97.1 k"), (4_850_000.0, "4.85 M")]
)
def test_rates_are_written_as_people_say_them(value: float, text: str) -> None:
    assert count(value) == text
