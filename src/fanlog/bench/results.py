"""What benchmarks report: plain rows, the environment, and what was left out and why.

Law: a report is complete in itself and survives JSON unchanged, so that tables and plots are made
from the same thing, now or later. The field `benchmark` says which report a file holds.

It is long because it is a list: each benchmark has a row and a report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from fanlog.bench.environment import Environment
from fanlog.bench.systems import BenchError

GroupsPart = Literal["publishing", "reading", "acking"]


class LeftOut(msgspec.Struct, frozen=True):
    """A system that was not measured, and the sentence that says why."""

    system: str
    reason: str


class FanoutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher to N subscribers, which `discard` or `copy` what they receive.

    `runs` has each repetition's deliveries per second. `system_ns` is the system's time on a core
    for one delivery.
    """

    system: str
    batch: int
    subscribers: int
    payload: int
    receive: str
    published_per_s: float
    delivered_per_s: float
    runs: list[float]
    listener: str = "native"
    tls: bool = False
    system_ns: float = 0.0


class FanoutReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="fanout"):
    """Deliveries per second by number of subscribers."""

    rows: list[FanoutRow]
    left_out: list[LeftOut]
    environment: Environment


class LatencyRow(msgspec.Struct, frozen=True, kw_only=True):
    """From publish until the last of N subscribers has the message, one message at a time."""

    system: str
    subscribers: int
    payload: int
    samples: int
    p50_us: float
    p99_us: float
    p999_us: float
    listener: str = "native"


class LatencyReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="latency"
):
    """Latency by number of subscribers."""

    rows: list[LatencyRow]
    left_out: list[LeftOut]
    environment: Environment


class RateRow(msgspec.Struct, frozen=True, kw_only=True):
    """From a message's scheduled time until the last of N subscribers has it, at a fixed rate.

    `sent_p99_us` is how late the generator itself sent, which is part of the other figures.
    `arrived_per_s` is below the rate where the system did not keep up. `runs_p99_us` has each
    repetition.
    """

    system: str
    subscribers: int
    rate: int
    payload: int
    samples: int
    p50_us: float
    p99_us: float
    p999_us: float
    worst_us: float
    sent_p99_us: float
    arrived_per_s: float
    runs_p99_us: list[float]


class RateReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="rate"):
    """Latency at fixed publish rates by number of subscribers."""

    rows: list[RateRow]
    left_out: list[LeftOut]
    environment: Environment


class PublishersRow(msgspec.Struct, frozen=True, kw_only=True):
    """A number of connections. Each waits for the answer to one publish, or to a pipeline of them,
    before the next. `cpu_us` is the system's processor time for a message, `busy` the share of a
    core that it used. `runs` has each repetition's messages per second."""

    system: str
    connections: int
    subscribers: int
    pipeline: int
    payload: int
    published_per_s: float
    cpu_us: float
    busy: float
    runs: list[float]


class PublishersReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="publishers"
):
    """Answered publishes per second by number of connections."""

    rows: list[PublishersRow]
    left_out: list[LeftOut]
    environment: Environment


class DurableRow(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledged publishes over one connection with a window of unacknowledged messages."""

    system: str
    durability: str
    synced: bool
    partitions: int
    batch: int
    window: int
    payload: int
    acknowledged_per_s: float
    runs: list[float]


class DurableReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="durable"
):
    """Acknowledged publishes per second by promise."""

    rows: list[DurableRow]
    left_out: list[LeftOut]
    environment: Environment


class ClientsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A publishing and a receiving Python process, message by message."""

    system: str
    client: str
    messages: int
    payload: int
    messages_per_s: float
    runs: list[float]


class ClientsReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="clients"
):
    """Messages per second from Python client to Python client."""

    rows: list[ClientsRow]
    left_out: list[LeftOut]
    environment: Environment


class EmbeddedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A broker and its subscribers in one process; `iteration` is `messages` or `batches`."""

    iteration: str
    subscribers: int
    messages: int
    payload: int
    published_per_s: float
    delivered_per_s: float
    runs: list[float]


class EmbeddedReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="embedded"
):
    """Messages per second through a broker inside the application's own process."""

    rows: list[EmbeddedRow]
    left_out: list[LeftOut]
    environment: Environment


class StallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: what the others, and the stopped reader, received in it. `caught_up`: whether the
    reader had everything but the window before the end of the phase.
    """

    phase: str
    seconds: float
    delivered_per_s: float
    published_bytes: int
    reader_bytes: int
    resident_bytes_max: int
    caught_up: bool = False


class StallSample(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the run: the rate of the others, and the reader's lag."""

    at_s: float
    phase: str
    delivered_per_s: float
    behind_bytes: int
    resident_bytes: int


class StallReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="stall"):
    """The others' rate while one reader is stopped, and how that reader catches up.

    `ratio` is the others' rate with a stopped reader to their rate without, before and after.
    """

    rows: list[StallRow]
    subscribers: int
    payload: int
    batch: int
    ratio: float
    resident_bytes_before: int
    catch_ups: int
    samples: list[StallSample]
    left_out: list[LeftOut]
    environment: Environment


class StallsRow(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of a client's pings, from an operation's request until a moment after its answer,
    and the seconds of the operation. `step_ms` is the CPU time of the longest call of the broker's
    event loop, where that was measured."""

    operation: str
    seconds: float
    pings: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    step_ms: float | None = None


class StallsReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="stalls"):
    """How long other clients wait while the broker works. The first row is a broker at rest."""

    rows: list[StallsRow]
    left_out: list[LeftOut]
    environment: Environment


class TopicsRow(msgspec.Struct, frozen=True, kw_only=True):
    """One broker with a number of topics of one reader each, and publishing to one of them.
    `resident_bytes` is the broker's growth; with few topics, a share of it means nothing.
    """

    topics: int
    payload: int
    setup_s: float
    resident_bytes: int
    bytes_per_topic: float | None
    p50_us: float
    published_per_s: float
    p50_runs_us: list[float]
    runs: list[float]


class TopicsReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="topics"):
    """Memory and the cost of publishing by number of topics."""

    rows: list[TopicsRow]
    left_out: list[LeftOut]
    environment: Environment


class IdleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A number of connections that follow a silent topic. `resident_bytes` is the broker's growth.
    `reached_ms` is the time of one message to all.
    """

    listener: str
    connections: int
    setup_s: float
    resident_bytes: int
    bytes_per_connection: float
    reached_ms: float


class IdleReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="idle"):
    """Memory by number of idle connections."""

    rows: list[IdleRow]
    left_out: list[LeftOut]
    environment: Environment


class StartupRow(msgspec.Struct, frozen=True, kw_only=True):
    """From a broker's process to its port, with a log of this size; `after` is `kill` or `stop`.
    `shape` says what else the folder holds, where that is not one log in large batches.

    `read_bytes` is all that the process read until then, its own program included.
    """

    log_bytes: int
    shape: str = ""
    segments: int
    after: str
    start_ms: float
    read_bytes: int
    runs_ms: list[float]


class StartupReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="startup"
):
    """Start-up time by size of the log and by the broker's last end."""

    rows: list[StartupRow]
    left_out: list[LeftOut]
    environment: Environment


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that waited over a kill of the broker, and some that fell due within a second.

    `known_ms` is from the process until it knew all that waits, and `bytes_per_message` what it
    held of memory for each then. `late_*` is from the due time until a reader had the message.
    """

    pending: int
    due: int
    payload: int
    scheduled_per_s: float
    bytes_per_message: float
    port_ms: float
    known_ms: float
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float
    lost: int
    early: int
    twice: int


class ScheduleReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="schedule"
):
    """Delayed messages: how fast they are scheduled, what they cost, and how late they come."""

    rows: list[ScheduleRow]
    left_out: list[LeftOut]
    environment: Environment


class GroupsRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of processes published, read or acked together. `beside` is the `how` of the
    row to compare with, of the same part and number of processes; their runs took turns."""

    part: GroupsPart
    system: str
    how: str
    processes: int
    payload: int
    messages_per_s: float
    runs: list[float]
    beside: str = ""


class GroupsReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="groups"):
    """The cost of groups, queues and exactly-once publishing, compared with others."""

    rows: list[GroupsRow]
    left_out: list[LeftOut]
    environment: Environment


class EdgesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A number of readers on `edges` edges; with 0, on the broker itself. `broker_us` is the
    broker's time on a core for a message, in microseconds."""

    edges: int
    readers: int
    messages: int
    payload: int
    broker_us: float
    messages_per_s: float
    runs: list[float]


class EdgesReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="edges"):
    """What a message costs the broker, with readers of its own and with edges."""

    rows: list[EdgesRow]
    left_out: list[LeftOut]
    environment: Environment


class CoresFanoutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher to N subscribers of a broker with so many workers. `core_s` and `workers_s` are
    the seconds that the first process, and each worker, was on a core for a million deliveries."""

    workers: int
    batch: int
    subscribers: int
    payload: int
    published_per_s: float
    delivered_per_s: float
    core_s: float
    workers_s: list[float]
    runs: list[float]


class CoresPublishRow(msgspec.Struct, frozen=True, kw_only=True):
    """redis-benchmark, publishing to nobody: `core_s` and `workers_s` are for a million
    messages."""

    system: str
    workers: int
    connections: int
    pipeline: int
    payload: int
    published_per_s: float
    core_s: float
    workers_s: list[float]
    runs: list[float]


class CoresReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="cores"):
    """A broker with and without workers. `publishing` may be empty."""

    rows: list[CoresFanoutRow]
    publishing: list[CoresPublishRow]
    left_out: list[LeftOut]
    environment: Environment


class OverheadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A broker without logins, metrics, audit log and traces beside one with them. With 0
    subscribers a publisher waits for acknowledgements; else messages are delivered. `ratio` is the
    median of the pairs of slices. `off_ns` and `on_ns` are what a published message cost the broker
    on its core, which depends less on what else the machine does."""

    features: list[str]
    subscribers: int
    batch: int
    payload: int
    off_per_s: float
    on_per_s: float
    off_ns: float
    on_ns: float
    sampled_per_s: float
    ratio: float
    ratios: list[float]


class OverheadReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="overhead"
):
    """What security and telemetry cost, by what is done."""

    rows: list[OverheadRow]
    left_out: list[LeftOut]
    environment: Environment


class SparkRow(msgspec.Struct, frozen=True, kw_only=True):
    """Records a second in one way; for the idle stream, milliseconds of one check for new
    records."""

    how: str
    payload: int
    records_per_s: float
    micro_batch_ms: float
    runs: list[float]


class SparkReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="benchmark", tag="spark"):
    """A log read and written by Spark. The first row is the ceiling, the second the batch."""

    rows: list[SparkRow]
    left_out: list[LeftOut]
    environment: Environment


Report = (
    FanoutReport
    | LatencyReport
    | RateReport
    | PublishersReport
    | DurableReport
    | ClientsReport
    | EmbeddedReport
    | StallReport
    | StallsReport
    | TopicsReport
    | IdleReport
    | StartupReport
    | ScheduleReport
    | GroupsReport
    | SparkReport
    | EdgesReport
    | CoresReport
    | OverheadReport
)


def to_json(report: Report) -> bytes:
    """The report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def save_report(report: Report, path: Path) -> None:
    """Write the report's JSON to a file."""
    path.write_bytes(to_json(report))


def load_report(path: Path) -> Report:
    """Read a report that `save_report` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.MsgspecError as error:
        raise BenchError(f"{path} is not a benchmark's report: {error}.") from error
