"""Topics: a channel for each of very many users, each with one reader: what one costs in memory,
and whether publishing to one of them notices the others.

Law: brokers with few and with many topics are up at the same time and are measured in turn, so that
their ratio is not two moods of the machine; nothing is on disk.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fanlog.bench.latency import percentile_us
from fanlog.bench.load import FanoutLoad, connected, measure_fanout, measure_latency
from fanlog.bench.results import TopicsReport, TopicsRow
from fanlog.bench.runner import BenchProgress, TimedOptions, environment_of, load_process, silent
from fanlog.bench.systems import (
    BenchError,
    SystemSpec,
    choose_cores,
    resident_bytes,
    started,
)
from fanlog.bench.wires import make_payload
from fanlog.bench.wires.fanlog import (
    FRAME_BYTES_MAX,
    FanlogFanout,
    ask,
    greet,
    refusal,
    skip_until,
)
from fanlog.config import ListenerOptions
from fanlog.format.batch import encode_batch
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    FrameCutter,
    FrameKind,
    credit_frame,
    message_frame,
)
from fanlog.format.messages import OpenTopic, Subscribe, TopicOpened

# Subscriptions requested at a time. Their answers fit into the sockets' buffers.
PIPELINED = 500
RECEIVE_BYTES = 256 << 10
# With fewer topics, most of the broker's growth comes from connections.
TOPICS_SHARED_MIN = 1000
TOPICS_MAX = ListenerOptions().subscriptions_max


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsOptions(TimedOptions):
    """What to measure; each of `repeat` rounds publishes for `run_s`, after as many samples."""

    topics: tuple[int, ...] = (10, 1000, 10_000, 100_000)
    payload_bytes: int = 128
    window_messages: int = 8192
    samples_max: int = 5000
    repeat: int = 5
    warmup_s: float = 0.2
    run_s: float = 1.0

    def __post_init__(self) -> None:
        # Not super(): in a class with slots it does not work without arguments.
        TimedOptions.__post_init__(self)
        if not self.topics or not 0 < max(self.topics) <= TOPICS_MAX:
            raise BenchError(
                f"One connection holds 1 to {TOPICS_MAX} subscriptions: choose fewer topics."
            )


class UserTopics(FanlogFanout):
    """One-message batches to one of many topics. One connection reads all of them."""

    def __init__(self, payload: bytes, topics: int, pid: int) -> None:
        super().__init__(payload, 1)
        self.topics = topics
        self.setup_s = 0.0
        self.resident_bytes = 0
        self._pid = pid
        self._connections: list[socket.socket] = []

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        (reader,) = subscribers
        self._connections = [publisher, reader]
        for sock in self._connections:
            greet(sock)
        before = resident_bytes(self._pid)
        began = time.perf_counter()
        subscribe_all(reader, self.topics)
        self.setup_s = time.perf_counter() - began
        self.resident_bytes = resident_bytes(self._pid) - before
        opening = OpenTopic(topic_name(self.topics // 2), create=False)
        number = ask(publisher, FrameKind.OPEN_TOPIC, opening, TopicOpened).number
        self._unit = encode_batch(self._values, topic=number)
        # One batch in advance: the broker sends a header before the first, and only then.
        publisher.sendall(self._unit)
        skip_until(publisher, FrameKind.ACK)
        skip_until(reader, FrameKind.BATCH)

    def keep_alive(self) -> None:
        """The broker disconnects a peer that is silent for a minute. This frame has no answer."""
        for sock in self._connections:
            sock.send(credit_frame(1, 0))


def topic_name(number: int) -> str:
    """A user's channel."""
    return f"user.{number}"


def subscribe_all(sock: socket.socket, topics: int) -> None:
    """Creates every user's channel and subscribes to it, some at a time."""
    cutter = FrameCutter(FRAME_BYTES_MAX)
    for first in range(0, topics, PIPELINED):
        numbers = range(first, min(first + PIPELINED, topics))
        sock.sendall(b"".join(begin_frames(number) for number in numbers))
        waiting = 2 * len(numbers)
        while waiting:
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise BenchError("the broker closed the reader's connection")
            for kind, data, begin, end in cutter.cut(received):
                if kind != FrameKind.OK:
                    raise refusal(kind, data[begin + FRAME_HEADER_BYTES : end])
                waiting -= 1


def begin_frames(number: int) -> bytes:
    """The requests for one channel; a subscription's number is never 0."""
    name, request = topic_name(number), 2 * number + 1
    opened = message_frame(FrameKind.OPEN_TOPIC, OpenTopic(name), request=request)
    wanted = Subscribe(target=name)
    follow = message_frame(FrameKind.SUBSCRIBE, wanted, request=request + 1, aux=number + 1)
    return opened + follow


@dataclass(frozen=True, slots=True)
class TopicsBroker:
    """A started broker, and the number of its topics."""

    topics: int
    port: int
    pid: int


@dataclass(slots=True)
class TopicsCell:
    """A broker with its topics, its load, and the results of each round."""

    wire: UserTopics
    load: FanoutLoad
    p50_us: list[float] = field(default_factory=list[float])
    published_per_s: list[float] = field(default_factory=list[float])

    def measure(self, options: TopicsOptions) -> None:
        """One round: messages one by one, then at full speed."""
        samples = measure_latency(self.load, options.warmup_s, options.run_s, options.samples_max)
        self.p50_us.append(percentile_us(samples, 0.5))
        counts = measure_fanout(self.load, self.wire, options.warmup_s, options.run_s)
        self.published_per_s.append(round(counts.delivered_per_s, 1))

    def row(self, options: TopicsOptions) -> TopicsRow:
        """The medians of all rounds."""
        wire = self.wire
        shared = wire.topics >= TOPICS_SHARED_MIN
        return TopicsRow(
            topics=wire.topics,
            payload=options.payload_bytes,
            setup_s=round(wire.setup_s, 3),
            resident_bytes=wire.resident_bytes,
            bytes_per_topic=round(wire.resident_bytes / wire.topics, 1) if shared else None,
            p50_us=round(statistics.median(self.p50_us), 1),
            published_per_s=round(statistics.median(self.published_per_s), 1),
            p50_runs_us=self.p50_us,
            runs=self.published_per_s,
        )


def run_topics(options: TopicsOptions, progress: BenchProgress = silent) -> TopicsReport:
    """Starts a broker for each number of topics, and measures them in turn.

    >>> run_topics(TopicsOptions(topics=(10, 1000)))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    numbers = sorted(set(options.topics))
    progress(0, 1, f"brokers with {', '.join(map(str, numbers))} topics, in turn")
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(load_process(cores.load))
        brokers: list[TopicsBroker] = []
        for topics in numbers:
            spec = SystemSpec("fanlog", "memory")
            system = stack.enter_context(started(spec, cores.system, options.directory))
            brokers.append(TopicsBroker(topics, system.port, system.pid))
        rows = load.call(generate, options, brokers)
    progress(1, 1, "done")
    return TopicsReport(rows=rows, left_out=[], environment=environment)


def generate(options: TopicsOptions, brokers: list[TopicsBroker]) -> list[TopicsRow]:
    """Runs in the load process: prepares all brokers, then measures them round by round."""
    payload = make_payload(options.payload_bytes)
    cells: list[TopicsCell] = []

    def keep_alive() -> None:
        for cell in cells:
            cell.wire.keep_alive()

    with contextlib.ExitStack() as stack:
        for broker in brokers:
            wire = UserTopics(payload, broker.topics, broker.pid)
            load = connected(wire, broker.port, 1, options.window_messages)
            cells.append(TopicsCell(wire, stack.enter_context(load)))
            keep_alive()
        for _ in range(options.repeat):
            for cell in cells:
                cell.measure(options)
                keep_alive()
    return [cell.row(options) for cell in cells]
