"""Exactly-once publishing beside plain publishing, a consumer group beside plain readers, and a
work queue beside JetStream's pull consumers.

Law: what is compared runs in turn, on the same broker and the same messages, with as many
processes. Every message that was published, read or acked is counted, and the broker must agree.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import uvloop

from fanlog.bench import group_roles as roles
from fanlog.bench.acked import acked_load
from fanlog.bench.clients import CLIENT_NAMES, client_installed
from fanlog.bench.crew import Crew, CrewTask, crew_of
from fanlog.bench.exactly_once import PublishingLoad, measure_clients, measure_wire
from fanlog.bench.group_roles import Acking, Iteration, ReaderLoad, WorkerLoad
from fanlog.bench.results import GroupsPart, GroupsReport, GroupsRow, LeftOut
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
    BenchError,
    Cores,
    SystemKind,
    SystemSpec,
    choose_cores,
    started,
)
from fanlog.bench.wires import acked_wire
from fanlog.bench.wires.fanlog import NAME

BACKLOG_BATCH = 64
FILL_WINDOW_MESSAGES = 4096
FILL_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 60.0
SETTLE_POLL_S = 0.05
ITERATIONS: tuple[Iteration, ...] = ("batches", "messages")
ACKING: dict[Acking, tuple[SystemKind, str]] = {
    "batch.ack": ("fanlog", "await batch.ack()"),
    "batch.ack_soon": ("fanlog", "batch.ack_soon()"),
    "job.ack_soon": ("fanlog", "job.ack_soon()"),
    "msg.ack": ("nats", "nats-py, await msg.ack()"),
    "msg.ack_sync": ("nats", "nats-py, await msg.ack_sync()"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOptions(TimedOptions):
    """What to measure.

    `backlog` messages are read by a group and by plain readers, and are a queue's jobs;
    `iterated` of them are read message by message. `nats_jobs` are JetStream's, which are fewer
    because they take longer. `prefetch` is what a worker has in hand, or fetches at once.
    """

    systems: tuple[SystemKind, ...] = ("fanlog", "nats")
    payload_bytes: int = 128
    batches: tuple[int, ...] = (1, 64)
    messages: int = 500_000
    backlog: int = 8_000_000
    iterated: int = 4_000_000
    readers: int = 4
    workers: tuple[int, ...] = (1, 2, 4)
    prefetch: int = 2000
    nats_jobs: int = 400_000
    warmup_s: float = 0.3
    run_s: float = 1.0
    repeat: int = 3


@dataclass(frozen=True, slots=True)
class GroupsCell:
    """A planned row: the work, the number of processes, and the row of the same part to compare
    with."""

    part: GroupsPart
    system: SystemKind
    how: str
    processes: int = 1
    beside: str = ""


@dataclass(slots=True)
class GroupsRun:
    """A running benchmark: its results so far, and its progress."""

    options: GroupsOptions
    cores: Cores
    progress: BenchProgress
    steps: int
    done: int = 0
    runs: dict[GroupsCell, list[float]] = field(default_factory=dict[GroupsCell, list[float]])

    def step(self, label: str) -> None:
        self.progress(self.done, self.steps, label)
        self.done += 1

    def note(self, cell: GroupsCell, rate: float) -> None:
        self.runs.setdefault(cell, []).append(rate)


def run_groups(options: GroupsOptions, progress: BenchProgress = silent) -> GroupsReport:
    """Measure all three, each repeated in turn.

    >>> run_groups(GroupsOptions(backlog=1_000_000, run_s=0.5))  # doctest: +SKIP
    """
    # Redis has no such thing.
    available, left_out = split_available(kind for kind in options.systems if kind != "redis")
    if "nats" in available and not client_installed("nats"):
        available.remove("nats")
        left_out.append(LeftOut("nats", f"{CLIENT_NAMES['nats']} is not installed."))
    cores = choose_cores(options.pin)
    environment = environment_of(options, available, pinned=cores.pinned)
    working = queue_cells(options, available)
    steps = len(options.batches) + 1 + len(reading_cells(options)) + len(working)
    run = GroupsRun(options, cores, progress, steps * options.repeat)
    with load_process(cores.load) as load:
        measure_publishing(run, load)
        with contextlib.ExitStack() as stack:
            crew = stack.enter_context(crew_of(max(options.readers, *options.workers)))
            systems: dict[SystemKind, Backlog] = {}
            for kind in available:
                progress(run.done, run.steps, f"filling a backlog of {kind}")
                systems[kind] = stack.enter_context(backlog_in(kind, options, load))
            measure_reading(run, crew, systems["fanlog"])
            measure_queues(run, crew, systems, working)
    progress(run.steps, run.steps, "done")
    rows = [_row(cell, runs, options) for cell, runs in run.runs.items()]
    return GroupsReport(rows=rows, left_out=left_out, environment=environment)


# Publishing


def publishing_cells(batch: int) -> list[GroupsCell]:
    """The rows of one size of batch on the raw wire."""
    size = f"wire, {batch} a batch"
    plain = f"{size}, plain"
    return [
        GroupsCell("publishing", "fanlog", plain),
        GroupsCell("publishing", "fanlog", f"{size}, exactly once", beside=plain),
    ]


CLIENT_CELLS = [
    GroupsCell("publishing", "fanlog", "client, plain"),
    GroupsCell("publishing", "fanlog", "client, exactly once", beside="client, plain"),
    GroupsCell("publishing", "fanlog", "client, transactions of 1000", beside="client, plain"),
]


def measure_publishing(run: GroupsRun, load: LoadProcess) -> None:
    """A broker for each size of batch and for the clients, again in each round."""
    options = run.options
    for _ in range(options.repeat):
        for batch in options.batches:
            run.step(f"publishing, {batch} a batch")
            with started(SystemSpec("fanlog"), run.cores.system, options.directory) as system:
                rates = load.call(measure_wire, _publishing(options, system.port), batch)
            for cell, rate in zip(publishing_cells(batch), rates, strict=True):
                run.note(cell, rate)
        run.step("publishing, Python clients")
        with started(SystemSpec("fanlog"), run.cores.system, options.directory) as system:
            rates = load.call(measure_clients, _publishing(options, system.port))
        for cell, rate in zip(CLIENT_CELLS, rates, strict=True):
            run.note(cell, rate)


def _publishing(options: GroupsOptions, port: int) -> PublishingLoad:
    return PublishingLoad(
        port, options.payload_bytes, options.warmup_s, options.run_s, options.messages
    )


# The backlog


@dataclass(frozen=True, slots=True)
class Backlog:
    """A system filled with this many messages."""

    port: int
    messages: int


@contextlib.contextmanager
def backlog_in(kind: SystemKind, options: GroupsOptions, load: LoadProcess) -> Generator[Backlog]:
    """Start a system, on no core in particular, and fill it."""
    spec = SystemSpec(kind, "default" if kind == "nats" else "pubsub")
    with started(spec, None, options.directory) as system:
        yield Backlog(system.port, load.call(fill, kind, options, system.port))


def fill(kind: SystemKind, options: GroupsOptions, port: int) -> int:
    """Runs in the load process: fills all partitions equally. Returns the number of messages."""
    wire = acked_wire(kind, options.payload_bytes, BACKLOG_BATCH, "os", options.readers)
    wanted = options.backlog if kind == "fanlog" else options.nats_jobs
    with acked_load(wire, port, FILL_WINDOW_MESSAGES) as load:
        share = options.readers * wire.messages
        return load.fill(-(-wanted // share) * options.readers, FILL_TIMEOUT_S)


# A group, and plain readers


def reading_cells(options: GroupsOptions) -> list[tuple[GroupsCell, Iteration]]:
    """Both ways to iterate, each by readers and by a group."""
    cells: list[tuple[GroupsCell, Iteration]] = []
    for iteration in ITERATIONS:
        plain, group = f"plain readers, {iteration}", f"a group, {iteration}"
        many = options.readers
        cells.append((GroupsCell("reading", "fanlog", plain, many), iteration))
        cells.append((GroupsCell("reading", "fanlog", group, many, beside=plain), iteration))
    return cells


def measure_reading(run: GroupsRun, crew: Crew, backlog: Backlog) -> None:
    """In every other round the group goes first."""
    cells = reading_cells(run.options)
    for number in range(run.options.repeat):
        for cell, iteration in cells if number % 2 == 0 else reversed(cells):
            run.step(f"reading, {cell.how}")
            run.note(cell, read_backlog(run, crew, backlog, cell, iteration))


def read_backlog(
    run: GroupsRun, crew: Crew, backlog: Backlog, cell: GroupsCell, iteration: Iteration
) -> float:
    """Messages per second that all readers together took."""
    wanted = min(backlog.messages, run.options.iterated if iteration == "messages" else 1 << 62)
    readings = [
        ReaderLoad(
            port=backlog.port,
            topic=NAME,
            partition=partition,
            messages=wanted // cell.processes,
            iteration=iteration,
            group=f"group-{run.done}" if cell.beside else "",
        )
        for partition in range(cell.processes)
    ]
    role = roles.read_as_member if cell.beside else roles.read_partition
    count, took_s = crew.play([CrewTask(role, reading) for reading in readings])
    if count < wanted // cell.processes * cell.processes:
        raise BenchError(f"{count} of {wanted} messages were read by {cell.how}")
    return count / took_s


# A queue, and pull consumers


def queue_cells(
    options: GroupsOptions, kinds: Iterable[SystemKind]
) -> list[tuple[GroupsCell, Acking]]:
    """Every number of workers with every way to ack; the plain one of NATS is compared with."""
    beside = ACKING["msg.ack"][1]
    return [
        (GroupsCell("acking", kind, how, workers, beside if kind == "fanlog" else ""), acking)
        for workers in options.workers
        for acking, (kind, how) in ACKING.items()
        if kind in kinds
    ]


def measure_queues(
    run: GroupsRun,
    crew: Crew,
    backlogs: Mapping[SystemKind, Backlog],
    cells: Sequence[tuple[GroupsCell, Acking]],
) -> None:
    """All cells one after the other, again in each round."""
    for _ in range(run.options.repeat):
        for cell, acking in cells:
            run.step(f"a queue, {cell.processes} workers, {cell.how}")
            run.note(cell, work_off(run, crew, backlogs[cell.system], cell, acking))


def work_off(
    run: GroupsRun, crew: Crew, backlog: Backlog, cell: GroupsCell, acking: Acking
) -> float:
    """Jobs acked per second by all workers of a new queue."""
    options, queue = run.options, f"queue-{run.done}"
    nats = cell.system == "nats"
    working = WorkerLoad(
        port=backlog.port,
        topic=NAME,
        queue=queue,
        acking=acking,
        prefetch=options.prefetch,
        seconds=options.run_s,
    )
    if nats:
        in_flight = options.prefetch * cell.processes
        uvloop.run(roles.add_nats_consumer(backlog.port, queue, in_flight))
    role = roles.work_nats if nats else roles.work_fanlog
    count, took_s = crew.play([CrewTask(role, working)] * cell.processes)
    verify_left(cell.system, backlog, queue, count)
    return count / took_s


def verify_left(kind: SystemKind, backlog: Backlog, queue: str, acked: int) -> None:
    """Checks that no acked job is left in the system. NATS may need a moment."""
    left_in = roles.nats_left if kind == "nats" else roles.jobs_left
    deadline = time.perf_counter() + SETTLE_TIMEOUT_S
    while (left := uvloop.run(left_in(backlog.port, queue))) != backlog.messages - acked:
        if kind != "nats" or time.perf_counter() > deadline:
            done = backlog.messages - left
            raise BenchError(f"{acked} jobs were acked, but {done} are done for {kind}")
        time.sleep(SETTLE_POLL_S)


def _row(cell: GroupsCell, runs: list[float], options: GroupsOptions) -> GroupsRow:
    return GroupsRow(
        part=cell.part,
        system=cell.system,
        how=cell.how,
        processes=cell.processes,
        payload=options.payload_bytes,
        messages_per_s=round(runs[pick_run(runs, options.pick)], 1),
        runs=[round(run, 1) for run in runs],
        beside=cell.beside,
    )
