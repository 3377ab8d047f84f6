"""Pipelines as a user runs them: `fanlog pipeline run` in a process of its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.spark.processes import PATIENCE_SECONDS, Program

RUN_SECONDS_MAX = 400
LOG_CHARACTERS = 8000


class PipelineProgram(Program):
    def interrupt(self) -> int:
        """Types Ctrl-C; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE_SECONDS)


def pipeline_program(
    name: str, url: str, state: Path, *, master: str = "local[2]", **options: str
) -> PipelineProgram:
    """The program, to be started and ended by who asks for it."""
    given = [word for item in options.items() for word in ("--option", "=".join(item))]
    where = ["--state", str(state), "--master", master, "--url", url]
    command = [sys.executable, "-m", "fanlog", "pipeline", "run", name, *where, *given]
    return PipelineProgram(state.parent, command, SPARK_LOCAL_IP="127.0.0.1")


def run_pipeline(
    name: str, url: str, state: Path, *, master: str = "local[2]", **options: str
) -> str:
    """Runs a pipeline to its good end; what it said. A failure tells what Spark said, too."""
    with pipeline_program(name, url, state, master=master, **options) as program:
        try:
            return program.end_well(RUN_SECONDS_MAX)
        except AssertionError as failure:
            log = state / "run.log"
            told = log.read_text(errors="replace") if log.exists() else "there is none"
            message = f"{failure}\nThe end of run.log:\n{told[-LOG_CHARACTERS:]}"
            raise AssertionError(message) from None
