"""How test files are shared out among processes: which stay together, and which begin first.

A run is over with its last file. So those that take longest begin first, and short ones fill the
gaps at the end. `longest_files.json` says how many seconds they take; a file that is not in it
takes a few. It only decides on the order: a number that is out of date costs time, not truth. To
renew it, from a run on a quiet machine:

    make test ARGS="--junitxml=report.xml"
    .venv/bin/python -m tests.sharing report.xml
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

TABLE = Path(__file__).with_name("longest_files.json")
# What takes less is not worth a line.
_SECONDS_MIN = 5.0
# Tests wait for processes, disks and clocks for half of their time: two more fill those gaps.
_MORE_THAN_CORES = 2


# Tests of Spark that start Sparks of their own: they need not wait for the others.
SPARKS_OF_THEIR_OWN = (
    "tests/spark/pipelines/test_documented.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_document.py",
    "tests/spark/test_environment.py",
)


def group_of(nodeid: str) -> str:
    """What a test shares a process with: those of its file; all others that share one Spark."""
    file = nodeid.split("::", 1)[0]
    shared = file.startswith("tests/spark/") and file not in SPARKS_OF_THEIR_OWN
    return "tests/spark" if shared else file


def longest_first() -> dict[str, float]:
    """The groups that take long, and their seconds."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def processes() -> int:
    """How many processes share the tests."""
    return len(os.sched_getaffinity(0)) + _MORE_THAN_CORES


def renew(report: Path) -> None:
    """Writes the table anew from a report of pytest."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        path = Path(case.get("classname", "").replace(".", "/"))
        # A class in the file is part of the name, too.
        file = next((f for f in (path, *path.parents) if f.with_suffix(".py").is_file()), path)
        seconds[group_of(f"{file.as_posix()}.py")] += float(case.get("time", 0))
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    table = {group: round(took) for group, took in longest if took >= _SECONDS_MIN}
    TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew(Path(sys.argv[1]))
