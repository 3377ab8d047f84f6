"""Tables and progress bars for the terminal, made with Rich from a report and nothing else.

Law: a table shows what the report has; a ratio is made here from two of its rows.

It is long because each report has a table of its own.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Generator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from fanlog.bench.cores_report import cores_tables
from fanlog.bench.environment import Environment
from fanlog.bench.figures import count, new_table, size, system_label, times
from fanlog.bench.port_report import publishers_table, rate_table
from fanlog.bench.results import (
    ClientsReport,
    ClientsRow,
    CoresReport,
    DurableReport,
    EdgesReport,
    EmbeddedReport,
    FanoutReport,
    FanoutRow,
    GroupsPart,
    GroupsReport,
    GroupsRow,
    IdleReport,
    LatencyReport,
    LeftOut,
    OverheadReport,
    PublishersReport,
    RateReport,
    Report,
    ScheduleReport,
    SparkReport,
    SparkRow,
    StallReport,
    StallsReport,
    StartupReport,
    StartupRow,
    TopicsReport,
)
from fanlog.bench.runner import BenchProgress
from fanlog.bench.systems import WEB_LISTENERS

REFRESH_PER_S = 4
COMPARED = {"redis": "Redis", "nats": "NATS", "aiohttp": "aiohttp", "websockets": "websockets"}
RECEIVED = {"copy": "take the bytes", "discard": "leave the bytes in the kernel"}
GROUPS_TITLES: dict[GroupsPart, str] = {
    "publishing": "Exactly-once publishing, to disk without fsync",
    "reading": "Reading a backlog, processes not pinned",
    "acking": "A queue: jobs acked, processes not pinned",
}
GROUPS_RATIOS: dict[GroupsPart, str] = {
    "publishing": "to plain",
    "reading": "to readers",
    "acking": "to msg.ack()",
}


def render(report: Report) -> RenderableType:
    """The report's table, what was left out, and where it ran; print it with a Rich console."""
    table = _TABLES[type(report)](report)
    notes = [left_out_note(left) for left in report.left_out]
    return Group(table, *notes, environment_note(report.environment))


@contextlib.contextmanager
def progress_bar(title: str, console: Console | None = None) -> Generator[BenchProgress]:
    """A progress bar to hand to `run_fanout` and its like.

    >>> with progress_bar("fanout") as progress:  # doctest: +SKIP
    ...     report = run_fanout(FanoutOptions(), progress)
    """
    columns = (
        TextColumn("[bold]{task.fields[title]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = RichProgress(*columns, console=console, refresh_per_second=REFRESH_PER_S, transient=True)
    with bar:
        task = bar.add_task("", total=None, title=title)

        def advance(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield advance


def fanout_table(report: FanoutReport) -> Table:
    """Deliveries, and how they compare at the same number of subscribers. With TLS also what a
    delivery costs the system, because readers that decrypt on one core are slower than it is."""
    is_web = any(row.listener in WEB_LISTENERS for row in report.rows)
    costs = any(row.tls for row in report.rows)
    others = ("aiohttp", "websockets") if is_web else ("redis",) if costs else ("redis", "nats")
    table = new_table(
        fanout_title(report),
        "system",
        "subscribers",
        "published/s",
        "delivered/s",
        *(f"to {COMPARED[other]}" for other in others),
        *(["system ns/delivery"] if costs else []),
    )
    before = None
    for row in report.rows:
        if before is not None and row.subscribers != before:
            table.add_section()
        before = row.subscribers
        compared = [other for other in report.rows if other.tls == row.tls]
        table.add_row(
            system_label(row.system, row.batch, row.listener) + (", TLS" if row.tls else ""),
            f"{row.subscribers}",
            count(row.published_per_s),
            count(row.delivered_per_s),
            *(
                times(row.delivered_per_s, delivered_by(compared, other, row.subscribers))
                for other in others
            ),
            *([f"{row.system_ns:,.0f}"] if costs else []),
        )
    return table


def fanout_title(report: FanoutReport) -> str:
    """Messages published and received."""
    if not report.rows:
        return "Fan-out"
    row = report.rows[0]
    return f"Fan-out: {row.payload}-byte messages, readers {RECEIVED[row.receive]}"


def delivered_by(rows: list[FanoutRow], system: str, subscribers: int) -> float | None:
    """The system's deliveries to this many subscribers, if measured."""
    for row in rows:
        if row.system == system and row.subscribers == subscribers:
            return row.delivered_per_s
    return None


def latency_table(report: LatencyReport) -> Table:
    """Percentiles in microseconds."""
    table = new_table(
        "Latency to the last subscriber, in µs",
        "system",
        "subscribers",
        "p50",
        "p99",
        "p99.9",
        "samples",
    )
    before = None
    for row in report.rows:
        if before is not None and row.subscribers != before:
            table.add_section()
        before = row.subscribers
        table.add_row(
            row.system if row.listener == "native" else system_label(row.system, 1, row.listener),
            f"{row.subscribers}",
            f"{row.p50_us:,.0f}",
            f"{row.p99_us:,.0f}",
            f"{row.p999_us:,.0f}",
            f"{row.samples}",
        )
    return table


def durable_table(report: DurableReport) -> Table:
    """Acknowledged publishes, by window."""
    table = new_table(
        "Durable publishing: acknowledged messages per second, one connection",
        "system",
        "durability",
        "synced",
        "window",
        "acknowledged/s",
    )
    table.columns[1].justify = "left"
    before = None
    for row in report.rows:
        if before is not None and row.window != before:
            table.add_section()
        before = row.window
        table.add_row(
            system_label(row.system, row.batch),
            row.durability,
            "yes" if row.synced else "no",
            f"{row.window}",
            count(row.acknowledged_per_s),
        )
    return table


def clients_table(report: ClientsReport) -> Table:
    """Messages per second between Python programs."""
    table = new_table(
        "Python client to Python client, message by message",
        "client",
        "messages",
        "messages/s",
        "to redis-py",
        "to nats-py",
    )
    for row in report.rows:
        table.add_row(
            row.client,
            f"{row.messages}",
            count(row.messages_per_s),
            times(row.messages_per_s, rate_of(report.rows, "redis")),
            times(row.messages_per_s, rate_of(report.rows, "nats")),
        )
    return table


def rate_of(rows: list[ClientsRow], system: str) -> float | None:
    """The rate of a system's client, if measured."""
    return next((row.messages_per_s for row in rows if row.system == system), None)


def embedded_table(report: EmbeddedReport) -> Table:
    """Messages per second inside one process."""
    table = new_table(
        "Embedded broker: one process",
        "subscribers iterate over",
        "subscribers",
        "published/s",
        "delivered/s",
    )
    for row in report.rows:
        table.add_row(
            row.iteration,
            f"{row.subscribers}",
            count(row.published_per_s),
            count(row.delivered_per_s),
        )
    return table


def edges_table(report: EdgesReport) -> Table:
    """The cost of a message for the broker, compared with the case without edges."""
    table = new_table(
        "Edges: what a message costs the broker",
        "readers",
        "edges",
        "broker's CPU per message",
        "of direct",
    )
    direct = report.rows[0].broker_us
    for row in report.rows:
        table.add_row(
            f"{row.readers:,} direct" if not row.edges else f"{row.readers:,} through edges",
            f"{row.edges}" if row.edges else "–",
            f"{row.broker_us:,.0f} µs",
            f"{row.broker_us / direct:.3f}×",
        )
    return table


def overhead_table(report: OverheadReport) -> Table:
    """Messages a second without and with all features, and the ratio."""
    table = new_table(
        "Overhead: with " + ", ".join(report.rows[0].features),
        "what",
        "off",
        "on",
        "sampled",
        "on / off",
        "from – to",
        "by CPU time",
    )
    for row in report.rows:
        to = f"delivered to {row.subscribers:,}" if row.subscribers else "published, acknowledged"
        table.add_row(
            f"{to}, {row.batch} a batch",
            f"{count(row.off_per_s)}/s",
            f"{count(row.on_per_s)}/s",
            f"{count(row.sampled_per_s)}/s",
            f"{row.ratio:.3f}×",
            f"{min(row.ratios):.3f} – {max(row.ratios):.3f}",
            f"{row.off_ns / row.on_ns:.3f}×" if row.on_ns else "–",
        )
    return table


def stall_table(report: StallReport) -> Table:
    """Phase by phase; what the stopped reader received while it caught up, and how fast."""
    table = new_table(
        stall_title(report),
        "phase",
        "seconds",
        "others/s",
        "published",
        "reader received",
        "reader/s",
        "broker's memory",
    )
    for row in report.rows:
        caught_up = row.phase != "catching up" or row.caught_up
        table.add_row(
            row.phase if caught_up else f"{row.phase}, cut short",
            f"{row.seconds:.1f}",
            count(row.delivered_per_s),
            size(row.published_bytes),
            size(row.reader_bytes),
            size(row.reader_bytes / max(row.seconds, 0.001)),
            size(row.resident_bytes_max),
        )
    return table


def stall_title(report: StallReport) -> str:
    """The stopped reader, the number of others, and how much the others lost."""
    return (
        f"A stopped reader beside {report.subscribers} others. While it stood still, they had "
        f"{report.ratio:.1%} of their mean rate before and after; "
        f"catch-ups from disk: {report.catch_ups}"
    )


def stalls_table(report: StallsReport) -> Table:
    """Waits of pings, for each operation."""
    table = new_table(
        "Pings of another client while the broker works, in ms",
        "operation",
        "seconds",
        "pings",
        "p50",
        "p99",
        "worst",
        "longest step, CPU",
    )
    for row in report.rows:
        table.add_row(
            row.operation,
            f"{row.seconds:.2f}",
            f"{row.pings}",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.1f}",
            f"{row.worst_ms:.1f}",
            "" if row.step_ms is None else f"{row.step_ms:.1f}",
        )
    return table


def idle_table(report: IdleReport) -> Table:
    """Memory of idle connections."""
    table = new_table(
        "Idle connections, each subscribed to a topic",
        "listener",
        "connections",
        "set up in",
        "broker grew by",
        "a connection",
        "a message to all",
    )
    for row in report.rows:
        table.add_row(
            row.listener,
            f"{row.connections:,}",
            f"{row.setup_s:.2f} s",
            size(row.resident_bytes),
            f"{row.bytes_per_connection:,.0f} B",
            f"{row.reached_ms:.0f} ms",
        )
    return table


def topics_table(report: TopicsReport) -> Table:
    """Memory, and publishing to one topic compared with the fewest topics."""
    table = new_table(
        "One reader for each topic, published to one of them",
        "topics",
        "set up in",
        "broker grew by",
        "a topic",
        "p50 µs",
        "published/s",
        "p50 to first",
        "rate to first",
    )
    for row in report.rows:
        first = report.rows[0]
        table.add_row(
            f"{row.topics:,}",
            f"{row.setup_s:.2f} s",
            size(row.resident_bytes),
            "–" if row.bytes_per_topic is None else f"{row.bytes_per_topic:,.0f} B",
            f"{row.p50_us:.1f}",
            count(row.published_per_s),
            times(row.p50_us, first.p50_us),
            times(row.published_per_s, first.published_per_s),
        )
    return table


def startup_table(report: StartupReport) -> Table:
    """Time to the open port, compared with the smallest log that is not empty."""
    table = new_table(
        "Start-up: from the process to its open port",
        "log",
        "segments",
        "after",
        "ms",
        "read",
        "to the smallest",
    )
    before = None
    for row in report.rows:
        if before is not None and row.after != before:
            table.add_section()
        before = row.after
        table.add_row(
            log_label(row),
            f"{row.segments}",
            f"a {row.after}",
            f"{row.start_ms:.0f}",
            size(row.read_bytes),
            times(row.start_ms, smallest_log_ms(report.rows, row.after)),
        )
    return table


def schedule_table(report: ScheduleReport) -> Table:
    """Waiting messages, their cost, and their delays."""
    table = new_table(
        "Delayed messages: a kill in between, and many due within one second",
        "waiting",
        "scheduled/s",
        "memory each",
        "known after",
        "due",
        "late p50",
        "p99",
        "max",
        "lost",
        "early",
        "twice",
    )
    for row in report.rows:
        table.add_row(
            f"{row.pending:,}",
            count(row.scheduled_per_s),
            f"{row.bytes_per_message:.0f} B",
            f"{row.known_ms / 1000:.1f} s",
            f"{row.due:,}",
            *(f"{late:.0f} ms" for late in (row.late_p50_ms, row.late_p99_ms, row.late_max_ms)),
            *(f"{number:,}" for number in (row.lost, row.early, row.twice)),
        )
    return table


def log_label(row: StartupRow) -> str:
    """The log's size or shape, or a word for an empty log."""
    if row.shape:
        return row.shape
    return size(row.log_bytes) if row.log_bytes else "empty"


def smallest_log_ms(rows: list[StartupRow], after: str) -> float | None:
    """The start-up time with the smallest log, after the same kind of end."""
    logs = [row for row in rows if row.after == after and row.log_bytes and not row.shape]
    return min(logs, key=lambda row: row.log_bytes).start_ms if logs else None


def groups_table(report: GroupsReport, part: GroupsPart) -> Table:
    """One part of the three, each row compared with the one beside it."""
    table = new_table(GROUPS_TITLES[part], "", "processes", "messages/s", GROUPS_RATIOS[part])
    before = None
    for row in report.rows:
        if row.part != part:
            continue
        if before is not None and row.processes != before:
            table.add_section()
        before = row.processes
        ratio = ratio_beside(report.rows, row)
        table.add_row(
            row.how,
            f"{row.processes}",
            count(row.messages_per_s),
            "–" if ratio is None else f"{ratio:.2f}×",
        )
    return table


def ratio_beside(rows: list[GroupsRow], row: GroupsRow) -> float | None:
    """The median of the ratios of alternating runs; None if there is nothing to compare with."""
    for other in rows:
        if (other.part, other.how, other.processes) == (row.part, row.beside, row.processes):
            return statistics.median(a / b for a, b in zip(row.runs, other.runs, strict=True))
    return None


def spark_table(report: SparkReport) -> Table:
    """Rates, each compared with the ceiling, which is the first row, and with the batch below."""
    title = f"Spark: records of {report.rows[0].payload} bytes"
    table = new_table(title, "", "records/s", "to the ceiling", "to the batch")
    ceiling, batch = report.rows[:2]
    for row in report.rows:
        if row.micro_batch_ms:
            table.add_row(row.how, f"{row.micro_batch_ms:.0f} ms a look", "–", "–")
        else:
            ratios = (f"{spark_ratio(row, other):.2f}×" for other in (ceiling, batch))
            table.add_row(row.how, count(row.records_per_s), *ratios)
    return table


def spark_ratio(row: SparkRow, other: SparkRow) -> float:
    """The median of the ratios of alternating runs."""
    return statistics.median(a / b for a, b in zip(row.runs, other.runs, strict=True))


def left_out_note(left: LeftOut) -> Text:
    """One line for a system that was not measured."""
    return Text(f"Left out: {left.system}. {left.reason}", style="yellow")


def environment_note(environment: Environment) -> Text:
    """One line that says where the figures come from."""
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    pinned = "system and load each on a core of its own" if environment.pinned else "not pinned"
    return Text(
        f"{environment.cpu}, {environment.cores} cores ({pinned}), {environment.kernel}, "
        f"Python {environment.python}, {environment.filesystem}; {versions}; {environment.when}",
        style="dim",
    )


def _groups_tables(report: GroupsReport) -> RenderableType:
    return Group(*(groups_table(report, part) for part in GROUPS_TITLES))


_TABLES: dict[type[Report], Callable[[Any], RenderableType]] = {
    FanoutReport: fanout_table,
    LatencyReport: latency_table,
    RateReport: rate_table,
    PublishersReport: publishers_table,
    DurableReport: durable_table,
    ClientsReport: clients_table,
    EmbeddedReport: embedded_table,
    EdgesReport: edges_table,
    CoresReport: cores_tables,
    OverheadReport: overhead_table,
    StallReport: stall_table,
    StallsReport: stalls_table,
    TopicsReport: topics_table,
    IdleReport: idle_table,
    SparkReport: spark_table,
    StartupReport: startup_table,
    ScheduleReport: schedule_table,
    GroupsReport: _groups_tables,
}
