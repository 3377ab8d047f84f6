"""Spark's benchmark, short: every way is measured, and every record was found."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fanlog.bench import SparkBenchOptions, load_report, render, run_spark, save_plot, save_report
from fanlog.bench.spark_jobs import CEILING, IDLE, WAYS
from tests.spark.processes import SHORT_LIVED, WORKERS
from tests.spark.sessions import need_java


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that is not there for long: its Java compiles little, its Python nothing."""
    for name, value in (WORKERS | SHORT_LIVED).items():
        monkeypatch.setenv(name, value)


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("quick_start")
def test_every_way_is_measured_beside_the_ceiling(tmp_path: Path) -> None:
    need_java()
    options = SparkBenchOptions(
        records=4000,
        row_records=1000,
        sink_records=1000,
        idle_s=1.0,
        repeat=1,
        directory=tmp_path,
    )
    steps: list[str] = []
    report = run_spark(options, lambda done, total, label: steps.append(label))
    assert [row.how for row in report.rows] == list(WAYS)
    assert report.rows[0].how == CEILING
    assert all(row.records_per_s > 0 for row in report.rows if row.how != IDLE)
    assert steps[:2] == ["filling the topic", "starting Spark"]
    assert steps[-1] == "done"

    save_report(report, tmp_path / "spark.json")
    assert load_report(tmp_path / "spark.json") == report
    save_plot(report, tmp_path / "spark.png")
    text = io.StringIO()
    Console(width=160, file=text).print(render(report))
    assert "to the ceiling" in text.getvalue()
