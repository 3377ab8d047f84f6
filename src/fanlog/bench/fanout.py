"""Fan-out: how many deliveries a second reach N subscribers of one pipelining publisher.

Law: for each number of subscribers the systems take turns within one run, so that a noisy minute
of the machine hits them all.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fanlog.bench.load import FanoutCounts, FanoutLoad, Receive, connected, measure_fanout
from fanlog.bench.results import FanoutReport, FanoutRow, LeftOut
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
from fanlog.bench.systems import Cores, Listener, SystemKind, SystemSpec, choose_cores, started
from fanlog.bench.tls import TlsFanoutLoad, make_certificates
from fanlog.bench.wires import fanout_wire

_NO_NATS = "with TLS it greets without TLS first, which the load does not speak"


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutOptions(TimedOptions):
    """What to measure. `fanlog_batches` are the batch sizes that Fanlog's rows publish with;
    through its Redis `listener` there is one row, with unmodified Redis protocol.

    `receive` says what subscribers do with bytes. `copy` takes them as a real reader must, on one
    core for all of them, and that core may then be what limits a fast system. `discard` leaves them
    in the kernel, and shows what the system can send.

    With `tls` every row is measured once without TLS and once with it, where readers decrypt.
    """

    systems: tuple[SystemKind, ...] = ("fanlog", "redis", "nats")
    fanlog_batches: tuple[int, ...] = (64, 1)
    subscribers: tuple[int, ...] = (1, 10, 100, 1000)
    payload_bytes: int = 128
    window_messages: int = 8192
    receive: Receive = "copy"
    listener: Listener = "native"
    tls: bool = False


@dataclass(frozen=True, slots=True)
class FanoutCell:
    """One system at one number of subscribers."""

    kind: SystemKind
    batch: int
    subscribers: int
    tls: bool = False

    @property
    def label(self) -> str:
        """For the progress bar."""
        how = ", TLS" if self.tls else ""
        return f"{self.kind}{how}, {self.batch} a batch, {self.subscribers} subscribers"


def run_fanout(options: FanoutOptions, progress: BenchProgress = silent) -> FanoutReport:
    """Measure every cell and report a row for each.

    >>> run_fanout(FanoutOptions(systems=("redis",), subscribers=(1,), run_s=0.2))  # doctest: +SKIP
    """
    wanted: list[SystemKind] = [
        kind for kind in options.systems if not (options.tls and kind == "nats")
    ]
    available, left_out = split_available(wanted)
    if len(wanted) < len(options.systems):
        left_out = [*left_out, LeftOut("nats", _NO_NATS)]
    cores = choose_cores(options.pin)
    environment = environment_of(options, available, pinned=cores.pinned)
    cells = [
        FanoutCell(kind, batch, subscribers, tls)
        for subscribers in options.subscribers
        for tls in ((False, True) if options.tls else (False,))
        for kind in available
        for batch in _batches(kind, options)
    ]
    total = len(cells) * options.repeat
    done = 0
    counts: dict[FanoutCell, list[FanoutCounts]] = {cell: [] for cell in cells}
    with load_process(cores.load) as load:
        for subscribers in options.subscribers:
            turns = [cell for cell in cells if cell.subscribers == subscribers] * options.repeat
            for cell in turns:
                progress(done, total, cell.label)
                counts[cell].append(_measure(cell, options, cores, load))
                done += 1
    progress(done, total, "done")
    rows = [_row(cell, counts[cell], options) for cell in cells]
    return FanoutReport(rows=rows, left_out=left_out, environment=environment)


def _batches(kind: SystemKind, options: FanoutOptions) -> tuple[int, ...]:
    batched = kind == "fanlog" and options.listener == "native"
    return options.fanlog_batches if batched else (1,)


def _measure(
    cell: FanoutCell, options: FanoutOptions, cores: Cores, load: LoadProcess
) -> FanoutCounts:
    with tempfile.TemporaryDirectory(prefix="fanlog-bench-") as folder:
        tls = make_certificates(Path(folder)) if cell.tls else None
        spec = SystemSpec(cell.kind, listener=options.listener, tls=tls)
        with started(spec, cores.system, options.directory) as system:
            return load.call(generate, cell, options, system.port, system.pid)


def generate(cell: FanoutCell, options: FanoutOptions, port: int, pid: int) -> FanoutCounts:
    """What the load process does for one cell."""
    wire = fanout_wire(cell.kind, options.payload_bytes, cell.batch, options.listener)
    kind = TlsFanoutLoad if cell.tls else FanoutLoad
    window, receive = options.window_messages, options.receive
    with connected(wire, port, cell.subscribers, window, receive, kind=kind) as load:
        return measure_fanout(load, wire, options.warmup_s, options.run_s, [pid])


def _row(cell: FanoutCell, counts: list[FanoutCounts], options: FanoutOptions) -> FanoutRow:
    runs = [count.delivered_per_s for count in counts]
    shown = counts[pick_run(runs, options.pick)]
    return FanoutRow(
        system=cell.kind,
        batch=cell.batch,
        subscribers=cell.subscribers,
        payload=options.payload_bytes,
        receive=options.receive,
        listener=options.listener,
        tls=cell.tls,
        published_per_s=round(shown.published_per_s, 1),
        delivered_per_s=round(shown.delivered_per_s, 1),
        runs=[round(run, 1) for run in runs],
        system_ns=round(shown.system_ns, 1),
    )
