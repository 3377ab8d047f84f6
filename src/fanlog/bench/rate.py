"""Latency at a fixed publish rate, for each system by each port beside the others in one run.

Law: latency counts from a message's scheduled time (`open_loop.py`), and the generator's own
lateness is reported beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanlog.bench.latency import percentile_us
from fanlog.bench.open_loop import OpenLoopTimes, open_loop
from fanlog.bench.results import RateReport, RateRow
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
class RateOptions(TimedOptions):
    """What to measure; `rates` are messages a second."""

    systems: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")
    listeners: tuple[Listener, ...] = ("native", "redis")
    rates: tuple[int, ...] = (1000,)
    subscribers: tuple[int, ...] = (10, 100)
    payload_bytes: int = 128


@dataclass(frozen=True, slots=True)
class RateCell:
    """One system at one rate and number of subscribers."""

    contender: Contender
    subscribers: int
    rate: int


def run_rate(options: RateOptions, progress: BenchProgress = silent) -> RateReport:
    """Measure every system at every rate and number of subscribers; systems take turns."""
    available, left_out = split_available(options.systems)
    cores = choose_cores(options.pin)
    environment = environment_of(options, available, pinned=cores.pinned)
    groups = [(s, rate) for s in options.subscribers for rate in options.rates]
    cells = {
        group: [RateCell(one, *group) for one in contenders(available, options.listeners)]
        for group in groups
    }
    turns = [cell for group in groups for cell in cells[group] * options.repeat]
    runs: dict[RateCell, list[OpenLoopTimes]] = {cell: [] for cell in turns}
    with load_process(cores.load) as load:
        for done, cell in enumerate(turns):
            one = cell.contender
            label = f"{one.label}, {cell.rate} a second, {cell.subscribers} subscribers"
            progress(done, len(turns), label)
            spec = SystemSpec(one.kind, listener=one.listener)
            with started(spec, cores.system, options.directory) as system:
                runs[cell].append(load.call(generate, cell, options, system.port))
    progress(len(turns), len(turns), "done")
    rows = [_row(cell, times, options) for cell, times in runs.items()]
    return RateReport(rows=rows, left_out=left_out, environment=environment)


def generate(cell: RateCell, options: RateOptions, port: int) -> OpenLoopTimes:
    """What the load process does for one cell."""
    one = cell.contender
    wire = fanout_wire(one.kind, options.payload_bytes, 1, one.listener)
    warmup, count = (max(1, int(cell.rate * s)) for s in (options.warmup_s, options.run_s))
    with open_loop(wire, port, cell.subscribers) as loop:
        return loop.run(cell.rate, warmup, count)


def _row(cell: RateCell, runs: Sequence[OpenLoopTimes], options: RateOptions) -> RateRow:
    p99s = [percentile_us(times.took_ns, 0.99) for times in runs]
    # pick_run takes the highest for the best, and here the lowest is.
    shown = runs[pick_run([-p99 for p99 in p99s], options.pick)]
    return RateRow(
        system=cell.contender.label,
        subscribers=cell.subscribers,
        rate=cell.rate,
        payload=options.payload_bytes,
        samples=len(shown.took_ns),
        p50_us=percentile_us(shown.took_ns, 0.5),
        p99_us=percentile_us(shown.took_ns, 0.99),
        p999_us=percentile_us(shown.took_ns, 0.999),
        worst_us=percentile_us(shown.took_ns, 1.0),
        sent_p99_us=percentile_us(shown.sent_ns, 0.99),
        arrived_per_s=round(shown.arrived_per_s, 1),
        runs_p99_us=p99s,
    )
