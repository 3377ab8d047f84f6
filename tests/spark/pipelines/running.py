"""Pipelines as a user runs them: `fanlog pipeline run` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUN_SECONDS_MAX = 200


def run_pipeline(
    name: str, url: str, state: Path, *, master: str = "local[2]", **options: str
) -> subprocess.CompletedProcess[str]:
    """Runs a pipeline to its end, whatever that is."""
    given = [word for item in options.items() for word in ("--option", "=".join(item))]
    where = ["--state", str(state), "--master", master, "--url", url]
    return subprocess.run(
        [sys.executable, "-m", "fanlog", "pipeline", "run", name, *where, *given],
        cwd=state.parent,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


def done(ended: subprocess.CompletedProcess[str]) -> str:
    """What a run said that went well."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
