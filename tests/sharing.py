"""How test files are shared out among processes: which stay together, and which begin first.

A run is over with its last file. So those that take longest begin first, and short ones fill the
gaps at the end. `longest_files.json` says how many seconds they take; a file that is not in it
takes a few. It only decides on the order: a number that is out of date costs time, not truth. To
renew it, from a run on a quiet machine:

    make test ARGS="--costs=costs.json"
    .venv/bin/python -m tests.sharing costs.json
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("longest_files.json")
# What takes less is not worth a line.
_SECONDS_MIN = 5.0
# Tests wait for processes, disks and clocks for half of their time: two more fill those gaps.
_MORE_THAN_CORES = 2


# Parameters of tests that use the Spark of tests/spark/conftest.py.
_SHARED_SPARK = re.compile(r"\b(spark: SparkSession|connect: str|reading: Reading)\b")
_ROOT = Path(__file__).parents[1]


def group_of(nodeid: str) -> str:
    """The group of a test, which runs in one process: its file, or all files of one of the two
    Sparks. A file in tests/spark that does not use the shared Spark is a group of its own."""
    file = nodeid.split("::", 1)[0]
    if not _uses_shared_spark(file):
        return file
    pipelines = "tests/spark/pipelines"
    return pipelines if file.startswith(pipelines) else "tests/spark"


@cache
def _uses_shared_spark(file: str) -> bool:
    if not file.startswith("tests/spark/") or not file.endswith(".py"):
        return False
    return bool(_SHARED_SPARK.search((_ROOT / file).read_text(encoding="utf-8")))


def longest_first() -> dict[str, float]:
    """The groups that take long, and their seconds."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Puts groups, files and tests into a random order; what is together stays together."""
    dice = random.Random(seed)
    names = sorted({item.nodeid for item in items})
    ranks = dict(zip(names, dice.sample(range(len(names)), len(names)), strict=True))
    groups: dict[str, int] = {}
    files: dict[str, int] = {}
    for name in names:
        groups.setdefault(group_of(name), ranks[name])
        files.setdefault(name.split("::", 1)[0], ranks[name])

    def order(item: pytest.Item) -> tuple[int, int, int]:
        file = item.nodeid.split("::", 1)[0]
        return groups[group_of(item.nodeid)], files[file], ranks[item.nodeid]

    items.sort(key=order)


def processes() -> int:
    """How many processes share the tests."""
    return len(os.sched_getaffinity(0)) + _MORE_THAN_CORES


def renew(costs: Path) -> None:
    """Writes the table anew from a record of costs (tests/costs.py)."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for file, cost in json.loads(costs.read_text(encoding="utf-8")).items():
        seconds[group_of(file)] += cost["cpu_s"] + cost["waiting_s"]
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    table = {group: round(took) for group, took in longest if took >= _SECONDS_MIN}
    TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew(Path(sys.argv[1]))
