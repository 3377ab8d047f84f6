"""The tables and the picture of a broker with and without workers.

Law: a ratio is made here from two rows of one report.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from fanlog.bench.drawing import (
    BAR_INCHES,
    WIDTH_INCHES,
    Figure,
    colour_of,
    draw_bars,
    finish,
    new_figure,
)
from fanlog.bench.figures import count, new_table, times
from fanlog.bench.results import CoresFanoutRow, CoresPublishRow, CoresReport


def cores_tables(report: CoresReport) -> RenderableType:
    """Fan-out, and what redis-benchmark measured if it did."""
    tables = [cores_fanout_table(report)]
    if report.publishing:
        tables.append(cores_publishing_table(report))
    return Group(*tables)


def cores_fanout_table(report: CoresReport) -> Table:
    """Deliveries, compared with no workers, and their cost for each process."""
    payload = report.rows[0].payload if report.rows else 0
    table = new_table(
        f"Workers: fan-out of {payload}-byte messages, nothing pinned",
        "subscribers",
        "a batch",
        "workers",
        "delivered/s",
        "to 0 workers",
        "CPU s a million: core",
        "each worker",
        "all",
    )
    before = None
    for row in report.rows:
        group = row.subscribers, row.batch
        if before not in (None, group):
            table.add_section()
        before = group
        table.add_row(
            f"{row.subscribers}",
            f"{row.batch}",
            f"{row.workers}",
            count(row.delivered_per_s),
            times(row.delivered_per_s, delivered_without_workers(report.rows, row)),
            *_costs(row.core_s, row.workers_s, 3),
        )
    return table


def delivered_without_workers(
    rows: Sequence[CoresFanoutRow], beside: CoresFanoutRow
) -> float | None:
    """The rate of the same row with 0 workers, if measured."""
    for row in rows:
        if (row.subscribers, row.batch, row.workers) == (beside.subscribers, beside.batch, 0):
            return row.delivered_per_s
    return None


def cores_publishing_table(report: CoresReport) -> Table:
    """Publishes, compared with Redis, and their cost for each process."""
    first = report.publishing[0]
    table = new_table(
        f"redis-benchmark -c {first.connections} PUBLISH, {first.payload} bytes to nobody, "
        "nothing pinned",
        "system",
        "-P",
        "workers",
        "published/s",
        "to Redis",
        "CPU s a million: core",
        "each worker",
        "all",
    )
    before = None
    for row in report.publishing:
        if before not in (None, row.pipeline):
            table.add_section()
        before = row.pipeline
        table.add_row(
            row.system,
            f"{row.pipeline}",
            "–" if row.system == "redis" else f"{row.workers}",
            count(row.published_per_s),
            times(row.published_per_s, published_by_redis(report.publishing, row.pipeline)),
            *_costs(row.core_s, row.workers_s, 2),
        )
    return table


def published_by_redis(rows: Sequence[CoresPublishRow], pipeline: int) -> float | None:
    """The rate of Redis with such pipelines, if measured."""
    for row in rows:
        if row.system == "redis" and row.pipeline == pipeline:
            return row.published_per_s
    return None


def _costs(core_s: float, workers_s: Sequence[float], digits: int) -> tuple[str, str, str]:
    return (
        f"{core_s:.{digits}f}",
        ", ".join(f"{used:.{digits}f}" for used in workers_s) or "–",
        f"{core_s + sum(workers_s):.{digits}f}",
    )


def draw_cores(report: CoresReport) -> Figure:
    """A bar for each row of the fan-out, and below it those of redis-benchmark."""
    heights = [len(report.rows), len(report.publishing)]
    shown = 2 if report.publishing else 1
    inches = BAR_INCHES * sum(heights) + 1.2 * shown
    figure = new_figure(WIDTH_INCHES, inches)
    panels = figure.subplots(shown, 1, squeeze=False, height_ratios=heights[:shown])[:, 0]
    rows = report.rows
    draw_bars(
        panels[0],
        [f"{r.subscribers} subscribers, {r.batch} a batch, {_workers(r.workers)}" for r in rows],
        [row.delivered_per_s for row in rows],
        [colour_of("fanlog") for _ in rows],
        faded=[not row.workers for row in rows],
    )
    panels[0].set_xlabel("deliveries per second; the load shares the cores")
    finish(panels[0], "Fan-out with and without workers")
    if report.publishing:
        published = report.publishing
        draw_bars(
            panels[1],
            [_publishing_label(row) for row in published],
            [row.published_per_s for row in published],
            [colour_of(row.system) for row in published],
        )
        panels[1].set_xlabel("messages per second, to nobody")
        finish(panels[1], f"redis-benchmark -c {published[0].connections} PUBLISH")
    return figure


def _workers(number: int) -> str:
    return f"{number} worker" if number == 1 else f"{number} workers"


def _publishing_label(row: CoresPublishRow) -> str:
    who = row.system if row.system == "redis" else f"fanlog, {_workers(row.workers)}"
    return f"{who}, -P {row.pipeline}"
