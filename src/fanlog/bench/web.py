"""Fanlog's web listener beside web servers that send to each client by itself.

Law: as in the other benchmarks the systems take turns within one run, on the same core, and every
count is verified. A publisher of Fanlog's uses the native protocol, as another service would; that
of the others is one more connection to them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fanlog.bench.latency import percentile_us
from fanlog.bench.load import FanoutCounts, Receive, connected, measure_latency
from fanlog.bench.results import FanoutReport, FanoutRow, LatencyReport, LatencyRow, LeftOut
from fanlog.bench.runner import (
    BenchProgress,
    TimedOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
)
from fanlog.bench.systems import (
    SystemSpec,
    affinity,
    choose_cores,
    free_port,
    started,
    stop,
    wait_until_listening,
)
from fanlog.bench.web_load import measure_web_fanout, measure_web_latency, web_connected
from fanlog.bench.wires import fanout_wire, make_payload
from fanlog.bench.wires.web import FanlogWeb, PerClientWeb, WebKind, WebWire

WebSystem = Literal["fanlog", "aiohttp", "websockets", "socketio"]
OTHERS: tuple[WebSystem, ...] = ("aiohttp", "websockets", "socketio")
PACKAGES = {"aiohttp": "aiohttp", "websockets": "websockets", "socketio": "python-socketio"}
_WINDOW_MIN = 64
# No pings during a measurement, and room for thousands of new connections.
CONFIG = "[web]\nping_seconds = 3600\naccepts_per_second_max = 100000\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFanoutOptions(TimedOptions):
    """What to measure; the others have no batches."""

    listener: WebKind = "websocket"
    systems: tuple[WebSystem, ...] = ("fanlog", *OTHERS)
    fanlog_batches: tuple[int, ...] = (64, 1)
    subscribers: tuple[int, ...] = (1, 10, 100, 1000)
    payload_bytes: int = 128
    window_messages: int = 8192
    receive: Receive = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLatencyOptions(TimedOptions):
    """What to measure. Fanlog's native listener is always there, to compare with."""

    listener: WebKind = "websocket"
    systems: tuple[WebSystem, ...] = ("fanlog", *OTHERS)
    subscribers: tuple[int, ...] = (1, 10, 100)
    payload_bytes: int = 128
    samples_max: int = 20_000


class WebCell(NamedTuple):
    """One system at one number of subscribers."""

    system: WebSystem
    batch: int
    subscribers: int
    native: bool = False

    @property
    def label(self) -> str:
        return f"{self.system}, {self.batch} a batch, {self.subscribers} subscribers"


class _Running(NamedTuple):
    """Where to publish, and where to subscribe."""

    ports: tuple[int, int]


def split_web(
    systems: tuple[WebSystem, ...], listener: WebKind
) -> tuple[list[WebSystem], list[LeftOut]]:
    """The servers that can be started, and the reasons why others are left out."""
    available: list[WebSystem] = []
    left_out: list[LeftOut] = []
    for system in dict.fromkeys(systems):
        if system != "fanlog" and importlib.util.find_spec(system) is None:
            reason = f"{system} was not found: run `pip install {PACKAGES[system]}`."
            left_out.append(LeftOut(system, reason))
        elif listener == "sse" and system in ("websockets", "socketio"):
            left_out.append(LeftOut(system, f"{system} has no server-sent events."))
        else:
            available.append(system)
    return available, left_out


@contextlib.contextmanager
def web_started(
    system: WebSystem, listener: WebKind, cores: frozenset[int] | None, parent: Path | None
) -> Generator[_Running]:
    """Start a server, yield where it listens, and stop it."""
    if system == "fanlog":
        spec = SystemSpec("fanlog", listener=listener, config=CONFIG, native_port=free_port())
        with started(spec, cores, parent) as running:
            yield _Running((spec.native_port, running.port))
        return
    port = free_port()
    command = [sys.executable, "-m", "fanlog.bench.web_servers", system, str(port)]
    with tempfile.TemporaryDirectory(prefix="fanlog-bench-", dir=parent) as name:
        output = Path(name) / "output.txt"
        with output.open("wb") as file, affinity(cores):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            wait_until_listening(process, port, output)
            yield _Running((port, port))
        finally:
            stop(process)


def _wire(cell: WebCell, listener: WebKind, payload_bytes: int) -> WebWire:
    payload = make_payload(payload_bytes)
    if cell.system == "fanlog":
        return FanlogWeb(payload, cell.batch, listener)
    return PerClientWeb(payload, cell.system, listener)


def run_web_fanout(options: WebFanoutOptions, progress: BenchProgress = silent) -> FanoutReport:
    """Measure every cell and report a row for each."""
    available, left_out = split_web(options.systems, options.listener)
    cores = choose_cores(options.pin)
    environment = environment_of(options, ["fanlog"], pinned=cores.pinned)
    cells = [
        WebCell(system, batch, subscribers)
        for subscribers in options.subscribers
        for system in available
        for batch in (options.fanlog_batches if system == "fanlog" else (1,))
    ]
    counts: dict[WebCell, list[FanoutCounts]] = {cell: [] for cell in cells}
    turns = [
        cell
        for subscribers in options.subscribers
        for cell in [c for c in cells if c.subscribers == subscribers] * options.repeat
    ]
    with load_process(cores.load) as load:
        for done, cell in enumerate(turns):
            progress(done, len(turns), cell.label)
            with web_started(
                cell.system, options.listener, cores.system, options.directory
            ) as running:
                counts[cell].append(load.call(generate_fanout, cell, options, running.ports))
    progress(len(turns), len(turns), "done")
    rows = [_fanout_row(cell, counts[cell], options) for cell in cells]
    return FanoutReport(rows=rows, left_out=left_out, environment=environment)


def generate_fanout(
    cell: WebCell, options: WebFanoutOptions, ports: tuple[int, int]
) -> FanoutCounts:
    """What the load process does for one cell."""
    wire = _wire(cell, options.listener, options.payload_bytes)
    window = options.window_messages
    if cell.system != "fanlog":
        # Enough to keep it busy. It sends to one client after the other: with more it would send
        # long after the measurement.
        window = max(_WINDOW_MIN, window // cell.subscribers)
    with web_connected(wire, ports, cell.subscribers, window, options.receive) as load:
        return measure_web_fanout(load, options.warmup_s, options.run_s)


def _fanout_row(cell: WebCell, counts: list[FanoutCounts], options: WebFanoutOptions) -> FanoutRow:
    runs = [count.delivered_per_s for count in counts]
    shown = counts[pick_run(runs, options.pick)]
    return FanoutRow(
        system=cell.system,
        batch=cell.batch,
        subscribers=cell.subscribers,
        payload=options.payload_bytes,
        receive=options.receive,
        listener=options.listener,
        published_per_s=round(shown.published_per_s, 1),
        delivered_per_s=round(shown.delivered_per_s, 1),
        runs=[round(run, 1) for run in runs],
    )


def run_web_latency(options: WebLatencyOptions, progress: BenchProgress = silent) -> LatencyReport:
    """Measure every system, and Fanlog's native listener, at every number of subscribers."""
    available, left_out = split_web(options.systems, options.listener)
    cores = choose_cores(options.pin)
    environment = environment_of(options, ["fanlog"], pinned=cores.pinned)
    cells = [
        cell
        for subscribers in options.subscribers
        for cell in (
            WebCell("fanlog", 1, subscribers, native=True),
            *(WebCell(system, 1, subscribers) for system in available),
        )
    ]
    runs: dict[WebCell, list[LatencyRow]] = {cell: [] for cell in cells}
    turns = [
        cell
        for subscribers in options.subscribers
        for cell in [c for c in cells if c.subscribers == subscribers] * options.repeat
    ]
    with load_process(cores.load) as load:
        for done, cell in enumerate(turns):
            progress(done, len(turns), cell.label)
            with web_started(
                cell.system, options.listener, cores.system, options.directory
            ) as running:
                samples = load.call(generate_latency, cell, options, running.ports)
            runs[cell].append(_latency_row(cell, samples, options))
    progress(len(turns), len(turns), "done")
    rows = [
        runs[cell][pick_run([-run.p50_us for run in runs[cell]], options.pick)] for cell in cells
    ]
    return LatencyReport(rows=rows, left_out=left_out, environment=environment)


def generate_latency(
    cell: WebCell, options: WebLatencyOptions, ports: tuple[int, int]
) -> list[int]:
    """What the load process does for one cell."""
    if cell.native:
        wire = fanout_wire("fanlog", options.payload_bytes, 1)
        with connected(wire, ports[0], cell.subscribers, 1) as load:
            return measure_latency(load, options.warmup_s, options.run_s, options.samples_max)
    web_wire = _wire(cell, options.listener, options.payload_bytes)
    with web_connected(web_wire, ports, cell.subscribers, 1, "discard") as load:
        return measure_web_latency(load, options.warmup_s, options.run_s, options.samples_max)


def _latency_row(cell: WebCell, sorted_ns: list[int], options: WebLatencyOptions) -> LatencyRow:
    return LatencyRow(
        system=cell.system,
        subscribers=cell.subscribers,
        payload=options.payload_bytes,
        samples=len(sorted_ns),
        p50_us=percentile_us(sorted_ns, 0.5),
        p99_us=percentile_us(sorted_ns, 0.99),
        p999_us=percentile_us(sorted_ns, 0.999),
        listener="native" if cell.native else options.listener,
    )
