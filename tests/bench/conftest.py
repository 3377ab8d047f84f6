"""Benchmarks that are tried out here start dozens of brokers, and none of them is about that."""

from __future__ import annotations

import subprocess
import sys
from typing import IO, Any

import pytest

from fanlog.bench import systems
from tests.forking import Program, fork

_FANLOG = [sys.executable, "-m", "fanlog"]


class _Subprocess:
    """The module, but for brokers, which are forked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(  # noqa: N802 - it has that name there
        self, command: list[str], *, stdin: int, stdout: IO[bytes], stderr: int
    ) -> Program | subprocess.Popen[bytes]:
        if command[:3] != _FANLOG:
            return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)
        return fork("fanlog", *command[3:], stdout=stdout.fileno(), stderr=stdout.fileno())


@pytest.fixture(autouse=True)
def forked_brokers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where starting and stopping is what is tested."""
    if request.path.name != "test_systems.py":
        monkeypatch.setattr(systems, "subprocess", _Subprocess())
