"""CPU time and waiting time of each test file: `make test ARGS="--costs=costs.json"`.

Wall time on a busy machine says little. This records for each file the CPU seconds of the test
process and of all processes that it started, and the seconds of wall time beyond that. Setup and
teardown of a shared fixture count for the file that happened to need it first or last.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat, after the name: user and system time, its own and of children that ended.
_TIMES = slice(11, 15)


def cpu_seconds() -> float:
    """CPU time of this process and of all its descendants, running or ended."""
    used = 0.0
    for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(whose)
        used += usage.ru_utime + usage.ru_stime
    pids = _children(os.getpid())
    while pids:
        pid = pids.pop()
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            pids += _children(pid)
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        used += sum(map(int, fields[_TIMES])) / _TICKS_PER_SECOND
    return used


def _children(pid: int) -> list[int]:
    """Processes that this one started and that are still running."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


class CostsPerTest:
    """In each process that runs tests: adds the CPU time of a phase to its report."""

    def __init__(self) -> None:
        self._before = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds()
        # A process that nobody waited for takes its time with it.
        report.cpu_s = max(0.0, now - self._before)  # type: ignore[attr-defined]
        self._before = now
        return report


class CostsPerFile:
    """In the process that collects the reports: sums them up, and writes the file at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._wall_s: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, dict[str, tuple[float, float]]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        cpu_s = getattr(report, "cpu_s", 0.0)
        self._cpu_s[file] += cpu_s
        self._wall_s[file] += report.duration
        cpu_before, wall_before = self._tests[file].get(test, (0.0, 0.0))
        self._tests[file][test] = cpu_before + cpu_s, wall_before + report.duration

    def pytest_sessionfinish(self) -> None:
        by_cpu = sorted(self._cpu_s, key=lambda file: -self._cpu_s[file])
        rows = {
            file: {
                "tests": len(self._tests[file]),
                "cpu_s": round(self._cpu_s[file], 2),
                "waiting_s": round(max(0.0, self._wall_s[file] - self._cpu_s[file]), 2),
                "slowest": {
                    test: [round(seconds, 2) for seconds in costs]
                    for test, costs in sorted(
                        self._tests[file].items(), key=lambda item: -item[1][1]
                    )
                },
            }
            for file in by_cpu
        }
        self._path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
