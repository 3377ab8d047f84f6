"""What is made of a run's log, and of a project, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.spark import pipelines
from fanlog.spark.pipelines.declarative import has_tables
from fanlog.spark.pipelines.runs import why_failed

PAGE = "\tat org.apache.spark.scheduler.DAGScheduler.run(DAGScheduler.scala:1)\n" * 40
OURS = "fanlog.errors.TopicNotFoundError: There is no topic 'a'.\n"
SPARKS = "pyspark.errors.AnalysisException: [UNRESOLVED] `x` is unknown. SQLSTATE: 42703; line 1\n"


def why(folder: Path, said: str) -> str:
    log = folder / "run.log"
    log.write_text(said)
    return why_failed(log).replace(str(log), "LOG")


def test_our_sentence_explains_a_failure_wherever_it_stands(tmp_path: Path) -> None:
    said = f"{SPARKS}{PAGE}Caused by: {OURS}{PAGE}{SPARKS}"
    assert why(tmp_path, said) == "There is no topic 'a'."


def test_otherwise_sparks_sentence_does(tmp_path: Path) -> None:
    said = f"{PAGE}{SPARKS}{PAGE}"
    wanted = "Spark says: `x` is unknown. All that the pipeline said is in LOG."
    assert why(tmp_path, said) == wanted


def test_otherwise_the_end_of_the_log_is_shown(tmp_path: Path) -> None:
    told = why(tmp_path, f"{PAGE}Killed\n").splitlines()
    assert told[-2:] == ["Killed", "All that the pipeline said is in LOG."]
    assert len(told) < 20


@pytest.mark.parametrize(("name", "tables"), [("clean", False), ("join", False), ("rollup", True)])
def test_only_what_makes_tables_waits_for_a_catalogue(name: str, tables: bool) -> None:
    assert has_tables(pipelines.find(name).folder) is tables
