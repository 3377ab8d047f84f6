"""Latency: from a publish until the last of N subscribers has the message's last byte.

Law: one message in flight at a time on an otherwise idle system; the generator spins, so that its
own wake-up does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanlog.bench.load import connected, measure_latency
from fanlog.bench.results import LatencyReport, LatencyRow
from fanlog.bench.runner import (
    BenchProgress,
    TimedOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
    split_available,
)
from fanlog.bench.systems import Listener, SystemKind, SystemSpec, choose_cores, started
from fanlog.bench.wires import fanout_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions(TimedOptions):
    """What to measure; a cell ends after `run_s` or `samples_max`, whichever comes first."""

    systems: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")
    subscribers: tuple[int, ...] = (1, 10, 100)
    payload_bytes: int = 128
    samples_max: int = 20_000
    listener: Listener = "native"


def run_latency(options: LatencyOptions, progress: BenchProgress = silent) -> LatencyReport:
    """Measure every system at every number of subscribers."""
    available, left_out = split_available(options.systems)
    cores = choose_cores(options.pin)
    environment = environment_of(options, available, pinned=cores.pinned)
    cells: list[tuple[int, SystemKind]] = [
        (subscribers, kind) for subscribers in options.subscribers for kind in available
    ]
    total = len(cells) * options.repeat
    done = 0
    runs: dict[tuple[int, SystemKind], list[LatencyRow]] = {cell: [] for cell in cells}
    with load_process(cores.load) as load:
        for subscribers in options.subscribers:
            turns = [cell for cell in cells if cell[0] == subscribers] * options.repeat
            for cell in turns:
                kind = cell[1]
                progress(done, total, f"{kind}, {subscribers} subscribers")
                spec = SystemSpec(kind, listener=options.listener)
                with started(spec, cores.system, options.directory) as system:
                    samples = load.call(generate, kind, subscribers, options, system.port)
                runs[cell].append(_row(kind, subscribers, samples, options))
                done += 1
    progress(done, total, "done")
    rows = [_pick(runs[cell], options) for cell in cells]
    return LatencyReport(rows=rows, left_out=left_out, environment=environment)


def generate(kind: SystemKind, subscribers: int, options: LatencyOptions, port: int) -> list[int]:
    """What the load process does for one cell."""
    wire = fanout_wire(kind, options.payload_bytes, 1, options.listener)
    with connected(wire, port, subscribers, 1) as load:
        return measure_latency(load, options.warmup_s, options.run_s, options.samples_max)


def percentile_us(sorted_ns: Sequence[int], fraction: float) -> float:
    """The sample at this fraction, in microseconds."""
    at = min(len(sorted_ns) - 1, int(len(sorted_ns) * fraction))
    return round(sorted_ns[at] / 1000, 1)


def _row(
    kind: SystemKind, subscribers: int, sorted_ns: list[int], options: LatencyOptions
) -> LatencyRow:
    return LatencyRow(
        system=kind,
        subscribers=subscribers,
        payload=options.payload_bytes,
        samples=len(sorted_ns),
        p50_us=percentile_us(sorted_ns, 0.5),
        p99_us=percentile_us(sorted_ns, 0.99),
        p999_us=percentile_us(sorted_ns, 0.999),
        listener=options.listener,
    )


def _pick(runs: list[LatencyRow], options: LatencyOptions) -> LatencyRow:
    # pick_run takes the highest for the best, and here the lowest is.
    return runs[pick_run([-run.p50_us for run in runs], options.pick)]
