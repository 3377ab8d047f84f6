"""Runs of pipelines: a process each, with its state in a folder of its own.

| in the folder  | what it is                                             |
| -------------- | ------------------------------------------------------ |
| `run.json`     | the last run: with which options, since when, its end  |
| `run.log`      | what it said                                           |
| `project/`     | a declarative project as it was run                    |
| everything else | the pipeline's own: checkpoints, tables, plans        |
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fanlog.errors import ConfigError
from fanlog.spark.lake import write_whole
from fanlog.spark.pipelines import MASTER, SPEC, STATE, Pipeline
from fanlog.spark.sessions import SPARK_MISSING, check_java

RECORD = "run.json"
LOG = "run.log"
STOP_SECONDS_MAX = 30.0
_LAST_BYTES = 1 << 14
PIPELINES_MISSING = (
    "Declarative pipelines need more of Spark: run pip install 'pyspark[pipelines]'."
)
# A sentence of ours in the midst of Spark's pages.
_OURS = re.compile(r"fanlog\.errors\.\w+: (?P<said>.+)")
_EVENT = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (?P<said>.+)")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a state folder."""

    pipeline: str
    options: dict[str, str]
    pid: int
    started: dt.datetime
    ended: dt.datetime | None = None
    exit_code: int | None = None

    @property
    def state(self) -> str:
        if self.exit_code is not None:
            return "done" if self.exit_code == 0 else "failed"
        return "running" if _alive(self.pid) else "killed"


class Running:
    """A pipeline that was started here."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: Mapping[str, str],
        state: Path,
        master: str,
        environment: Mapping[str, str],
    ) -> None:
        check_ready(pipeline)
        _check_idle(state)
        self.state = state.absolute()
        self.state.mkdir(parents=True, exist_ok=True)
        self._log = self.state / LOG
        command = _command(pipeline, options, self.state, master)
        # Python that Spark starts must be this one, which has Fanlog.
        env = {"PYSPARK_PYTHON": sys.executable, **environment}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.state, env=env, start_new_session=True
            )
        self.run = Run(
            pipeline=pipeline.name,
            options=dict(options),
            pid=self._process.pid,
            started=dt.datetime.now(dt.UTC),
        )
        self._save()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it has ended."""
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        self.run = msgspec.structs.replace(self.run, ended=dt.datetime.now(dt.UTC), exit_code=code)
        self._save()
        return True

    def stop(self) -> None:
        """Ends it and all that it has started, gently first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if self.wait(STOP_SECONDS_MAX):
                return

    def _save(self) -> None:
        write_whole(self.state / RECORD, msgspec.json.encode(self.run))

    def last_event(self) -> str:
        """What the engine said last about the run, if it says such things."""
        for line in reversed(_lines(self._log, _LAST_BYTES)):
            found = _EVENT.match(line)
            if found:
                return found["said"]
        return ""

    def why(self) -> str:
        """The sentence that explains a failure, or the end of what was said."""
        lines = _lines(self._log)
        for line in lines:
            found = _OURS.search(line)
            if found:
                return found["said"].strip()
        return "\n".join(lines[-15:])


def check_ready(pipeline: Pipeline) -> None:
    """That what the pipeline needs is installed."""
    check_java()
    if not _installed("pyspark"):
        raise ConfigError(SPARK_MISSING)
    if pipeline.declarative and not all(map(_installed, ("yaml", "grpc", "pandas"))):
        raise ConfigError(PIPELINES_MISSING)


def _check_idle(state: Path) -> None:
    """That nobody works in the folder: a run goes on if only its display was killed."""
    before = last_run(state)
    if before is not None and before.state == "running":
        raise ConfigError(
            f"{before.pipeline} is still running in {state} (process {before.pid}): wait for it, "
            "stop it, or give another --state."
        )


def last_run(state: Path) -> Run | None:
    """The last run of a state folder, if it is one."""
    try:
        return msgspec.json.decode((state / RECORD).read_bytes(), type=Run)
    except FileNotFoundError:
        return None


def _command(pipeline: Pipeline, options: Mapping[str, str], state: Path, master: str) -> list[str]:
    if pipeline.declarative:
        spec = _project(pipeline, options, state)
        module = "fanlog.spark.pipelines.declarative"
        return [sys.executable, "-m", module, str(spec), str(state), master]
    given = {**options, STATE: str(state), MASTER: master}
    return [sys.executable, str(pipeline.program), *(f"{k}={v}" for k, v in given.items())]


def _project(pipeline: Pipeline, options: Mapping[str, str], state: Path) -> Path:
    """A copy of the project whose spec has these options and this state."""
    import yaml  # noqa: PLC0415 - it comes with pyspark[pipelines]

    project = state / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(pipeline.folder, project, ignore=shutil.ignore_patterns("__pycache__"))
    path = project / SPEC
    spec: dict[str, Any] = yaml.safe_load(path.read_text())
    spec["storage"] = (state / "checkpoints").as_uri()
    spec["configuration"] = {
        **spec.get("configuration", {}),
        **{f"fanlog.{name}": value for name, value in options.items()},
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(spec)))  # which is YAML, too
    return path


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _lines(path: Path, last_bytes: int = sys.maxsize) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - last_bytes))
        return file.read().decode(errors="replace").splitlines()
