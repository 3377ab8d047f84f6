"""Stall: what a reader that stops costs the others, and how it comes back from disk.

Law: the phases without, with and again without a stopped reader are one run against one broker, so
that they can be compared. In the end every reader, the stopped one too, must have received every
byte published since it subscribed.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from fanlog.bench.load import RECEIVE_BYTES_MAX, FanoutLoad, connected, window_units
from fanlog.bench.results import StallReport, StallRow, StallSample
from fanlog.bench.runner import BenchProgress, RunOptions, environment_of, load_process, silent
from fanlog.bench.startup import check_room
from fanlog.bench.systems import BenchError, SystemSpec, choose_cores, resident_bytes, started
from fanlog.bench.wires import make_payload
from fanlog.bench.wires.base import connect
from fanlog.bench.wires.fanlog import NAME, SUBSCRIPTION, FanlogFanout, ask, greet
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, credit_frame
from fanlog.format.messages import NamedTopic, Subscribe, Subscribed
from fanlog.model import TopicInfo

Phase: TypeAlias = Literal["without", "stopped", "catching up"]

# Each phase's share of the bytes that may be written, so that a fast machine does not fill the
# disk. The others run at full speed while the reader catches up, so that phase needs as much again.
SHARES: dict[Phase, float] = {"without": 0.07, "stopped": 0.41, "catching up": 0.45}
SAMPLE_S = 0.5
# While it catches up, the reader and the others take turns of this length in one process.
TURN_S = 0.001
RECEIVES_A_TURN = 4
KEEP_ALIVE_S = 10.0
CATCH_UP_SECONDS_MAX = 60.0
DRAIN_TIMEOUT_S = 30.0
RUN_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StallOptions(RunOptions):
    """What to measure; `repeat` is how often a reader stops. `run_s` is a phase without one."""

    subscribers: int = 100
    payload_bytes: int = 128
    batch: int = 64
    window_messages: int = 8192
    warmup_s: float = 1.0
    run_s: float = 5.0
    stop_s: float = 30.0
    log_bytes_max: int = 6 << 30

    def __post_init__(self) -> None:
        planned = self.run_s + self.repeat * (self.run_s + self.stop_s)
        if not 0 < planned <= RUN_SECONDS_MAX:
            raise BenchError(
                f"A run may be planned for at most {RUN_SECONDS_MAX:.0f} s, not {planned:.0f} s: "
                "choose shorter phases."
            )

    def phase_bytes_max(self, phase: Phase) -> int:
        """The most bytes written in one phase of this kind."""
        return int(self.log_bytes_max * SHARES[phase]) // self.repeat


class StallWire(FanlogFanout):
    """A durable topic with silent subscribers that can send pings."""

    def __init__(self, payload: bytes, batch: int) -> None:
        super().__init__(payload, batch, "os")
        self._listening: Sequence[socket.socket] = ()

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        super().prepare(publisher, subscribers)
        self._listening = subscribers

    def keep_alive(self) -> None:
        """The broker disconnects a peer that is silent for a minute. This frame has no answer."""
        for sock in self._listening:
            sock.send(credit_frame(SUBSCRIPTION, 0))


class StoppedReader:
    """One more subscriber, which reads only on request."""

    def __init__(self, port: int, load: FanoutLoad, unit_bytes: int) -> None:
        self._load = load
        self._unit_bytes = unit_bytes
        self._units_before = load.published_units()
        self._scratch = bytearray(RECEIVE_BYTES_MAX)
        self.received_bytes = 0
        self.sock = connect(port)
        greet(self.sock)
        wanted = Subscribe(target=NAME)
        ask(self.sock, FrameKind.SUBSCRIBE, wanted, Subscribed, aux=SUBSCRIPTION)
        self.sock.setblocking(False)

    def due_bytes(self) -> int:
        """Bytes published since it subscribed, after the frame that answers it."""
        units = self._load.published_units() - self._units_before
        return units * self._unit_bytes + (FRAME_HEADER_BYTES if units else 0)

    def behind_bytes(self) -> int:
        """Published bytes that it has not received."""
        return max(0, self.due_bytes() - self.received_bytes)

    def keep_alive(self) -> None:
        """A stopped reader is not gone: a client that is busy with a message still pings."""
        self.sock.send(credit_frame(SUBSCRIPTION, 0))

    def take(self) -> None:
        """Receives what has come, without waiting for more."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(RECEIVES_A_TURN):
                size = self.sock.recv_into(self._scratch, RECEIVE_BYTES_MAX, socket.MSG_TRUNC)
                if not size:
                    raise BenchError("the broker closed the stopped reader's connection")
                self.received_bytes += size

    def drain(self) -> None:
        """Receives the rest after the last publish, and checks the count."""
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        while self.behind_bytes() and time.perf_counter() < deadline:
            self.take()
            time.sleep(TURN_S)
        # Surplus bytes would come now.
        self.take()
        if self.received_bytes != self.due_bytes():
            raise BenchError(
                f"the stopped reader received {self.received_bytes} bytes of {self.due_bytes()}"
            )


@dataclass(slots=True)
class StallRun:
    """A run in progress: the load, and what was seen of it."""

    load: FanoutLoad
    wire: StallWire
    port: int
    pid: int
    options: StallOptions
    began: float = field(default_factory=time.perf_counter)
    kept_alive: float = field(default_factory=time.perf_counter)
    rows: list[StallRow] = field(default_factory=list[StallRow])
    samples: list[StallSample] = field(default_factory=list[StallSample])

    def without(self) -> None:
        """A phase in which nobody is stopped."""
        self.phase("without", self.options.run_s, None)
        self.load.drain()

    def with_stopped(self) -> None:
        """A reader that subscribes, stops, and catches up while the others continue."""
        with stopped_reader(self.port, self.load, self.wire.received_bytes) as reader:
            self.phase("stopped", self.options.stop_s, reader)
            self.phase("catching up", CATCH_UP_SECONDS_MAX, reader)
            self.load.drain()
            reader.drain()

    def phase(self, phase: Phase, seconds: float, reader: StoppedReader | None) -> None:
        """Pumps for a time, or until enough is written or the reader has caught up."""
        began = now = time.perf_counter()
        received, published = self.load.received_bytes(), self.published_bytes()
        read = reader.received_bytes if reader else 0
        first_sample = len(self.samples)
        bytes_max = published + self.options.phase_bytes_max(phase)
        caught_up = False
        while now < began + seconds and self.published_bytes() < bytes_max and not caught_up:
            now = self.sample(phase, now, min(now + SAMPLE_S, began + seconds), reader)
            caught_up = phase == "catching up" and self.caught_up(reader)
        resident = max(sample.resident_bytes for sample in self.samples[first_sample:])
        self.rows.append(
            StallRow(
                phase=phase,
                seconds=round(now - began, 3),
                delivered_per_s=round(self.rate(received, now - began), 1),
                published_bytes=self.published_bytes() - published,
                reader_bytes=reader.received_bytes - read if reader else 0,
                resident_bytes_max=resident,
                caught_up=caught_up,
            )
        )

    def sample(
        self, phase: Phase, began: float, until: float, reader: StoppedReader | None
    ) -> float:
        """Pumps for a moment and records it. Returns the time of its end."""
        received = self.load.received_bytes()
        now = began
        if reader is not None and phase == "catching up":
            while now < until and not self.caught_up(reader):
                reader.take()
                now = self.load.pump(min(now + TURN_S, until))
        else:
            now = self.load.pump(until)
        self.keep_alive(now, reader)
        self.samples.append(
            StallSample(
                at_s=round(now - self.began, 3),
                phase=phase,
                delivered_per_s=round(self.rate(received, now - began), 1),
                behind_bytes=reader.behind_bytes() if reader else 0,
                resident_bytes=resident_bytes(self.pid),
            )
        )
        return now

    def caught_up(self, reader: StoppedReader | None) -> bool:
        """Whether the reader is no further behind than any other may be."""
        options = self.options
        units = window_units(self.wire, options.subscribers, options.window_messages)
        return reader is not None and reader.behind_bytes() <= units * self.wire.received_bytes

    def keep_alive(self, now: float, reader: StoppedReader | None) -> None:
        """Sends pings for all idle listeners, now and then."""
        if now - self.kept_alive < KEEP_ALIVE_S:
            return
        self.kept_alive = now
        self.wire.keep_alive()
        if reader is not None:
            reader.keep_alive()

    def published_bytes(self) -> int:
        """The bytes written so far."""
        return self.load.published_units() * self.wire.received_bytes

    def rate(self, received_before: int, seconds: float) -> float:
        """Deliveries per second to the others since a given count."""
        units = (self.load.received_bytes() - received_before) / self.wire.received_bytes
        return units * self.wire.messages / max(seconds, 1e-9)


@contextlib.contextmanager
def stopped_reader(port: int, load: FanoutLoad, unit_bytes: int) -> Generator[StoppedReader]:
    """A reader. Its socket is closed at the end in any case."""
    reader = StoppedReader(port, load, unit_bytes)
    try:
        yield reader
    finally:
        reader.sock.close()


def run_stall(options: StallOptions, progress: BenchProgress = silent) -> StallReport:
    """Measure the others' rate without a stopped reader, with one, and without again.

    >>> run_stall(StallOptions(subscribers=10, stop_s=5))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    label = f"{options.subscribers} subscribers, one more stops for {options.stop_s:.0f} s"
    check_room(options.directory or Path(tempfile.gettempdir()), options.log_bytes_max)
    progress(0, 1, label)
    with (
        load_process(cores.load) as load,
        started(SystemSpec("fanlog"), cores.system, options.directory) as system,
    ):
        rows, samples, catch_ups = load.call(generate, options, system.port, system.pid)
    progress(1, 1, "done")
    return StallReport(
        rows=rows,
        subscribers=options.subscribers,
        payload=options.payload_bytes,
        batch=options.batch,
        ratio=round(ratio_of(rows), 3),
        resident_bytes_before=rows[0].resident_bytes_max,
        catch_ups=catch_ups,
        samples=samples,
        left_out=[],
        environment=environment,
    )


def generate(
    options: StallOptions, port: int, pid: int
) -> tuple[list[StallRow], list[StallSample], int]:
    """What the load process does: all phases, and at last the topic's count of catch-ups."""
    wire = StallWire(make_payload(options.payload_bytes), options.batch)
    with connected(wire, port, options.subscribers, options.window_messages) as load:
        load.pump(time.perf_counter() + options.warmup_s)
        load.drain()
        run = StallRun(load, wire, port, pid, options)
        run.without()
        for _ in range(options.repeat):
            run.with_stopped()
            run.without()
        # One unit was sent before the load, to prepare its connections.
        messages = (load.published_units() + 1) * wire.messages
    return run.rows, run.samples, verified_catch_ups(port, messages)


def verified_catch_ups(port: int, messages: int) -> int:
    """The topic's catch-ups. Checks that it stored everything and that no reader lost anything."""
    with connect(port) as sock:
        greet(sock)
        topic = ask(sock, FrameKind.DESCRIBE_TOPIC, NamedTopic(NAME), TopicInfo)
    taken = sum(partition.visible_end for partition in topic.partitions)
    if taken != messages:
        raise BenchError(f"{messages} messages were published, but {taken} were taken")
    counters = topic.counters
    if counters.lost_records or counters.skipped_records:
        raise BenchError(f"readers missed records: {counters}")
    return counters.catch_ups


def ratio_of(rows: list[StallRow]) -> float:
    """The ratio of the rate with a stopped reader to the mean of the rates before and after."""
    stopped = [number for number, row in enumerate(rows) if row.phase == "stopped"]
    ratios: list[float] = []
    for number in stopped:
        # The phase in which the reader catches up counts for neither.
        without = rows[number - 1].delivered_per_s + rows[number + 2].delivered_per_s
        ratios.append(rows[number].delivered_per_s / (without / 2))
    return statistics.median(ratios)
