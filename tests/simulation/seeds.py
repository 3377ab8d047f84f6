"""Seeds in a process of their own, for tests: nothing of theirs stays behind in this one."""

from __future__ import annotations

import os
import subprocess
import sys


def run_seeds(first: int, count: int, *options: str) -> subprocess.CompletedProcess[str]:
    """How `python -m tests.simulation` ended, and what it printed."""
    command = [sys.executable, "-m", "tests.simulation"]
    command += ["--seed", str(first), "--seeds", str(count), *options]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
