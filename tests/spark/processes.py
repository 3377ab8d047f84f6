"""Programs in processes of their own, which tests wait for or kill, and what runs below them.

Law: what was started is gone when its block ends, however that ends; it is found by its process id.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fanlog.spark.sessions import WORKER
from tests.scenarios.interrupts import heard_interrupts
from tests.servers import QUICK_JAVA

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
# What Spark's workers run, and where they find these tests: Spark may give them another folder.
WORKERS = {
    "PYSPARK_PYTHON": str(WORKER),
    "FANLOG_WORKER_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
}
SHORT_LIVED = {"JDK_JAVA_OPTIONS": QUICK_JAVA}
# Far more than anything here takes: whoever waits as long waits for nothing.
PATIENCE_SECONDS = 240.0
TOLD_CHARACTERS = 5000


class Program:
    """A command, in a group of its own and in a folder, with what it says in a file there."""

    def __init__(self, folder: Path, command: Sequence[str], **environment: str) -> None:
        self._folder = folder
        self._command = command
        self._environment = {
            **os.environ,
            **WORKERS,
            **SHORT_LIVED,
            **environment,
        }
        self._output = folder / f"{Path(command[0]).stem}-{time.monotonic_ns()}.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.kill()
        with self._output.open("ab") as output, heard_interrupts():
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end_well(self, patience_seconds: float = PATIENCE_SECONDS) -> str:
        """Waits for a good end; what was said until then."""
        assert self._process is not None
        try:
            code = self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.told(f"is not done in {patience_seconds:.0f} s")) from None
        assert code == 0, self.told(f"ended with {code}")
        return self.said()

    def said(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def told(self, what: str) -> str:
        """A sentence about the program, and the end of what it said."""
        return f"{' '.join(self._command)} {what}. It said:\n{self.said()[-TOLD_CHARACTERS:]}"

    def kill(self) -> None:
        """Kills Spark's driver, the Java process, and then sweeps up what was beside and below."""
        process, self._process = self._process, None
        if process is None:
            return
        below = list(_below(process.pid))
        for pid in sorted(below, key=lambda pid: not _is_java(pid)):
            _kill(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_workers(self, chance: random.Random, count: int) -> int:
        """Kills some of the Python processes that work for Java, whichever; how many it found."""
        assert self._process is not None
        workers = [pid for pid in _below(self._process.pid) if b"daemon" in _command_of(pid)]
        chosen = chance.sample(workers, min(count, len(workers)))
        for pid in chosen:
            _kill(pid)
        return len(chosen)

    def __enter__(self) -> Program:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Driver(Program):
    """`python jobs/NAME.py ARGUMENTS`."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        super().__init__(folder, [sys.executable, str(JOBS / f"{name}.py"), *arguments])


def _below(pid: int) -> Iterator[int]:
    """All processes that a process has started, and that those have."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from _below(child)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_java(pid: int) -> bool:
    return b"java" in _command_of(pid).split(b"\0")[0]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
