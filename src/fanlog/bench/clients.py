"""Python client to Python client: one process publishes, another receives, message by message.

Law: the clock runs from the first publish to the last receive. Three processes share the machine's
cores, so nothing is pinned here; every client runs on uvloop.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

import uvloop

from fanlog.bench.client_roles import PUBLISHERS, SUBSCRIBERS
from fanlog.bench.crew import PeerPipe
from fanlog.bench.results import ClientsReport, ClientsRow, LeftOut
from fanlog.bench.runner import (
    BenchProgress,
    RunOptions,
    environment_of,
    pick_run,
    silent,
    split_available,
)
from fanlog.bench.systems import BenchError, SystemKind, SystemSpec, started
from fanlog.bench.wires import make_payload

READY = "ready"
RUN_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
CLIENT_NAMES: dict[SystemKind, str] = {
    "fanlog": "fanlog.connect",
    "redis": "redis-py asyncio",
    "nats": "nats-py",
}


ClientRole: TypeAlias = "Callable[[SystemKind, int, ClientsOptions, PeerPipe], None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsOptions(RunOptions):
    """What to measure."""

    systems: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")
    messages: int = 1_000_000
    payload_bytes: int = 128


def run_clients(options: ClientsOptions, progress: BenchProgress = silent) -> ClientsReport:
    """Measure every system's Python client."""
    available, left_out = split_available(options.systems)
    for kind in list(available):
        if not client_installed(kind):
            available.remove(kind)
            left_out.append(LeftOut(kind, f"{CLIENT_NAMES[kind]} is not installed."))
    environment = environment_of(options, available, pinned=False)
    turns = available * options.repeat
    runs: dict[SystemKind, list[float]] = {kind: [] for kind in available}
    for done, kind in enumerate(turns):
        progress(done, len(turns), f"{CLIENT_NAMES[kind]}, {options.messages} messages")
        with started(SystemSpec(kind), None, options.directory) as system:
            runs[kind].append(measure_pair(kind, system.port, options))
    progress(len(turns), len(turns), "done")
    rows = [
        ClientsRow(
            system=kind,
            client=CLIENT_NAMES[kind],
            messages=options.messages,
            payload=options.payload_bytes,
            messages_per_s=round(runs[kind][pick_run(runs[kind], options.pick)], 1),
            runs=[round(run, 1) for run in runs[kind]],
        )
        for kind in available
    ]
    return ClientsReport(rows=rows, left_out=left_out, environment=environment)


def client_installed(kind: SystemKind) -> bool:
    """Whether the Python package of this client can be imported."""
    package = {"fanlog": "fanlog", "redis": "redis", "nats": "nats"}[kind]
    return importlib.util.find_spec(package) is not None


def measure_pair(kind: SystemKind, port: int, options: ClientsOptions) -> float:
    """Messages per second between a publishing and a receiving process."""
    with peer(receive, kind, port, options) as subscriber:
        expect_said(subscriber, READY)
        with peer(publish, kind, port, options) as publisher:
            began = said(publisher)
            ended = said(subscriber)
    if not isinstance(began, float) or not isinstance(ended, float):
        raise BenchError(f"the clients answered {began!r} and {ended!r} instead of two times")
    return options.messages / (ended - began)


@contextlib.contextmanager
def peer(
    role: ClientRole, kind: SystemKind, port: int, options: ClientsOptions
) -> Generator[PeerPipe]:
    """Runs a role in its own process, and yields our end of its pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=role, args=(kind, port, options, theirs))
    process.start()
    # Only the child holds the other end now: when it dies, our end says so.
    theirs.close()
    try:
        yield ours
    finally:
        process.join(END_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()


def publish(kind: SystemKind, port: int, options: ClientsOptions, parent: PeerPipe) -> None:
    """The publishing process. It reports when it began."""
    payload = make_payload(options.payload_bytes)
    parent.send(uvloop.run(PUBLISHERS[kind](port, options.messages, payload)))


def receive(kind: SystemKind, port: int, options: ClientsOptions, parent: PeerPipe) -> None:
    """The receiving process. It reports when it is ready, and when it has everything."""

    def ready() -> None:
        parent.send(READY)

    parent.send(uvloop.run(SUBSCRIBERS[kind](port, options.messages, ready)))


def said(conn: PeerPipe) -> float | str:
    """The next message of a process."""
    try:
        if conn.poll(RUN_TIMEOUT_S):
            return conn.recv()
    except EOFError:
        raise BenchError("a client's process ended without a result; see its error above") from None
    raise BenchError(f"a client's process said nothing for {RUN_TIMEOUT_S:.0f} s")


def expect_said(conn: PeerPipe, wanted: str) -> None:
    """Checks that a process sends this next."""
    got = said(conn)
    if got != wanted:
        raise BenchError(f"a client's process said {got!r} instead of {wanted!r}")
