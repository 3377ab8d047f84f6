"""Which Python Spark's workers run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fanlog.spark.sessions import WORKER, worker_environment


def test_workers_on_this_machine_start_by_way_of_the_script() -> None:
    told = worker_environment("local[2]", {})
    assert told == {"PYSPARK_PYTHON": str(WORKER), "FANLOG_WORKER_PYTHON": sys.executable}
    assert os.access(WORKER, os.X_OK)


@pytest.mark.parametrize(
    ("master", "environment"),
    [("spark://host:7077", {}), ("local[2]", {"SPARK_HOME": "/opt/spark"})],
)
def test_workers_elsewhere_run_plain_python(master: str, environment: dict[str, str]) -> None:
    assert worker_environment(master, environment) == {"PYSPARK_PYTHON": sys.executable}


def test_a_session_elsewhere_after_one_here_does_not_keep_the_script() -> None:
    here = worker_environment("local[*]", {})
    assert worker_environment("spark://host:7077", here) == {"PYSPARK_PYTHON": sys.executable}


def test_a_java_that_ran_before_is_not_told_of_the_script() -> None:
    plain = worker_environment("local[2]", {}, java_runs=True)
    assert plain == {"PYSPARK_PYTHON": sys.executable}
    assert not worker_environment("local[2]", plain, java_runs=True)
    ours = worker_environment("local[2]", {})
    assert worker_environment("local[2]", ours, java_runs=True) == ours


def test_who_has_said_which_python_has_it() -> None:
    assert not worker_environment("local[2]", {"PYSPARK_PYTHON": "python3.12"})


def test_the_script_leaves_out_what_is_installed_and_nothing_else(tmp_path: Path) -> None:
    spark = "/opt/a spark/python/lib"
    kept = [str(tmp_path), "/opt/a spark/jars/spark-core.jar", "/some/where/else.zip"]
    archives = [f"{spark}/pyspark.zip", f"{spark}/py4j-0.10.9.9-src.zip"]
    ended = subprocess.run(
        [str(WORKER), "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])", "a *"],
        env={"PYTHONPATH": ":".join(archives + kept), "FANLOG_WORKER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == f"{':'.join(kept)} a *\n"


def test_the_script_runs_the_first_python_where_it_is_not_told_which() -> None:
    path = str(Path(sys.executable).parent)
    ended = subprocess.run(
        [str(WORKER), "-c", "print(1 + 1)"], env={"PATH": path}, capture_output=True, check=True
    )
    assert ended.stdout == b"2\n"
