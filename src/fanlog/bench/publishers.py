"""Publishers that wait: a number of connections, each with one publish or one pipeline in flight.

Law: for each number of connections the systems take turns within one run. All are asked for an
answer: Redis's count of receivers, Fanlog's ACK, and of NATS, which answers no publish, the PONG to
a PING behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanlog.bench.answered import AnsweredCounts, answered_load, measure_answered
from fanlog.bench.results import PublishersReport, PublishersRow
from fanlog.bench.runner import (
    BenchProgress,
    TimedOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
    split_available,
)
from fanlog.bench.systems import (
    Contender,
    Listener,
    SystemKind,
    SystemSpec,
    choose_cores,
    contenders,
    started,
)
from fanlog.bench.wires import fanout_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishersOptions(TimedOptions):
    """What to measure. Pipelines of more than one are only for Redis's protocol."""

    systems: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")
    listeners: tuple[Listener, ...] = ("native", "redis")
    connections: tuple[int, ...] = (1, 50, 500)
    subscribers: tuple[int, ...] = (1, 0)
    pipelines: tuple[int, ...] = (1, 16)
    payload_bytes: int = 128


@dataclass(frozen=True, slots=True)
class PublishersCell:
    """One system with a number of publishers and subscribers."""

    contender: Contender
    connections: int
    subscribers: int
    pipeline: int

    @property
    def label(self) -> str:
        """For the progress bar."""
        return (
            f"{self.contender.label}, {self.connections} connections, pipelines of "
            f"{self.pipeline}, {self.subscribers} subscribers"
        )


def run_publishers(
    options: PublishersOptions, progress: BenchProgress = silent
) -> PublishersReport:
    """Measure every cell and report a row for each."""
    available, left_out = split_available(options.systems)
    cores = choose_cores(options.pin)
    environment = environment_of(options, available, pinned=cores.pinned)
    turns = [
        cell
        for pipeline in options.pipelines
        for subscribers in options.subscribers
        for connections in options.connections
        for cell in _cells(available, options, connections, subscribers, pipeline) * options.repeat
    ]
    runs: dict[PublishersCell, list[AnsweredCounts]] = {cell: [] for cell in turns}
    with load_process(cores.load) as load:
        for done, cell in enumerate(turns):
            progress(done, len(turns), cell.label)
            one = cell.contender
            spec = SystemSpec(one.kind, listener=one.listener)
            with started(spec, cores.system, options.directory) as system:
                counts = load.call(generate, cell, options, system.port, system.pid)
            runs[cell].append(counts)
    progress(len(turns), len(turns), "done")
    rows = [_row(cell, counts, options) for cell, counts in runs.items()]
    return PublishersReport(rows=rows, left_out=left_out, environment=environment)


def _cells(
    available: Sequence[SystemKind],
    options: PublishersOptions,
    connections: int,
    subscribers: int,
    pipeline: int,
) -> list[PublishersCell]:
    return [
        PublishersCell(one, connections, subscribers, pipeline)
        for one in contenders(available, options.listeners)
        if pipeline == 1 or one.kind == "redis" or one.redis_port
    ]


def generate(
    cell: PublishersCell, options: PublishersOptions, port: int, pid: int
) -> AnsweredCounts:
    """What the load process does for one cell."""
    one = cell.contender
    wire = fanout_wire(one.kind, options.payload_bytes, 1, one.listener)
    shape = (cell.connections, cell.subscribers, cell.pipeline)
    with answered_load(wire, port, *shape) as load:
        return measure_answered(load, pid, cell.pipeline, options.warmup_s, options.run_s)


def _row(
    cell: PublishersCell, counts: Sequence[AnsweredCounts], options: PublishersOptions
) -> PublishersRow:
    runs = [count.published_per_s for count in counts]
    shown = counts[pick_run(runs, options.pick)]
    return PublishersRow(
        system=cell.contender.label,
        connections=cell.connections,
        subscribers=cell.subscribers,
        pipeline=cell.pipeline,
        payload=options.payload_bytes,
        published_per_s=round(shown.published_per_s, 1),
        cpu_us=round(shown.cpu_us, 2),
        busy=round(shown.busy, 2),
        runs=[round(run, 1) for run in runs],
    )
