"""Start-up: the time from a broker's process to its open port, by the size of its log.

Law: every log ends half-way into a segment, so that all have the same to scan and differ only in
what lies before it; they are started in turn, killed and stopped in turn, and after each start the
broker must have every record. The kernel's cache is warm, as after a crash of the broker alone.

Shapes are folders that take longest to start with: many topics with durability fsync, a topic of
many segments with durability fsync, and a full newest segment of batches with one small message.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fanlog.bench.acked import acked_load
from fanlog.bench.results import StartupReport, StartupRow
from fanlog.bench.runner import BenchProgress, RunOptions, environment_of, load_process, silent
from fanlog.bench.systems import (
    BenchError,
    SystemSpec,
    affinity,
    choose_cores,
    fanlog_command,
    find_program,
    free_port,
    wait_until_listening,
)
from fanlog.bench.wires import make_payload
from fanlog.bench.wires.base import connect
from fanlog.bench.wires.fanlog import NAME, FanlogTopic, ask, greet
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind
from fanlog.format.messages import CreateTopic, NamedTopic, OpenTopic, TopicOpened
from fanlog.model import KIB, MIB, DurabilityName, TopicInfo, TopicSettings

After: TypeAlias = Literal["kill", "stop"]
ShapeName: TypeAlias = Literal["topics", "segments", "batches"]
SHAPES: tuple[ShapeName, ...] = ("topics", "segments", "batches")

RECORD_BYTES = 1024
RECORDS_A_BATCH = 64
WINDOW_BATCHES = 64
POLL_S = 0.001
END_TIMEOUT_S = 30.0
SMALL_RECORD_BYTES = 32
SMALL_SEGMENT_BYTES = 64 * KIB
# One batch of this size is a segment of its own.
SEGMENT_RECORD_BYTES = 60_000
SEGMENT_LOG_BYTES = 60_104
FILL_TIMEOUT_S = 900.0
# Indexes, files allocated ahead, and some spare room.
ROOM_SPARE_BYTES = 512 * MIB
ROOM_FACTOR = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupOptions(RunOptions):
    """What to measure; `sizes_bytes` are raised to the next half segment."""

    sizes_bytes: tuple[int, ...] = (400 * MIB, 4096 * MIB)
    segment_bytes: int = TopicSettings().segment_bytes
    repeat: int = 5
    shapes: tuple[ShapeName, ...] = ()
    topics: int = 5_000
    segments: int = 4_000

    def log_bytes(self) -> list[int]:
        """The sizes of the logs. The first stays empty, and shows the fixed cost of a start."""
        segment = self.segment_bytes
        halves = {-(-(size - segment // 2) // segment) for size in self.sizes_bytes}
        return [0, *(max(0, half) * segment + segment // 2 for half in sorted(halves))]

    def shape_bytes(self) -> dict[ShapeName, int]:
        """About the size of each shape on disk."""
        sizes: dict[ShapeName, int] = {
            "topics": self.topics * SMALL_SEGMENT_BYTES,
            "segments": self.segments * SEGMENT_LOG_BYTES,
            "batches": self.segment_bytes,
        }
        return {shape: sizes[shape] for shape in self.shapes}

    def shape_label(self, shape: ShapeName) -> str:
        labels: dict[ShapeName, str] = {
            "topics": f"{self.topics:,} topics",
            "segments": f"{self.segments:,} segments",
            "batches": f"{self.segment_bytes // MIB} MiB of small batches",
        }
        return labels[shape]


class LoggedTopic(FanlogTopic):
    """A topic whose log is kept, in segments of a chosen size."""

    def __init__(
        self,
        segment_bytes: int,
        durability: DurabilityName = "os",
        record_bytes: int = RECORD_BYTES,
        records: int = RECORDS_A_BATCH,
    ) -> None:
        super().__init__(make_payload(record_bytes), records, durability, 1)
        self._segment_bytes = segment_bytes

    def prepare(self, publisher: socket.socket) -> None:
        greet(publisher)
        settings: dict[str, int | str] = {
            "durability": self._durability,
            "segment_bytes": self._segment_bytes,
        }
        ask(publisher, FrameKind.CREATE_TOPIC, CreateTopic(NAME, settings), msgspec.Raw)
        self._number = ask(publisher, FrameKind.OPEN_TOPIC, OpenTopic(NAME), TopicOpened).number


def fill(port: int, log_bytes: int, segment_bytes: int) -> int:
    """Publishes this many bytes of batches. Returns the number of records, verified."""
    wire = LoggedTopic(segment_bytes)
    with acked_load(wire, port, WINDOW_BATCHES * RECORDS_A_BATCH) as load:
        return load.fill(log_bytes // load.unit_bytes, FILL_TIMEOUT_S)


def fill_shape(port: int, shape: ShapeName, options: StartupOptions) -> int:
    """Publishes the content of a folder of this shape. Returns the records of the checked topic."""
    if shape == "topics":
        return fill_topics(port, options.topics)
    if shape == "segments":
        wire = LoggedTopic(SMALL_SEGMENT_BYTES, "fsync", SEGMENT_RECORD_BYTES, 1)
        log_bytes = options.segments * SEGMENT_LOG_BYTES
        # One at a time, because batches that come together share a segment.
        window = 1
    else:
        wire = LoggedTopic(options.segment_bytes, "os", SMALL_RECORD_BYTES, 1)
        log_bytes = options.segment_bytes - 1 * MIB
        window = WINDOW_BATCHES * RECORDS_A_BATCH
    with acked_load(wire, port, window) as load:
        return load.fill(log_bytes // load.unit_bytes, FILL_TIMEOUT_S)


def fill_topics(port: int, count: int) -> int:
    """Create topics with durability fsync, and publish a record to each."""
    settings: dict[str, int | str] = {"durability": "fsync"}
    values = [make_payload(RECORD_BYTES)]
    with connect(port) as sock:
        greet(sock)
        for i in range(count):
            # The last one is checked after each start.
            name = NAME if i == count - 1 else f"{NAME}-{i}"
            ask(sock, FrameKind.CREATE_TOPIC, CreateTopic(name, settings), msgspec.Raw)
            number = ask(sock, FrameKind.OPEN_TOPIC, OpenTopic(name), TopicOpened).number
            sock.sendall(encode_batch(values, topic=number, partition=0))
        while ask(sock, FrameKind.DESCRIBE_TOPIC, NamedTopic(NAME), TopicInfo).records < 1:
            time.sleep(POLL_S)
    return 1


@dataclass(slots=True)
class StartupCell:
    """A data folder with a log of one size, and the broker that is started on it."""

    directory: Path
    log_bytes: int
    cores: frozenset[int] | None
    shape: ShapeName | None = None
    label: str = ""
    records: int = 0
    segments: int = 0
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    start_ms: dict[After, list[float]] = field(default_factory=dict[After, list[float]])
    read_bytes: dict[After, list[int]] = field(default_factory=dict[After, list[int]])

    @property
    def name(self) -> str:
        """Its content, for people."""
        return self.label or f"a log of {self.log_bytes // MIB} MiB"

    def start(self) -> float:
        """Start the broker; seconds until its port took a connection."""
        self.port = free_port()
        output = self.directory / "output.txt"
        spec = SystemSpec("fanlog")
        command = fanlog_command(find_program("fanlog"), spec, self.port, self.directory)
        with output.open("wb") as file, affinity(self.cores):
            began = time.perf_counter()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        wait_until_listening(self.process, self.port, output, POLL_S)
        return time.perf_counter() - began

    def start_after(self, after: After) -> None:
        """Starts the broker, records the time, and checks that every record is there."""
        took_s = self.start()
        assert self.process is not None
        self.start_ms.setdefault(after, []).append(round(took_s * 1000, 1))
        self.read_bytes.setdefault(after, []).append(bytes_read(self.process.pid))
        if self.records:
            self.verify()

    def verify(self) -> None:
        """Checks that the broker has all acknowledged records."""
        with connect(self.port) as sock:
            greet(sock)
            topic = ask(sock, FrameKind.DESCRIBE_TOPIC, NamedTopic(NAME), TopicInfo)
        self.segments = sum(partition.segments for partition in topic.partitions)
        if topic.records != self.records:
            raise BenchError(f"{topic.records} of {self.records} records are there after a start")

    def end(self, how: signal.Signals) -> None:
        """Ends the process with this signal. Kills it if that has no effect."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def rows(self) -> list[StartupRow]:
        """A row for each kind of end of the broker."""
        return [
            StartupRow(
                log_bytes=self.log_bytes,
                shape=self.label,
                segments=self.segments,
                after=after,
                start_ms=round(statistics.median(runs), 1),
                read_bytes=int(statistics.median(self.read_bytes[after])),
                runs_ms=runs,
            )
            for after, runs in self.start_ms.items()
        ]


def bytes_read(pid: int) -> int:
    """Bytes that a process has read, from disk or from the kernel's cache."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    fields = dict(line.split(": ") for line in lines)
    return int(fields["rchar"])


def run_startup(options: StartupOptions, progress: BenchProgress = silent) -> StartupReport:
    """Fill a log of each size, then start brokers on them in turn.

    >>> run_startup(StartupOptions(sizes_bytes=(1 << 28, 1 << 30)))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    sizes = options.log_bytes()
    parent = options.directory or Path(tempfile.gettempdir())
    shapes = options.shape_bytes()
    check_room(parent, sum(sizes) + sum(shapes.values()))
    total = (len(sizes) + len(shapes)) * (options.repeat + 1)
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(load_process(cores.load))
        cells = [stack.enter_context(cell_in(parent, size, cores.system)) for size in sizes]
        for shape, log_bytes in shapes.items():
            cell = stack.enter_context(cell_in(parent, log_bytes, cores.system))
            cell.shape, cell.label = shape, options.shape_label(shape)
            cells.append(cell)
        for done, cell in enumerate(cells):
            progress(done, total, f"filling {cell.name}")
            cell.start()
            if cell.shape is not None:
                cell.records = load.call(fill_shape, cell.port, cell.shape, options)
            elif cell.log_bytes:
                cell.records = load.call(fill, cell.port, cell.log_bytes, options.segment_bytes)
            cell.end(signal.SIGKILL)
        for done, cell in enumerate(cells * options.repeat, start=len(cells)):
            progress(done, total, f"starting with {cell.name}")
            cell.start_after("kill")
            cell.end(signal.SIGTERM)
            cell.start_after("stop")
            cell.end(signal.SIGKILL)
        progress(total, total, "done")
        rows = [row for cell in cells for row in cell.rows()]
    rows.sort(key=lambda row: row.after)
    return StartupReport(rows=rows, left_out=[], environment=environment)


@contextlib.contextmanager
def cell_in(parent: Path, log_bytes: int, cores: frozenset[int] | None) -> Generator[StartupCell]:
    """A fresh folder under `parent`. It is removed with its broker at the end."""
    with tempfile.TemporaryDirectory(prefix="fanlog-bench-", dir=parent) as name:
        cell = StartupCell(Path(name), log_bytes, cores)
        try:
            yield cell
        finally:
            cell.end(signal.SIGKILL)


def check_room(parent: Path, log_bytes: int) -> None:
    """Checks that the logs fit on the disk, with room to spare. BenchError says what to do if
    not."""
    free = shutil.disk_usage(parent).free
    needed = int(log_bytes * ROOM_FACTOR) + ROOM_SPARE_BYTES
    if free < needed:
        raise BenchError(
            f"The logs need {needed // MIB} MiB, but {parent} has {free // MIB} MiB free: choose "
            "smaller sizes, or another directory."
        )
