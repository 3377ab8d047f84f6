"""Spark's examples in README.md and docs/ do what they say. The others are run in tests/docs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, documents, read_steps
from tests.spark.sessions import need_java

# What a reader would not set: tests are short, and share two cores.
QUICK = "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"


def has_spark(document: Path) -> bool:
    return any(step.needs_spark and not step.not_run for step in read_steps(document))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", list(filter(has_spark, documents())), ids=str)
def test_the_examples_with_spark_run(document: Path, tmp_path: Path) -> None:
    need_java()
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.docs.reader", str(document)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYSPARK_SUBMIT_ARGS": QUICK,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
