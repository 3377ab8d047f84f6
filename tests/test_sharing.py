"""The table of long test files is about files that there are."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import sharing
from tests.fast import is_fast

ROOT = Path(__file__).parents[1]


def test_the_table_names_groups_of_files() -> None:
    for group in sharing.longest_first():
        assert (ROOT / group).exists(), f"{group} is gone: tests/sharing.py says how to renew"


def test_what_shares_a_spark_stays_together() -> None:
    together = {
        sharing.group_of(f"{path.relative_to(ROOT).as_posix()}::test")
        for path in (ROOT / "tests" / "spark").rglob("test_*.py")
        if "spark: SparkSession" in path.read_text(encoding="utf-8")
    }
    assert together == {"tests/spark", "tests/spark/pipelines"}
    alone = "tests/spark/test_options.py"
    assert sharing.group_of(f"{alone}::test") == alone


def test_a_record_of_costs_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, table = tmp_path / "costs.json", tmp_path / "table.json"
    costs = {
        "tests/test_node.py": {"cpu_s": 6.0, "waiting_s": 2.0},
        "tests/spark/test_sink.py": {"cpu_s": 20.0, "waiting_s": 10.0},
        "tests/spark/test_source.py": {"cpu_s": 15.0, "waiting_s": 5.0},
        "tests/test_sharing.py": {"cpu_s": 0.1, "waiting_s": 0.0},
    }
    record.write_text(json.dumps(costs))
    monkeypatch.setattr(sharing, "TABLE", table)
    sharing.renew(record)
    assert sharing.longest_first() == {"tests/spark": 50, "tests/test_node.py": 8}


def test_quick_runs_have_what_starts_no_program() -> None:
    fast = {path for path in (ROOT / "tests").rglob("test_*.py") if is_fast(path)}
    assert ROOT / "tests/format/test_batch.py" in fast
    assert Path(__file__) in fast
    for starts in (
        "browser/test_chat",
        "dashboard/test_core",
        "cli/test_config",
        "spark/test_sink",
    ):
        path = ROOT / f"tests/{starts}.py"
        assert path.exists()
        assert path not in fast
    assert not any(
        sharing.group_of(path.relative_to(ROOT).as_posix()) in sharing.longest_first()
        for path in fast
    )


def test_a_random_order_keeps_files_together() -> None:
    names = [f"tests/test_{file}.py::test_{n}" for file in range(3) for n in range(9)]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    sharing.shuffle(items, 1)
    shuffled = [item.nodeid for item in items]
    assert shuffled != names
    assert sorted(shuffled) == names
    files = [name.split("::")[0] for name in shuffled]
    assert [file for file, _ in groupby(files)] == list(dict.fromkeys(files))
    sharing.shuffle(items, 1)
    assert [item.nodeid for item in items] == shuffled
