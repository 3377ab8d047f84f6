"""Runs of pipelines: a process each, with its state in a folder of its own.

| in the folder  | what it is                                             |
| -------------- | ------------------------------------------------------ |
| `run.json`     | the last run: with which options, since when, its end  |
| `run.lock`     | which the run holds as long as it lives                |
| `run.log`      | what it said                                           |
| `run.end`      | its exit code, from itself: nobody else may be there   |
| `decided.json` | what it reads and writes, which stays the same         |
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
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from fanlog.errors import ConfigError
from fanlog.log import posix
from fanlog.log.files import replace_file
from fanlog.spark.environment import check_java
from fanlog.spark.pipelines import MASTER, SPEC, STATE, Pipeline, check_same, spark_said
from fanlog.spark.pipelines.ended import END, recorded
from fanlog.spark.sessions import SPARK_MISSING, worker_environment

RECORD = "run.json"
LOG = "run.log"
LOCK = "run.lock"
DECLARATIVE = Path(__file__).with_name("declarative.py")
# The time to end after each signal, the gentlest first: after the first one, Spark informs its
# servers. Windows has no SIGKILL: there SIGTERM ends a process at once.
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
STOPS = ((signal.SIGINT, 10.0), (signal.SIGTERM, 10.0), (_KILL, 10.0))
_STOP_POLL_SECONDS = 0.05
_LAST_BYTES = 1 << 14
_LAST_LINES = 15
PIPELINES_MISSING = (
    "Declarative pipelines need an extra of Spark: run pip install 'pyspark[pipelines]'."
)
# A sentence of Fanlog among Spark's output.
_OURS = re.compile(r"fanlog\.errors\.\w+: (?P<said>.+)")
_EVENT = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (?P<said>.+)")


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a state folder."""

    pipeline: str
    options: dict[str, str]
    pid: int
    started: dt.datetime
    ended: dt.datetime | None = None
    exit_code: int | None = None
    stopped: bool = False


class RunningPipeline:
    """A pipeline that was started here."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: Mapping[str, str],
        state: Path,
        master: str,
        environment: Mapping[str, str],
    ) -> None:
        check_ready(pipeline, state)
        check_same(pipeline, options, state)
        self.state = state.absolute()
        self.state.mkdir(parents=True, exist_ok=True)
        self._log = self.state / LOG
        # Spark must start this Python, which has Fanlog.
        env = {**environment, **worker_environment(master, environment)}
        with _locked(self.state) as lock, self._log.open("wb") as log, _heard_interrupts():
            (self.state / END).unlink(missing_ok=True)
            self._process = subprocess.Popen(
                _command(pipeline, options, self.state, master),
                stdout=log,
                stderr=log,
                cwd=self.state,
                env=env,
                # A process group: it can be ended as one, and no Ctrl-C reaches it.
                start_new_session=True,
                # It holds the lock from now on. The lock ends with it, however it ends.
                pass_fds=(lock.fileno(),),
            )
        self.run = LastRun(
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

    def stop(self, stops: Iterable[tuple[signal.Signals, float]] = STOPS) -> None:
        """Ends it and all its children, gently first."""
        self.run = msgspec.structs.replace(self.run, stopped=True)
        for number, patience_seconds in stops:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            give_up_at = time.monotonic() + patience_seconds
            while time.monotonic() < give_up_at:
                if self.wait(_STOP_POLL_SECONDS) and self._all_gone():
                    return

    def _all_gone(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(_STOP_POLL_SECONDS)
        return False

    def _save(self) -> None:
        replace_file(str(self.state / RECORD), msgspec.json.encode(self.run), durable=True)

    def last_event(self) -> str:
        """The engine's last statement about the run, if any."""
        for line in reversed(_lines(self._log, _LAST_BYTES)):
            found = _EVENT.match(line)
            if found:
                return found["said"]
        return ""

    def why(self) -> str:
        """The sentence that explains a failure."""
        return why_failed(self._log)


def why_failed(log: Path) -> str:
    """The sentence of a log that explains a failure: Fanlog's, or Spark's, or the end of the
    log."""
    lines = _lines(log)
    for line in lines:
        found = _OURS.search(line)
        if found:
            return found["said"].strip()
    more = f"The pipeline's full output is in {log}."
    for line in reversed(lines):
        said = spark_said(line)
        if said:
            return f"Spark says: {said}. {more}"
    return "\n".join((*lines[-_LAST_LINES:], more))


def check_ready(pipeline: Pipeline, state: Path) -> None:
    """Checks that the pipeline's needs are installed, and that its state folder can be used."""
    check_java()
    # The engine escapes such characters as in an address, and then uses that as the path.
    if pipeline.declarative and re.search(r"[\s%#?]", str(state.absolute())):
        raise ConfigError(
            f"Declarative pipelines can't keep their state in {str(state)!r}: name a folder "
            "without spaces, %, # and ? with --state."
        )
    if not _installed("pyspark"):
        raise ConfigError(SPARK_MISSING)
    if pipeline.declarative and not all(map(_installed, ("yaml", "grpc", "pandas"))):
        raise ConfigError(PIPELINES_MISSING)


@contextlib.contextmanager
def _heard_interrupts() -> Generator[None]:
    """Processes started here must receive SIGINT, which stops them gently. A shell may have made
    this process ignore it, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _locked(state: Path) -> IO[bytes]:
    """The lock of an unused folder. A run continues if only its display was killed."""
    lock = (state / LOCK).open("ab")
    if not _try_lock(lock):
        lock.close()
        before = last_run(state)
        what = "A pipeline" if before is None else f"{before.pipeline} (process {before.pid})"
        raise ConfigError(
            f"{what} is still running in {state}: wait for it, stop it, or give another --state."
        )
    return lock


def _try_lock(lock: IO[bytes], *, shared: bool = False) -> bool:
    """Tried a few times: a status check also holds the lock for a moment."""
    for _ in range(3):
        try:
            posix.lock_file(lock.fileno(), shared=shared)
        except BlockingIOError:
            time.sleep(_STOP_POLL_SECONDS)
        else:
            return True
    return False


def last_run(state: Path) -> LastRun | None:
    """The last run of a state folder, if it is one."""
    try:
        run = msgspec.json.decode((state / RECORD).read_bytes(), type=LastRun)
    except FileNotFoundError:
        return None
    return run if run.exit_code is not None else _with_own_end(run, state / END)


def _with_own_end(run: LastRun, end: Path) -> LastRun:
    """A run that lost its display has recorded its own end."""
    try:
        code = int(end.read_bytes())
        ended = dt.datetime.fromtimestamp(end.stat().st_mtime, dt.UTC)
    except FileNotFoundError:
        return run
    stopped = run.stopped or code == -signal.SIGINT
    return msgspec.structs.replace(run, ended=ended, exit_code=code, stopped=stopped)


def condition(state: Path, run: LastRun) -> str:
    """The state of a folder's last run: running, done, stopped, failed or killed."""
    if run.exit_code is not None:
        ending = "stopped" if run.stopped else "failed"
        return ending if run.exit_code else "done"
    try:
        with (state / LOCK).open("rb") as lock:
            return "killed" if _try_lock(lock, shared=True) else "running"
    except FileNotFoundError:
        return "killed"


def _command(pipeline: Pipeline, options: Mapping[str, str], state: Path, master: str) -> list[str]:
    if pipeline.declarative:
        spec = _project(pipeline, options, state)
        return recorded(state, DECLARATIVE, str(spec), str(state), master)
    given = {**options, STATE: str(state), MASTER: master}
    return recorded(state, pipeline.program, *(f"{k}={v}" for k, v in given.items()))


def _project(pipeline: Pipeline, options: Mapping[str, str], state: Path) -> Path:
    """A copy of the project, with these options and this state in its spec."""
    import yaml  # noqa: PLC0415 - it comes with pyspark[pipelines]

    project = state / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(pipeline.folder, project, ignore=shutil.ignore_patterns("__pycache__"))
    path = project / SPEC
    spec: dict[str, Any] = yaml.safe_load(path.read_text())
    spec["storage"] = f"file://{state / 'checkpoints'}"
    spec["configuration"] = {
        **spec.get("configuration", {}),
        **{f"fanlog.{name}": value for name, value in options.items()},
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(spec)))  # which is YAML, too
    return path


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _lines(path: Path, last_bytes: int = sys.maxsize) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - last_bytes))
        return file.read().decode(errors="replace").splitlines()
