"""Pictures of reports: one PNG for each benchmark, drawn with matplotlib.

Law: a picture is made from a report alone, shows its units, and gives a system the same colour
everywhere. matplotlib is optional and slow to import, so it is imported when the first is drawn.

It is long because each report has a picture of its own, and the colours and units are the same
in all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanlog.bench.cores_report import draw_cores
from fanlog.bench.drawing import (
    BAR_INCHES,
    HEIGHT_INCHES,
    RESOLUTION_DPI,
    WIDTH_INCHES,
    Axes,
    Figure,
    colour_of,
    count_tick,
    draw_bars,
    finish,
    new_figure,
    plain_tick,
    steps_between,
)
from fanlog.bench.figures import count, system_label
from fanlog.bench.port_report import draw_publishers, draw_rate
from fanlog.bench.results import (
    ClientsReport,
    CoresReport,
    DurableReport,
    DurableRow,
    EdgesReport,
    EmbeddedReport,
    FanoutReport,
    FanoutRow,
    GroupsPart,
    GroupsReport,
    GroupsRow,
    IdleReport,
    LatencyReport,
    OverheadReport,
    PublishersReport,
    RateReport,
    Report,
    ScheduleReport,
    SparkReport,
    StallReport,
    StallRow,
    StallSample,
    StallsReport,
    StartupReport,
    TopicsReport,
)
from fanlog.bench.systems import BenchError
from fanlog.bench.tables import (
    GROUPS_RATIOS,
    GROUPS_TITLES,
    fanout_title,
    log_label,
    ratio_beside,
)

PHASE_COLOURS = {"stopped": "#c6302b", "catching up": "#3a6ea5"}
MIB = 1 << 20
# The longest delay of a client by the broker's own work.
STALL_MS_MAX = 20


def save_plot(report: Report, path: Path) -> None:
    """Draw the report into a PNG file.

    >>> save_plot(load_report(Path("fanout.json")), Path("fanout.png"))  # doctest: +SKIP
    """
    if not report.rows:
        raise BenchError("The report has no rows, so there is nothing to draw.")
    figure = draw(report)
    figure.savefig(path, dpi=RESOLUTION_DPI)


def check_plot(path: Path) -> None:
    """Raises an error if a picture can't be drawn, before minutes of measuring are spent."""
    new_figure(1, 1)
    if not path.absolute().parent.is_dir():
        raise BenchError(f"There is no folder {path.absolute().parent} for the picture: make it.")


def draw(report: Report) -> Figure:
    """The report's picture."""
    return DRAWINGS[type(report)](report)


def draw_fanout(report: FanoutReport) -> Figure:
    """A line for each system: deliveries per second over subscribers, both logarithmic."""
    figure = new_figure(WIDTH_INCHES, HEIGHT_INCHES)
    axes: Axes = figure.add_subplot()
    labels = dict.fromkeys(map(fanout_label, report.rows))
    for label in labels:
        points = [row for row in report.rows if fanout_label(row) == label]
        axes.plot(
            [row.subscribers for row in points],
            [row.delivered_per_s for row in points],
            marker="o",
            linewidth=2,
            color=colour_of(label),
            label=label,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({row.subscribers for row in report.rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(steps_between([row.delivered_per_s for row in report.rows]))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(count_tick)
    axes.set_xlabel("subscribers")
    axes.set_ylabel("deliveries per second")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    finish(axes, fanout_title(report))
    return figure


def fanout_label(row: FanoutRow) -> str:
    """The name of a row in tables and pictures."""
    return system_label(row.system, row.batch, row.listener) + (", TLS" if row.tls else "")


def draw_latency(report: LatencyReport) -> Figure:
    """Grouped bars: p50 solid, p99 behind it, for each number of subscribers."""
    figure = new_figure(WIDTH_INCHES, HEIGHT_INCHES)
    axes: Axes = figure.add_subplot()
    groups = sorted({row.subscribers for row in report.rows})
    systems = list(dict.fromkeys(row.system for row in report.rows))
    width = 0.8 / len(systems)
    for number, system in enumerate(systems):
        points = [row for row in report.rows if row.system == system]
        at = [
            groups.index(row.subscribers) + (number - (len(systems) - 1) / 2) * width
            for row in points
        ]
        p99 = [row.p99_us for row in points]
        p50 = [row.p50_us for row in points]
        axes.bar(at, p99, width * 0.9, color=colour_of(system), alpha=0.35, label=f"{system}, p99")
        axes.bar(at, p50, width * 0.9, color=colour_of(system), label=f"{system}, p50")
        for x, low, high in zip(at, p50, p99, strict=True):
            axes.text(x, high * 1.05, f"p99 {high:,.0f}\np50 {low:,.0f}", ha="center", fontsize=7)
    axes.set_yscale("log")
    least = min(row.p50_us for row in report.rows)
    axes.set_ylim(min(10.0, least / 2), max(row.p99_us for row in report.rows) * 4)
    axes.set_xticks(range(len(groups)), [f"{group}" for group in groups])
    axes.yaxis.set_major_formatter(plain_tick)
    axes.set_xlabel("subscribers")
    axes.set_ylabel("µs until the last subscriber has it")
    axes.legend(frameon=False, fontsize=8, ncols=len(systems), loc="upper left")
    finish(axes, "Latency, one message at a time: p50 and p99")
    return figure


def draw_durable(report: DurableReport) -> Figure:
    """One panel for each window: a bar for each promise, logarithmic."""
    windows = list(dict.fromkeys(row.window for row in report.rows))
    rows_of = {window: [r for r in report.rows if r.window == window] for window in windows}
    heights = [len(rows_of[window]) for window in windows]
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * sum(heights) + 1.0 * len(windows))
    panels = figure.subplots(len(windows), 1, squeeze=False, height_ratios=heights)
    for window, axes in zip(windows, panels[:, 0], strict=True):
        rows = rows_of[window]
        draw_bars(
            axes,
            [durable_label(row) for row in rows],
            [row.acknowledged_per_s for row in rows],
            [colour_of(row.system) for row in rows],
            faded=[not row.synced for row in rows],
            logarithmic=True,
        )
        axes.set_xlabel("acknowledged messages per second")
        finish(axes, f"Window of {window}; solid bars survive a power cut")
    return figure


def durable_label(row: DurableRow) -> str:
    """System, promise and batch in one line."""
    batch = f", {row.batch} a batch" if row.system == "fanlog" else ""
    return f"{row.system}: {row.durability}{batch}"


def draw_clients(report: ClientsReport) -> Figure:
    """A bar for each client."""
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(report.rows) + 1.2)
    axes: Axes = figure.add_subplot()
    rows = report.rows
    draw_bars(
        axes,
        [row.client for row in rows],
        [row.messages_per_s for row in rows],
        [colour_of(row.system) for row in rows],
    )
    axes.set_xlabel("messages per second")
    finish(axes, "Python client to Python client, message by message")
    return figure


def draw_embedded(report: EmbeddedReport) -> Figure:
    """A bar for each way to iterate."""
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(report.rows) + 1.2)
    axes: Axes = figure.add_subplot()
    rows = report.rows
    draw_bars(
        axes,
        [f"subscribers iterate over {row.iteration}" for row in rows],
        [row.published_per_s for row in rows],
        [colour_of("fanlog") for _ in rows],
    )
    axes.set_xlabel(f"messages per second, each delivered to {rows[0].subscribers} subscribers")
    finish(axes, "Embedded broker, one process")
    return figure


def draw_edges(report: EdgesReport) -> Figure:
    """A bar for each case."""
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(report.rows) + 1.2)
    axes: Axes = figure.add_subplot()
    rows = report.rows
    draw_bars(
        axes,
        [f"through {row.edges} edges" if row.edges else "direct" for row in rows],
        [row.broker_us for row in rows],
        [colour_of("fanlog") for _ in rows],
    )
    axes.set_xlabel("microseconds of the broker's CPU per message")
    finish(axes, f"{rows[0].readers:,} readers")
    return figure


def draw_overhead(report: OverheadReport) -> Figure:
    """A bar for each ratio, and a line at its target."""
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(report.rows) + 1.2)
    axes: Axes = figure.add_subplot()
    rows = report.rows
    draw_bars(
        axes,
        [
            f"{f'{row.subscribers} subscribers' if row.subscribers else 'acknowledged'}, "
            f"{row.batch} a batch"
            for row in rows
        ],
        [row.ratio for row in rows],
        [colour_of("fanlog") for _ in rows],
    )
    axes.axvline(0.95, color=colour_of("target"), linewidth=1)
    axes.set_xlabel("throughput, as a share of a broker without them")
    finish(axes, "With " + ", ".join(rows[0].features))
    return figure


def draw_stall(report: StallReport) -> Figure:
    """Over time: the others' rate above; below, how far the reader is behind, and memory."""
    figure = new_figure(WIDTH_INCHES, HEIGHT_INCHES * 1.2)
    panels = figure.subplots(2, 1, sharex=True)
    upper, lower = panels[0], panels[1]
    at_s = [sample.at_s for sample in report.samples]
    rates = [sample.delivered_per_s for sample in report.samples]
    behind = [sample.behind_bytes / MIB for sample in report.samples]
    resident = [sample.resident_bytes / MIB for sample in report.samples]
    upper.plot(at_s, rates, color=colour_of("fanlog"), linewidth=2)
    upper.set_ylim(0, max(rates) * 1.15)
    upper.yaxis.set_major_formatter(count_tick)
    upper.set_ylabel("deliveries per second")
    lower.plot(at_s, behind, color=colour_of("redis"), linewidth=2, label="the reader is behind")
    lower.plot(at_s, resident, color=colour_of("nats"), linewidth=2, label="the broker's memory")
    lower.set_ylim(0, max(*behind, *resident) * 1.15)
    lower.set_ylabel("MiB")
    lower.set_xlabel("seconds")
    for axes in (upper, lower):
        shade_phases(axes, report.samples)
        axes.grid(True, alpha=0.3)
    upper.legend(frameon=False, loc="lower left", fontsize=8)
    lower.legend(frameon=False, loc="upper left", fontsize=8)
    label_phases(upper, report.samples, report.rows)
    finish(upper, f"One reader stops: what {report.subscribers} others receive, and its mean")
    finish(lower, "The stopped reader, and the broker's memory")
    return figure


def shade_phases(axes: Axes, samples: list[StallSample]) -> None:
    """Tints the time in which the reader was stopped, and caught up."""
    began, named = 0.0, set[str]()
    for number, sample in enumerate(samples):
        if number + 1 < len(samples) and samples[number + 1].phase == sample.phase:
            continue
        if sample.phase in PHASE_COLOURS:
            label = None if sample.phase in named else sample.phase
            named.add(sample.phase)
            axes.axvspan(
                began, sample.at_s, color=PHASE_COLOURS[sample.phase], alpha=0.1, label=label
            )
        began = sample.at_s


def label_phases(axes: Axes, samples: list[StallSample], rows: list[StallRow]) -> None:
    """A line at the mean rate of each phase, with its figure."""
    top = max(sample.delivered_per_s for sample in samples)
    spans: list[tuple[float, float]] = []
    began = 0.0
    for number, sample in enumerate(samples):
        if number + 1 == len(samples) or samples[number + 1].phase != sample.phase:
            spans.append((began, sample.at_s))
            began = sample.at_s
    for (first, last), row in zip(spans, rows, strict=False):
        mean = row.delivered_per_s
        axes.hlines(mean, first, last, color="black", linewidth=1, linestyle="--")
        axes.text((first + last) / 2, top * 1.06, f"mean {count(mean)}", ha="center", fontsize=8)


def draw_stalls(report: StallsReport) -> Figure:
    """A bar for each operation: the worst ping, and inside it the p99; logarithmic."""
    rows = report.rows
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(rows) + 1.2)
    axes: Axes = figure.add_subplot()
    at = range(len(rows))
    worst = [row.worst_ms for row in rows]
    bars = axes.barh(at, worst, color=colour_of("fanlog"), alpha=0.35, height=0.7, label="worst")
    p99 = [row.p99_ms for row in rows]
    axes.barh(at, p99, color=colour_of("fanlog"), height=0.7, label="p99")
    axes.bar_label(bars, [f"{value:.1f}" for value in worst], padding=4, fontsize=8)
    axes.axvline(STALL_MS_MAX, color=colour_of("redis"), linewidth=1, linestyle="--")
    axes.set_yticks(at, [row.operation for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.05, max(*worst, STALL_MS_MAX) * 3)
    axes.xaxis.set_major_formatter(short_tick)
    axes.set_xlabel(f"ms that a ping waited; the line is {STALL_MS_MAX} ms")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    finish(axes, "Pings of another client while the broker works")
    return figure


def short_tick(value: float, _: int) -> str:
    """A time at a logarithmic axis."""
    return f"{value:g}"


def draw_topics(report: TopicsReport) -> Figure:
    """Three panels over the number of topics: publishes per second, latency, memory."""
    figure = new_figure(WIDTH_INCHES * 1.3, HEIGHT_INCHES * 0.8)
    topics = [row.topics for row in report.rows]
    series: list[tuple[str, list[float]]] = [
        ("publishes per second", [row.published_per_s for row in report.rows]),
        ("µs to the reader, p50", [row.p50_us for row in report.rows]),
        ("MiB that the broker grew by", [row.resident_bytes / MIB for row in report.rows]),
    ]
    for axes, (label, values) in zip(figure.subplots(1, 3), series, strict=True):
        axes.plot(topics, values, marker="o", linewidth=2, color=colour_of("fanlog"))
        axes.set_xscale("log")
        axes.set_xticks(topics, [count_tick(number, 0) for number in topics])
        axes.minorticks_off()
        axes.set_ylim(0, max(*values, 1.0) * 1.15)
        axes.yaxis.set_major_formatter(count_tick)
        axes.set_xlabel("topics, one reader each")
        axes.grid(True, alpha=0.3)
        finish(axes, label)
    return figure


def draw_idle(report: IdleReport) -> Figure:
    """A bar for each number of connections."""
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(report.rows) + 1.2)
    axes: Axes = figure.add_subplot()
    draw_bars(
        axes,
        [f"{row.connections:,} connections, {row.listener}" for row in report.rows],
        [row.bytes_per_connection for row in report.rows],
        [colour_of("fanlog") for _ in report.rows],
    )
    axes.set_xlabel("bytes of the broker for each idle connection")
    finish(axes, "Idle connections")
    return figure


def draw_startup(report: StartupReport) -> Figure:
    """A bar for each log and each kind of end of the broker."""
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(report.rows) + 1.2)
    axes: Axes = figure.add_subplot()
    rows = report.rows
    draw_bars(
        axes,
        [f"{log_label(row)}, after a {row.after}" for row in rows],
        [row.start_ms for row in rows],
        [colour_of("fanlog") for _ in rows],
        faded=[not row.log_bytes for row in rows],
    )
    axes.set_xlabel("ms from the process to its open port")
    finish(axes, "Start-up by size of the log")
    return figure


def draw_schedule(report: ScheduleReport) -> Figure:
    """How late messages came."""
    row = report.rows[0]
    figure = new_figure(WIDTH_INCHES, 3 * BAR_INCHES + 1.2)
    axes: Axes = figure.add_subplot()
    draw_bars(
        axes,
        ["median", "99 %", "the last"],
        [row.late_p50_ms, row.late_p99_ms, row.late_max_ms],
        [colour_of("fanlog")] * 3,
    )
    axes.set_xlabel("ms from the due time until the reader had the message")
    finish(axes, f"{row.due:,} of {row.pending:,} delayed messages, due within one second")
    return figure


def draw_groups(report: GroupsReport) -> Figure:
    """One panel for each part; what others are compared with is faded."""
    parts: list[GroupsPart] = [
        part for part in GROUPS_TITLES if any(row.part == part for row in report.rows)
    ]
    heights = [sum(row.part == part for row in report.rows) for part in parts]
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * sum(heights) + 1.0 * len(parts))
    panels = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)
    for number, part in enumerate(parts):
        axes = panels[number, 0]
        rows = [row for row in report.rows if row.part == part]
        ratios = [ratio_beside(rows, row) for row in rows]
        draw_bars(
            axes,
            [groups_label(row) for row in rows],
            [row.messages_per_s for row in rows],
            [colour_of(row.system) for row in rows],
            faded=[row.system == "fanlog" and not row.beside for row in rows],
            notes=["" if ratio is None else f"  ({ratio:.2f}×)" for ratio in ratios],
        )
        axes.set_xlabel(f"messages per second, and their ratio {GROUPS_RATIOS[part]}")
        finish(axes, GROUPS_TITLES[part])
    return figure


def groups_label(row: GroupsRow) -> str:
    """The work, and the number of processes if rows differ in it."""
    if row.part != "acking":
        return row.how
    return f"{row.how}, {row.processes} worker{'s' if row.processes > 1 else ''}"


def draw_spark(report: SparkReport) -> Figure:
    """A bar for each way to read or write; the ceiling is on top."""
    rows = [row for row in report.rows if row.records_per_s]
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * len(rows) + 1.2)
    axes: Axes = figure.add_subplot()
    draw_bars(
        axes,
        [row.how for row in rows],
        [row.records_per_s for row in rows],
        [colour_of("fanlog") for _ in rows],
        faded=[row is rows[0] for row in rows],
    )
    axes.set_xlabel("records per second")
    finish(axes, f"Spark, records of {rows[0].payload} bytes")
    return figure


DRAWINGS: dict[type[Report], Callable[[Any], Figure]] = {
    FanoutReport: draw_fanout,
    LatencyReport: draw_latency,
    RateReport: draw_rate,
    PublishersReport: draw_publishers,
    DurableReport: draw_durable,
    ClientsReport: draw_clients,
    EmbeddedReport: draw_embedded,
    EdgesReport: draw_edges,
    CoresReport: draw_cores,
    OverheadReport: draw_overhead,
    StallReport: draw_stall,
    StallsReport: draw_stalls,
    TopicsReport: draw_topics,
    IdleReport: draw_idle,
    StartupReport: draw_startup,
    ScheduleReport: draw_schedule,
    GroupsReport: draw_groups,
    SparkReport: draw_spark,
}
