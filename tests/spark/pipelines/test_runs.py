"""What is made of a run's log, of its end, and of a project, without Spark."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path

import msgspec
import pytest

from fanlog.spark import pipelines
from fanlog.spark.pipelines.declarative import has_tables
from fanlog.spark.pipelines.ended import recorded
from fanlog.spark.pipelines.runs import LOCK, RECORD, LastRun, condition, last_run, why_failed

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
    wanted = "Spark says: `x` is unknown. The pipeline's full output is in LOG."
    assert why(tmp_path, said) == wanted


def test_otherwise_the_end_of_the_log_is_shown(tmp_path: Path) -> None:
    told = why(tmp_path, f"{PAGE}Killed\n").splitlines()
    assert told[-2:] == ["Killed", "The pipeline's full output is in LOG."]
    assert len(told) < 20


@pytest.mark.parametrize(("name", "tables"), [("clean", False), ("join", False), ("rollup", True)])
def test_only_what_makes_tables_waits_for_a_catalogue(name: str, tables: bool) -> None:
    assert has_tables(pipelines.find(name).folder) is tables


@pytest.mark.parametrize(
    ("program", "exit_code", "wanted"),
    [
        ("import beside", 0, "done"),
        ("import sys; sys.exit()", 0, "done"),
        ("import sys; sys.exit(len(sys.argv[1:]))", 2, "failed"),
        ("import sys; sys.exit('words')", 1, "failed"),
        ("raise ValueError", 1, "failed"),
        ("raise KeyboardInterrupt", -2, "stopped"),
        ("import os; os.kill(os.getpid(), 9)", None, "killed"),
    ],
)
def test_a_run_tells_its_end_where_nobody_waits_for_it(
    tmp_path: Path, program: str, exit_code: int | None, wanted: str
) -> None:
    state, folder = tmp_path / "state", tmp_path / "folder"
    for made in (state, folder):
        made.mkdir()
    (folder / "beside.py").touch()
    (folder / "program.py").write_text(program)
    run = LastRun(pipeline="archive", options={}, pid=1, started=dt.datetime.now(dt.UTC))
    (state / RECORD).write_bytes(msgspec.json.encode(run))
    (state / LOCK).touch()
    command = recorded(state, folder / "program.py", "a=1", "b=2")
    ended = subprocess.run(command, cwd=state, stderr=subprocess.DEVNULL, check=False)
    assert ended.returncode == (-9 if exit_code is None else exit_code)
    found = last_run(state)
    assert found is not None
    assert (found.exit_code, condition(state, found)) == (exit_code, wanted)
    assert (found.ended is None) == (exit_code is None)
