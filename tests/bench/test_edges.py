"""The benchmark of edges: both cases run, and every reader gets everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.bench.edges import EdgesOptions, run_edges
from fanlog.bench.systems import BenchError
from fanlog.bench.tables import edges_table


def test_readers_get_everything_directly_and_through_edges(tmp_path: Path) -> None:
    options = EdgesOptions(readers=20, edges=2, messages=20, pin=False, directory=tmp_path)
    report = run_edges(options)
    assert [(row.edges, row.readers) for row in report.rows] == [(0, 20), (2, 20)]
    assert all(row.broker_us > 0 for row in report.rows)
    assert edges_table(report).row_count == 2


def test_readers_that_do_not_fit_the_edges_are_refused() -> None:
    with pytest.raises(BenchError, match="multiple of --edges"):
        EdgesOptions(readers=10, edges=3)
