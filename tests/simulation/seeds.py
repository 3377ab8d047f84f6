"""Seeds for tests, in a process of their own: nothing of theirs stays behind in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Above the seeds that tests name.
_NEW_FROM = 1_000_000
_NEW_COUNT = 1_000_000_000


def commit() -> str:
    """The commit of this code, as `git rev-parse HEAD` says it; empty without git."""
    return _git("rev-parse", "HEAD")


def describe_commit() -> str:
    """The short name of the commit, and whether files were changed since; empty without git."""
    changed = " with changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    short = _git("rev-parse", "--short", "HEAD")
    return f"{short}{changed}" if short else ""


def new_seed() -> int:
    """The first of the seeds that only this commit simulates; without git always the same."""
    return _NEW_FROM + int(commit()[:12] or "0", 16) % _NEW_COUNT


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run_seeds(first: int, count: int, *options: str) -> subprocess.CompletedProcess[str]:
    """How `python -m tests.simulation` ended, and what it printed."""
    command = [sys.executable, "-m", "tests.simulation"]
    command += ["--seed", str(first), "--seeds", str(count), *options]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
