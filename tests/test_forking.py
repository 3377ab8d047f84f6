"""Programs that are forked are processes as any other. This file is such a program, too."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.forking import PIPE, fork

PATIENCE_SECONDS = 60


def test_it_has_its_arguments_folder_variables_files_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "errors").open("wb") as errors:
        program = fork(
            *("tests.test_forking", "show", "two words"),
            env={**os.environ, "TEA": "green"},
            stdout=PIPE,
            stderr=errors.fileno(),
            files_max=99,
        )
    assert program.stdout is not None
    with program.stdout as said:
        assert said.read() == f"['show', 'two words'] {tmp_path} green 99\n"
    assert program.wait(PATIENCE_SECONDS) == program.poll() == 7
    # One thread, and no files but its own.
    assert (tmp_path / "errors").read_text() == "1 [0, 1, 2]\n"


def test_it_is_killed_and_its_id_is_its_own_until_that_is_heard() -> None:
    program = fork("tests.test_forking", "wait", stdout=PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == "here\n"
    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    os.kill(program.pid, signal.SIGKILL)
    # Its end of the pipe is closed: it is dead, and nobody has its id.
    assert program.stdout.read() == ""
    os.kill(program.pid, 0)
    program.send_signal(signal.SIGTERM)
    assert program.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    program.stdout.close()


def _open_files() -> list[int]:
    found: list[int] = []
    for number in range(99):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "wait":
        print("here", flush=True)
        time.sleep(600)
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    print(sys.argv[1:], os.getcwd(), os.environ["TEA"], files_max)
    print(threading.active_count(), _open_files(), file=sys.stderr)
    sys.exit(7)
