"""Durable publishing: acknowledged messages per second, by what the acknowledgement promises.

Law: one connection and a bounded window; a row counts only what was acknowledged, and the system
must have taken exactly that in the end. `synced` marks rows that promise to survive a power cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlog.bench.acked import measure_acked
from fanlog.bench.results import DurableReport, DurableRow
from fanlog.bench.runner import (
    BenchProgress,
    TimedOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
    split_available,
)
from fanlog.bench.systems import SystemKind, SystemSettings, SystemSpec, choose_cores, started
from fanlog.bench.wires import acked_wire
from fanlog.model import DurabilityName


@dataclass(frozen=True, slots=True)
class DurableCell:
    """One promise of one system. `durability` and `partitions` are the topic's, in Fanlog."""

    kind: SystemKind
    label: str
    synced: bool
    settings: SystemSettings = "pubsub"
    durability: DurabilityName = "memory"
    partitions: int = 1
    batch: int = 1


REDIS_CELLS = (
    DurableCell("redis", "appendfsync no", False, "never"),
    DurableCell("redis", "appendfsync everysec", False, "everysec"),
    DurableCell("redis", "appendfsync always", True, "always"),
)
NATS_CELLS = (
    DurableCell("nats", "sync_interval default", False, "default"),
    DurableCell("nats", "sync_interval always", True, "always"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableOptions(TimedOptions):
    """What to measure; `windows` are messages unacknowledged at a time."""

    systems: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")
    fanlog_batches: tuple[int, ...] = (1, 64)
    spread_partitions: int = 64
    windows: tuple[int, ...] = (1, 1000)
    payload_bytes: int = 128


def durable_cells(options: DurableOptions) -> list[DurableCell]:
    """All promises to measure, similar ones side by side."""
    fanlog = [
        DurableCell("fanlog", label, durability == "fsync", "pubsub", durability, parts, batch)
        for label, durability, parts in _fanlog_promises(options)
        for batch in options.fanlog_batches
    ]
    return [cell for cell in (*fanlog, *REDIS_CELLS, *NATS_CELLS) if cell.kind in options.systems]


def _fanlog_promises(options: DurableOptions) -> list[tuple[str, DurabilityName, int]]:
    spread = options.spread_partitions
    return [
        ("memory", "memory", 1),
        ("os", "os", 1),
        ("fsync", "fsync", 1),
        (f"fsync, {spread} partitions", "fsync", spread),
    ]


def run_durable(options: DurableOptions, progress: BenchProgress = silent) -> DurableReport:
    """Measure every promise with every window; a batch larger than the window has no row."""
    available, left_out = split_available(options.systems)
    cores = choose_cores(options.pin)
    environment = environment_of(options, available, pinned=cores.pinned)
    cells = [
        (window, cell)
        for window in options.windows
        for cell in durable_cells(options)
        if cell.kind in available and cell.batch <= window
    ]
    total = len(cells) * options.repeat
    runs: dict[tuple[int, DurableCell], list[float]] = {cell: [] for cell in cells}
    with load_process(cores.load) as load:
        for done, (window, cell) in enumerate(cells * options.repeat):
            progress(done, total, f"{cell.kind} {cell.label}, window {window}")
            spec = SystemSpec(cell.kind, cell.settings)
            with started(spec, cores.system, options.directory) as system:
                rate = load.call(generate, cell, window, options, system.port)
            runs[window, cell].append(rate)
    progress(total, total, "done")
    rows = [_row(window, cell, runs[window, cell], options) for window, cell in cells]
    return DurableReport(rows=rows, left_out=left_out, environment=environment)


def generate(cell: DurableCell, window: int, options: DurableOptions, port: int) -> float:
    """What the load process does for one cell."""
    wire = acked_wire(
        cell.kind, options.payload_bytes, cell.batch, cell.durability, cell.partitions
    )
    return measure_acked(wire, port, window, options.warmup_s, options.run_s)


def _row(window: int, cell: DurableCell, runs: list[float], options: DurableOptions) -> DurableRow:
    return DurableRow(
        system=cell.kind,
        durability=cell.label,
        synced=cell.synced,
        partitions=cell.partitions,
        batch=cell.batch,
        window=window,
        payload=options.payload_bytes,
        acknowledged_per_s=round(runs[pick_run(runs, options.pick)], 1),
        runs=[round(run, 1) for run in runs],
    )
