"""Tables and pictures of what compares the systems by port: latency at a rate, and publishers that
wait for answers.

Law: a ratio is made here from two rows of one report.
"""

from __future__ import annotations

from rich.table import Table

from fanlog.bench.drawing import (
    BAR_INCHES,
    HEIGHT_INCHES,
    WIDTH_INCHES,
    Axes,
    Figure,
    colour_of,
    draw_bars,
    finish,
    new_figure,
    plain_tick,
)
from fanlog.bench.figures import count, new_table, times
from fanlog.bench.results import PublishersReport, PublishersRow, RateReport, RateRow


def rate_table(report: RateReport) -> Table:
    """Percentiles in microseconds, by rate and number of subscribers."""
    table = new_table(
        "Latency at a fixed publish rate, from the scheduled time to the last subscriber, in µs",
        "system",
        "subscribers",
        "rate",
        "p50",
        "p99",
        "p99.9",
        "worst",
        "sent late, p99",
        "arrived/s",
    )
    before = None
    for row in report.rows:
        group = row.subscribers, row.rate
        if before not in (None, group):
            table.add_section()
        before = group
        late = (row.p50_us, row.p99_us, row.p999_us, row.worst_us, row.sent_p99_us)
        table.add_row(
            row.system,
            f"{row.subscribers}",
            f"{row.rate}",
            *(f"{value:,.0f}" for value in late),
            f"{row.arrived_per_s:,.0f}",
        )
    return table


def draw_rate(report: RateReport) -> Figure:
    """A panel for each rate and number of subscribers: p50, p99 and p99.9 of each system."""
    groups = list(dict.fromkeys((row.subscribers, row.rate) for row in report.rows))
    columns = min(2, len(groups))
    lines = -(-len(groups) // columns)
    figure = new_figure(WIDTH_INCHES * 0.65 * columns, HEIGHT_INCHES * 0.75 * lines)
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flat
    for group, axes in zip(groups, panels, strict=False):
        rows = [row for row in report.rows if (row.subscribers, row.rate) == group]
        draw_rate_panel(axes, rows)
        finish(axes, f"{group[0]} subscribers, {group[1]:,} messages a second")
    return figure


def draw_rate_panel(axes: Axes, rows: list[RateRow]) -> None:
    """A line for each system over the percentiles."""
    labels = ("p50", "p99", "p99.9")
    for row in rows:
        values = [row.p50_us, row.p99_us, row.p999_us]
        axes.plot(
            labels,
            values,
            marker="o",
            linewidth=2,
            color=colour_of(row.system),
            label=row.system,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(plain_tick)
    axes.set_ylabel("µs since the scheduled time")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def publishers_table(report: PublishersReport) -> Table:
    """Answered publishes, and how they compare with the same number of connections."""
    table = new_table(
        publishers_title(report),
        "system",
        "connections",
        "pipeline",
        "subscribers",
        "published/s",
        "to Redis",
        "to NATS",
        "CPU µs a message",
        "CPU",
    )
    before = None
    for row in report.rows:
        if before not in (None, _group(row)):
            table.add_section()
        before = _group(row)
        table.add_row(
            row.system,
            f"{row.connections}",
            f"{row.pipeline}",
            f"{row.subscribers}",
            count(row.published_per_s),
            times(row.published_per_s, published_by(report.rows, "redis", row)),
            times(row.published_per_s, published_by(report.rows, "nats", row)),
            f"{row.cpu_us:.2f}",
            f"{row.busy:.0%}",
        )
    return table


def publishers_title(report: PublishersReport) -> str:
    """What each connection does."""
    payload = report.rows[0].payload if report.rows else 0
    return f"Connections that publish {payload} bytes and wait for the answer, then the next"


def published_by(rows: list[PublishersRow], system: str, beside: PublishersRow) -> float | None:
    """The system's rate in the same row, if measured."""
    for row in rows:
        if row.system == system and _group(row) == _group(beside):
            return row.published_per_s
    return None


def _group(row: PublishersRow) -> tuple[int, int, int]:
    return row.pipeline, row.subscribers, row.connections


def draw_publishers(report: PublishersReport) -> Figure:
    """A panel for each pipeline and number of subscribers: a bar for each system."""
    panels = list(dict.fromkeys((row.pipeline, row.subscribers) for row in report.rows))
    rows_of = {
        panel: [row for row in report.rows if (row.pipeline, row.subscribers) == panel]
        for panel in panels
    }
    heights = [len(rows_of[panel]) for panel in panels]
    figure = new_figure(WIDTH_INCHES, BAR_INCHES * sum(heights) + 1.0 * len(panels))
    drawn = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for panel, axes in zip(panels, drawn[:, 0], strict=True):
        rows = rows_of[panel]
        ratios = [times(r.published_per_s, published_by(rows, "redis", r)) for r in rows]
        draw_bars(
            axes,
            [publishers_label(row) for row in rows],
            [row.published_per_s for row in rows],
            [colour_of(row.system) for row in rows],
            notes=[f"  ({ratio} Redis)" for ratio in ratios],
        )
        axes.set_xlabel("answered messages per second")
        finish(axes, panel_title(*panel))
    return figure


def publishers_label(row: PublishersRow) -> str:
    """The system and its number of connections."""
    return f"{row.system}, {row.connections} connection{'s' if row.connections > 1 else ''}"


def panel_title(pipeline: int, subscribers: int) -> str:
    """How a connection publishes, and to whom."""
    how = "one message at a time" if pipeline == 1 else f"pipelines of {pipeline}"
    whom = {0: "nobody", 1: "1 subscriber"}.get(subscribers, f"{subscribers} subscribers")
    return f"Each connection publishes {how}, to {whom}"
