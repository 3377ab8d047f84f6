"""Drivers in processes of their own, which tests wait for or kill, and what runs below them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"


class Driver:
    """`python jobs/NAME.py ARGUMENTS`, in a group of its own, with what it says in a file."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._command = [sys.executable, str(JOBS / f"{name}.py"), *arguments]
        self._output = folder / f"{name}.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=env, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_seconds: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def kill(self) -> None:
        """Kills Spark's driver, the Java process, and then sweeps up what was below it."""
        process, self._process = self._process, None
        if process is None:
            return
        for pid in list(_below(process.pid)):
            if b"java" in _command_of(pid).split(b"\0")[0]:
                _kill(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """Kills one of the Python processes that work for Java, whichever; False if none does."""
        assert self._process is not None
        workers = [pid for pid in _below(self._process.pid) if b"daemon" in _command_of(pid)]
        if workers:
            _kill(chance.choice(workers))
        return bool(workers)

    def __enter__(self) -> Driver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


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


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
