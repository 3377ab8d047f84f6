"""All cores: a broker with and without workers, by fan-out and by Redis's own benchmark.

Law: nothing is pinned. The load shares the cores with what it measures, so deliveries a second say
as much about the load. What each process of the broker was on a core, by the scheduler's count,
does not depend on that.
"""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanlog.bench.load import connected, measure_fanout
from fanlog.bench.results import CoresFanoutRow, CoresPublishRow, CoresReport, LeftOut
from fanlog.bench.runner import (
    BenchProgress,
    LoadProcess,
    TimedOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
    split_available,
)
from fanlog.bench.systems import (
    HOST,
    START_POLL_S,
    START_TIMEOUT_S,
    BenchError,
    RunningSystem,
    SystemKind,
    SystemSpec,
    on_core_ns,
    started,
)
from fanlog.bench.wires import fanout_wire, make_payload
from fanlog.bench.wires.base import TOPIC

PROGRAM = "redis-benchmark"
PROGRAM_TIMEOUT_S = 600.0
# What it publishes before the clock starts, as a share of what counts.
WARMUP_SHARE = 0.1
_LISTENS = "0A"
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresOptions(TimedOptions):
    """What to measure. `publishes` is how many requests redis-benchmark sends: a request is a
    publish, or a pipeline of them. With 0 it is left out."""

    workers: tuple[int, ...] = (0, 1, 2)
    subscribers: tuple[int, ...] = (100, 1000)
    batches: tuple[int, ...] = (64, 1)
    window_messages: int = 8192
    connections: int = 50
    pipelines: tuple[int, ...] = (1, 16)
    publishes: int = 100_000
    payload_bytes: int = 128
    against_redis: bool = True


# Shows that everything works, in seconds.
QUICK: dict[str, Any] = {
    "workers": (0, 1),
    "subscribers": (10,),
    "publishes": 1000,
    "warmup_s": 0.05,
    "run_s": 0.2,
}


@dataclass(frozen=True, slots=True)
class CoresFanoutCell:
    """Fan-out, with so many workers."""

    batch: int
    subscribers: int
    workers: int

    @property
    def label(self) -> str:
        """For the progress bar."""
        return f"{self.workers} workers, {self.batch} a batch, {self.subscribers} subscribers"


@dataclass(frozen=True, slots=True)
class CoresPublishCell:
    """redis-benchmark against one system."""

    kind: SystemKind
    workers: int
    pipeline: int

    @property
    def label(self) -> str:
        """For the progress bar."""
        system = "redis" if self.kind == "redis" else f"{self.workers} workers"
        return f"{system}, {PROGRAM} -P {self.pipeline}"


@dataclass(frozen=True, slots=True)
class CoresCounts:
    """One run: messages or deliveries a second, and what each process was on a core for a
    million of them. The core is the first process."""

    per_s: float
    cpu_s: tuple[float, ...]
    published_per_s: float = 0.0


def run_cores(options: CoresOptions, progress: BenchProgress = silent) -> CoresReport:
    """Measure every cell. Numbers of workers take turns.

    >>> run_cores(CoresOptions(subscribers=(10,), run_s=0.2))  # doctest: +SKIP
    """
    available, left_out = split_available(("redis",) if options.against_redis else ())
    program = shutil.which(PROGRAM) if options.publishes else None
    if options.publishes and program is None:
        sentence = f"{PROGRAM} was not found: install redis-tools from your system's packages."
        left_out = [*left_out, LeftOut(PROGRAM, sentence)]
    environment = environment_of(options, available, pinned=False)
    fanout_turns = [
        CoresFanoutCell(batch, subscribers, workers)
        for subscribers in options.subscribers
        for batch in options.batches
        for workers in options.workers * options.repeat
    ]
    publish_turns = [
        cell
        for pipeline in options.pipelines
        for cell in _publish_cells(options, available, pipeline) * options.repeat
    ]
    if program is None:
        publish_turns = []
    total = len(fanout_turns) + len(publish_turns)
    fanned: dict[CoresFanoutCell, list[CoresCounts]] = {}
    published: dict[CoresPublishCell, list[CoresCounts]] = {}
    with load_process(None) as load:
        for done, cell in enumerate(fanout_turns):
            progress(done, total, cell.label)
            fanned.setdefault(cell, []).append(_measure_fanout(cell, options, load))
    for done, cell in enumerate(publish_turns, len(fanout_turns)):
        progress(done, total, cell.label)
        assert program is not None
        published.setdefault(cell, []).append(_measure_publishing(cell, options, program))
    progress(total, total, "done")
    return CoresReport(
        rows=[_fanout_row(cell, counts, options) for cell, counts in fanned.items()],
        publishing=[_publish_row(cell, counts, options) for cell, counts in published.items()],
        left_out=left_out,
        environment=environment,
    )


def _publish_cells(
    options: CoresOptions, available: Sequence[SystemKind], pipeline: int
) -> list[CoresPublishCell]:
    return [
        *(CoresPublishCell("fanlog", workers, pipeline) for workers in options.workers),
        *(CoresPublishCell(kind, 0, pipeline) for kind in available),
    ]


# Processes


@contextlib.contextmanager
def _running(spec: SystemSpec, options: CoresOptions) -> Generator[tuple[RunningSystem, list[int]]]:
    """The system and its processes, the core first, once all workers listen."""
    with started(spec, None, options.directory) as system:
        deadline = time.monotonic() + START_TIMEOUT_S
        while listening_sockets(system.port) < max(1, spec.workers):
            if time.monotonic() > deadline:
                raise BenchError(f"not all of {spec.workers} workers listen")
            time.sleep(START_POLL_S)
        yield system, [system.pid, *worker_pids(system.pid)]


def listening_sockets(port: int) -> int:
    """How many sockets listen on a port of this machine: each worker has its own."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    states = (line.split()[1:4] for line in lines)
    wanted = f":{port:04X}"
    return sum(local.endswith(wanted) and state == _LISTENS for local, _, state in states)


def worker_pids(pid: int) -> list[int]:
    """The processes that this one has started, the oldest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return sorted(found)


def _used_s(pids: Sequence[int], before_ns: Sequence[int], count: float) -> tuple[float, ...]:
    """Seconds that each process was on a core since then, for a million."""
    after_ns = [on_core_ns(pid) for pid in pids]
    millions = max(count, 1.0) / _MILLION
    return tuple((b - a) / 1e9 / millions for a, b in zip(before_ns, after_ns, strict=True))


# Fan-out


def _measure_fanout(cell: CoresFanoutCell, options: CoresOptions, load: LoadProcess) -> CoresCounts:
    spec = SystemSpec("fanlog", workers=cell.workers)
    with _running(spec, options) as (system, pids):
        return load.call(generate, cell, options, system.port, pids)


def generate(
    cell: CoresFanoutCell, options: CoresOptions, port: int, pids: list[int]
) -> CoresCounts:
    """What the load process does for one cell."""
    wire = fanout_wire("fanlog", options.payload_bytes, cell.batch)
    with connected(wire, port, cell.subscribers, options.window_messages, "copy") as load:
        counts = measure_fanout(load, wire, options.warmup_s, options.run_s, pids)
    return CoresCounts(
        counts.delivered_per_s,
        tuple(used_ns * _MILLION / 1e9 for used_ns in counts.processes_ns),
        counts.published_per_s,
    )


def _fanout_row(
    cell: CoresFanoutCell, counts: Sequence[CoresCounts], options: CoresOptions
) -> CoresFanoutRow:
    runs = [count.per_s for count in counts]
    shown = counts[pick_run(runs, options.pick)]
    return CoresFanoutRow(
        workers=cell.workers,
        batch=cell.batch,
        subscribers=cell.subscribers,
        payload=options.payload_bytes,
        published_per_s=round(shown.published_per_s, 1),
        delivered_per_s=round(shown.per_s, 1),
        core_s=round(shown.cpu_s[0], 5),
        workers_s=[round(used, 5) for used in shown.cpu_s[1:]],
        runs=[round(run, 1) for run in runs],
    )


# redis-benchmark


def _measure_publishing(cell: CoresPublishCell, options: CoresOptions, program: str) -> CoresCounts:
    spec = SystemSpec(cell.kind, listener="redis", workers=cell.workers)
    count = options.publishes * cell.pipeline
    with _running(spec, options) as (system, pids):
        publish_with_redis_benchmark(
            program, system.port, int(count * WARMUP_SHARE), cell.pipeline, options
        )
        before_ns = [on_core_ns(pid) for pid in pids]
        per_s = publish_with_redis_benchmark(program, system.port, count, cell.pipeline, options)
        return CoresCounts(per_s, _used_s(pids, before_ns, count))


def publish_with_redis_benchmark(
    program: str, port: int, count: int, pipeline: int, options: CoresOptions
) -> float:
    """Publishes to nobody; messages a second, as the program says."""
    command = [program, "-h", HOST, "-p", str(port), "-c", str(options.connections)]
    command += ["-P", str(pipeline), "-n", str(max(1, count)), "--csv"]
    command += ["PUBLISH", TOPIC.decode(), make_payload(options.payload_bytes).decode()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROGRAM_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{PROGRAM} did not end within {PROGRAM_TIMEOUT_S:.0f} s.") from None
    rows = list(csv.DictReader(done.stdout.splitlines()))
    if done.returncode or not rows or not rows[-1].get("rps"):
        raise BenchError(f"{PROGRAM} failed:\n{done.stdout}\n{done.stderr}")
    return float(rows[-1]["rps"])


def _publish_row(
    cell: CoresPublishCell, counts: Sequence[CoresCounts], options: CoresOptions
) -> CoresPublishRow:
    runs = [count.per_s for count in counts]
    shown = counts[pick_run(runs, options.pick)]
    return CoresPublishRow(
        system="redis" if cell.kind == "redis" else "fanlog, redis port",
        workers=cell.workers,
        connections=options.connections,
        pipeline=cell.pipeline,
        payload=options.payload_bytes,
        published_per_s=round(shown.per_s, 1),
        core_s=round(shown.cpu_s[0], 4),
        workers_s=[round(used, 4) for used in shown.cpu_s[1:]],
        runs=[round(run, 1) for run in runs],
    )
