"""The table of long test files is about files that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sharing

ROOT = Path(__file__).parents[1]


def test_the_table_names_groups_of_files() -> None:
    for group in (*sharing.longest_first(), *sharing.SPARKS_OF_THEIR_OWN):
        assert (ROOT / group).exists(), f"{group} is gone: tests/sharing.py says how to renew"
        assert sharing.group_of(f"{group}::test_some" if group.endswith(".py") else f"{group}/x")


def test_what_shares_a_spark_stays_together() -> None:
    together = {
        sharing.group_of(f"{path.relative_to(ROOT).as_posix()}::test")
        for path in (ROOT / "tests" / "spark").rglob("test_*.py")
        if "spark: SparkSession" in path.read_text(encoding="utf-8")
    }
    assert together == {"tests/spark"}


def test_a_report_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, table = tmp_path / "report.xml", tmp_path / "table.json"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.test_node" name="a" time="4.0"/>'
        '<testcase classname="tests.test_node.TestClass" name="b" time="4.0"/>'
        '<testcase classname="tests.spark.test_sink" name="c" time="50"/>'
        '<testcase classname="tests.test_sharing" name="d" time="0.1"/>'
        "</testsuite></testsuites>"
    )
    monkeypatch.setattr(sharing, "TABLE", table)
    monkeypatch.chdir(ROOT)
    sharing.renew(report)
    assert sharing.longest_first() == {"tests/spark": 50, "tests/test_node.py": 8}
