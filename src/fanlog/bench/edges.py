"""Edges: what a message costs the broker with all its readers connected to it, and with the same
readers spread over edges.

Law: both cases have the same readers, the same messages and a broker of their own. A message is
published when all readers have the one before, and every reader must get every byte. What is
measured is the time that the broker's process was on a core: how long edges and readers take, on
however few cores, does not change it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from fanlog.bench.load import FanoutLoad
from fanlog.bench.results import EdgesReport, EdgesRow
from fanlog.bench.runner import (
    BenchProgress,
    LoadProcess,
    RunOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
)
from fanlog.bench.systems import (
    HOST,
    BenchError,
    Cores,
    SystemSpec,
    affinity,
    choose_cores,
    free_port,
    on_core_ns,
    started,
    stop,
    wait_until_listening,
)
from fanlog.bench.wires import fanout_wire

WARMUP_MESSAGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgesOptions(RunOptions):
    """The number of readers, and of edges for them in the second case."""

    readers: int = 1000
    edges: int = 4
    messages: int = 500
    payload_bytes: int = 128

    def __post_init__(self) -> None:
        if self.readers % self.edges:
            raise BenchError("Every edge gets as many readers: choose a multiple of --edges.")


@dataclass(frozen=True, slots=True)
class EdgesCounts:
    """The result of one run."""

    broker_us: float
    messages_per_s: float


def run_edges(options: EdgesOptions, progress: BenchProgress = silent) -> EdgesReport:
    """Measure both cases, in turn.

    >>> run_edges(EdgesOptions(readers=100, edges=2, messages=50))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    cases = (0, options.edges)
    turns = list(cases) * options.repeat
    counts: dict[int, list[EdgesCounts]] = {edges: [] for edges in cases}
    with load_process(cores.load) as load:
        for done, edges in enumerate(turns):
            progress(done, len(turns), f"{options.readers} readers, {edges} edges")
            counts[edges].append(_measure(edges, options, cores, load))
    progress(len(turns), len(turns), "done")
    rows = [_row(edges, counts[edges], options) for edges in cases]
    return EdgesReport(rows=rows, left_out=[], environment=environment)


def _measure(edges: int, options: EdgesOptions, cores: Cores, load: LoadProcess) -> EdgesCounts:
    spec = SystemSpec("fanlog")
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(started(spec, cores.system, options.directory))
        ports = [stack.enter_context(_edge(system.port, cores, options)) for _ in range(edges)] or [
            system.port
        ]
        each = options.readers // len(ports)
        reader_ports = [port for port in ports for _ in range(each)]
        return load.call(generate, options, system.port, system.pid, reader_ports)


@contextlib.contextmanager
def _edge(upstream: int, cores: Cores, options: EdgesOptions) -> Generator[int]:
    """Starts an edge of the broker at a port, on the load's core. Yields the edge's port."""
    port = free_port()
    command = [sys.executable, "-m", "fanlog", "edge", "--upstream", f"fanlog://{HOST}:{upstream}"]
    command += ["--host", HOST, "--port", str(port), "--redis-port", "-1", "--http-port", "-1"]
    with tempfile.TemporaryDirectory(prefix="fanlog-bench-", dir=options.directory) as name:
        printed = Path(name) / "output.txt"
        with printed.open("wb") as output, affinity(cores.load):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_until_listening(process, port, printed)
            yield port
        finally:
            stop(process)


def generate(options: EdgesOptions, port: int, broker: int, reader_ports: list[int]) -> EdgesCounts:
    """What the load process does for one case."""
    wire = fanout_wire("fanlog", options.payload_bytes, 1, "native")
    load = FanoutLoad(wire, port, options.readers, 1, "copy", reader_ports=reader_ports)
    try:
        for _ in range(WARMUP_MESSAGES):
            load.publish_one_ns(spin=False)
        before_ns, began = on_core_ns(broker), time.perf_counter()
        for _ in range(options.messages):
            load.publish_one_ns(spin=False)
        took_s = time.perf_counter() - began
        used_ns = on_core_ns(broker) - before_ns
        load.drain()
    finally:
        load.close()
    return EdgesCounts(used_ns / 1000 / options.messages, options.messages / took_s)


def _row(edges: int, counts: list[EdgesCounts], options: EdgesOptions) -> EdgesRow:
    runs = [count.broker_us for count in counts]
    shown = counts[pick_run(runs, options.pick)]
    return EdgesRow(
        edges=edges,
        readers=options.readers,
        messages=options.messages,
        payload=options.payload_bytes,
        broker_us=round(shown.broker_us, 2),
        messages_per_s=round(shown.messages_per_s, 1),
        runs=[round(run, 2) for run in runs],
    )
