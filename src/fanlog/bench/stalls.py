"""Stalls: what a client's pings wait while the broker does the work that grows with what it holds.

Law: one client pings all the time, at a fixed rate, from a process of its own; the operations come
one after the other from another process. A row is about the pings that were due from an
operation's request until a moment after its answer, and the first row is a broker at rest. The last
rows also have the CPU time of the longest call of the loop: no other program changes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import msgspec

from fanlog.bench.operations import FULL, HOUSEKEEPING, OPERATIONS, Operation, Scale
from fanlog.bench.pings import Pinger, pinging
from fanlog.bench.results import StallsReport, StallsRow
from fanlog.bench.runner import (
    BenchProgress,
    LoadProcess,
    RunOptions,
    environment_of,
    load_process,
    silent,
)
from fanlog.bench.startup import check_room
from fanlog.bench.step_operations import CLOSING, STEPS
from fanlog.bench.steps import SteppedBroker, stepped_broker
from fanlog.bench.systems import SystemSpec, choose_cores, started

# Groups get their partitions at once, also right after the start.
OPERATIONS_CONFIG = "[broker]\ngroup_grace_seconds = 0\n"
HOUSEKEEPING_CONFIG = "[log]\nretention_check_seconds = 0.5\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallsOptions(RunOptions):
    """The size of everything in the broker."""

    scale: Scale = FULL


def run_stalls(options: StallsOptions, progress: BenchProgress = silent) -> StallsReport:
    """Runs all operations, on three brokers.

    >>> run_stalls(StallsOptions(scale=Scale(topics=10_000)))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    check_room(options.directory or Path(gettempdir()), options.scale.log_bytes)
    total = len(OPERATIONS) + len(HOUSEKEEPING) + len(STEPS)
    rows: list[StallsRow] = []
    with load_process(cores.load) as load:
        for operations, config in (
            (OPERATIONS, OPERATIONS_CONFIG),
            (HOUSEKEEPING, HOUSEKEEPING_CONFIG),
        ):
            with contextlib.ExitStack() as stack:
                spec = SystemSpec("fanlog", config=config)
                system = stack.enter_context(started(spec, cores.system, options.directory))
                pinger = stack.enter_context(pinging(system.port, cores.load))
                for operation in operations:
                    progress(len(rows), total, operation.label(options.scale))
                    rows.append(measure(operation, system.port, options.scale, load, pinger))
        with (
            stepped_broker(cores.system, options.directory) as broker,
            pinging(broker.port, cores.load) as pinger,
        ):
            for operation in STEPS:
                progress(len(rows), total, operation.label(options.scale))
                rows.append(measure_steps(operation, broker, options.scale, load, pinger))
    progress(total, total, "done")
    return StallsReport(rows=rows, left_out=[], environment=environment)


def measure(
    operation: Operation,
    port: int,
    scale: Scale,
    load: LoadProcess,
    pinger: Pinger,
) -> StallsRow:
    """One operation: prepare it, then collect the pings while it runs."""
    load.call(operation.prepare, port, scale)
    time.sleep(scale.afterwards_s)
    return _measured(operation, scale, pinger, lambda: load.call(operation.run, port, scale))


def measure_steps(
    operation: Operation, broker: SteppedBroker, scale: Scale, load: LoadProcess, pinger: Pinger
) -> StallsRow:
    """The same, with the CPU time of the longest call of the loop."""
    run: Callable[[], object] = lambda: load.call(operation.run, broker.port, scale)  # noqa: E731
    port = broker.port
    if operation is CLOSING:
        run, port = broker.close_redis, broker.redis_port
    load.call(operation.prepare, port, scale)
    time.sleep(scale.afterwards_s)
    broker.take_longest_ms()
    row = _measured(operation, scale, pinger, run)
    return msgspec.structs.replace(row, step_ms=round(broker.take_longest_ms(), 2))


def _measured(
    operation: Operation, scale: Scale, pinger: Pinger, run: Callable[[], object]
) -> StallsRow:
    pinger.take()
    began_s = time.perf_counter()
    run()
    seconds = time.perf_counter() - began_s
    time.sleep(scale.afterwards_s)
    return row_of(operation.label(scale), seconds, pinger.take())


def row_of(label: str, seconds: float, waits_s: Sequence[float]) -> StallsRow:
    """The percentiles of pings' waits."""
    waits_ms = sorted(wait * 1000 for wait in waits_s)
    return StallsRow(
        operation=label,
        seconds=round(seconds, 3),
        pings=len(waits_ms),
        p50_ms=_at(waits_ms, 0.5),
        p99_ms=_at(waits_ms, 0.99),
        worst_ms=_at(waits_ms, 1.0),
    )


def _at(sorted_ms: Sequence[float], fraction: float) -> float:
    at = min(len(sorted_ms) - 1, int(len(sorted_ms) * fraction))
    return round(sorted_ms[at], 3)
