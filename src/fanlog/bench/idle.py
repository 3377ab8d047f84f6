"""Idle connections: what each costs a broker that has nothing to send to it.

Law: every connection is subscribed to a topic, and in the end a message reaches all of them.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

from fanlog.bench.environment import raise_open_files_limit
from fanlog.bench.results import IdleReport, IdleRow
from fanlog.bench.runner import BenchProgress, RunOptions, environment_of, load_process, silent
from fanlog.bench.systems import (
    BenchError,
    SystemSpec,
    choose_cores,
    free_port,
    resident_bytes,
    started,
)
from fanlog.bench.web import CONFIG
from fanlog.bench.wires.base import SETUP_TIMEOUT_S, connect
from fanlog.bench.wires.fanlog import open_topic
from fanlog.bench.wires.web import WebKind, subscribe
from fanlog.format.batch import encode_batch

# Connections opened before the count, to leave out what a listener allocates once.
_WARM = 100
_SETTLE_S = 1.0
# Fewer than the kernel's queue of connections to accept.
_AT_A_TIME = 100
# The most sockets of one process, here and in the broker, beside its other files.
CONNECTIONS_MAX = 19_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOptions(RunOptions):
    """What to measure."""

    listener: WebKind = "websocket"
    connections: tuple[int, ...] = (1000, 10_000)

    def __post_init__(self) -> None:
        if not self.connections or not _WARM < max(self.connections) <= CONNECTIONS_MAX:
            raise BenchError(
                f"Choose more than {_WARM} and at most {CONNECTIONS_MAX} connections: one process "
                "has no more open files."
            )


def run_idle(options: IdleOptions, progress: BenchProgress = silent) -> IdleReport:
    """Measure each number of connections with a broker of its own."""
    cores = choose_cores(options.pin)
    environment = environment_of(options, ["fanlog"], pinned=cores.pinned)
    rows: list[IdleRow] = []
    with load_process(cores.load) as load:
        for done, connections in enumerate(options.connections):
            progress(done, len(options.connections), f"{connections} connections")
            spec = SystemSpec(
                "fanlog", listener=options.listener, config=CONFIG, native_port=free_port()
            )
            raise_open_files_limit(CONNECTIONS_MAX + 1000)
            with started(spec, cores.system, options.directory) as system:
                ports = (spec.native_port, system.port)
                rows.append(load.call(generate, connections, options.listener, ports, system.pid))
    progress(len(rows), len(rows), "done")
    return IdleReport(rows=rows, left_out=[], environment=environment)


def generate(connections: int, listener: WebKind, ports: tuple[int, int], pid: int) -> IdleRow:
    """What the load process does for one row."""
    raise_open_files_limit(CONNECTIONS_MAX + 1000)
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(connect(ports[0]))
        number = open_topic(publisher, "memory", 1)

        def join(count: int) -> list[socket.socket]:
            joined = [stack.enter_context(connect(ports[1])) for _ in range(count)]
            subscribe(joined, listener)
            return joined

        readers = join(_WARM)
        time.sleep(_SETTLE_S)
        before = resident_bytes(pid)
        began = time.perf_counter()
        while len(readers) < connections:
            readers += join(min(_AT_A_TIME, connections - len(readers)))
        setup_s = time.perf_counter() - began
        time.sleep(_SETTLE_S)
        grown = resident_bytes(pid) - before
        began = time.perf_counter()
        publisher.sendall(encode_batch([b"x" * 128], topic=number))
        for sock in readers:
            sock.settimeout(SETUP_TIMEOUT_S)
            if b"xxxx" not in sock.recv(1 << 16):
                raise BenchError("an idle connection did not get the message")
        reached_ms = (time.perf_counter() - began) * 1000
    return IdleRow(
        listener=listener,
        connections=connections,
        setup_s=round(setup_s, 2),
        resident_bytes=grown,
        bytes_per_connection=round(grown / (connections - _WARM), 1),
        reached_ms=round(reached_ms, 1),
    )
