"""The command line as a person runs it: real processes, a real broker, each stopped by its own
pid. Nothing of this process's FANLOG_* variables reaches them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.cli import main
from tests.cli.forked import Commands

SOURCES = str(Path(fanlog.__file__).parents[1])
COMMAND = (sys.executable, "-m", "fanlog")
# Nothing here takes so long; a busy machine may take long to start a process.
PATIENCE_SECONDS = 60.0
TEST_SECONDS_MAX = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some tests start ten processes, one after the other."""
    for item in items:
        if "tests/cli/" in str(item.path) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


def environment(**given: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FANLOG_")}
    paths = [SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**ours, "PYTHONPATH": os.pathsep.join(paths), **given}


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def sentence(self) -> str:
        """The one line on stderr that an error is."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")


class Serving:
    """A `fanlog serve` on a free port."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        command = [*COMMAND, "serve", "--port", "0", *arguments]
        if "--redis-port" not in arguments:
            command += ["--redis-port", "0"]
        if "--http-port" not in arguments:
            command += ["--http-port", "0"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.banner = [self.process.stdout.readline().rstrip("\n") for _ in range(7)]
        found = re.search(r"fanlogs?://\S+", self.banner[0])
        assert found is not None, self.banner
        self.url = found[0]

    def stop(self, number: int = signal.SIGTERM) -> Ended:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> Ended:
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return Ended(self.process.returncode, out, err)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Run = Callable[..., Ended]


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    started = Commands()
    yield started
    started.close()


@pytest.fixture
def run(tmp_path: Path, commands: Commands) -> Run:
    """Runs a command to its end, in an empty folder."""

    def run(*arguments: str, stdin: str | bytes = "", **variables: str) -> Ended:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        asked = environment(**variables)
        code, out, err = commands.run(list(arguments), tmp_path, asked, given)
        return Ended(code, out.decode(), err.decode())

    return run


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Starts brokers, and ends what a test left running."""
    started: list[Serving] = []

    def start(*arguments: str, **variables: str) -> Serving:
        started.append(Serving(tmp_path, *arguments, **variables))
        return started[-1]

    yield start
    for serving in started:
        serving.kill()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A broker that tests share; each uses topics of its own."""
    serving = Serving(tmp_path_factory.mktemp("shared"))
    yield serving
    ended = serving.stop()
    assert ended.code == 0, ended.err


@pytest.fixture
def client(broker: Serving) -> Iterator[fanlog.sync.Client]:
    """A connection to the shared broker, for what a test needs to be there."""
    with fanlog.sync.connect(broker.url) as connected:
        yield connected


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: quick, for what ends before anything is asked of anyone."""

    def typed(*arguments: str) -> Ended:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return typed


@pytest.fixture
def ask(run: Run, broker: Serving) -> Run:
    """Runs a client command against the shared broker."""

    def ask(*arguments: str, stdin: str | bytes = "", **variables: str) -> Ended:
        return run(*arguments, stdin=stdin, FANLOG_URL=broker.url, **variables)

    return ask
