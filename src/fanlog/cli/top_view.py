"""What `fanlog top` shows: two snapshots of a process, as tables. Pure: it sends no request."""

from __future__ import annotations

import datetime as dt
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fanlog.cli.quantities import show_size
from fanlog.cli.terminal import printable
from fanlog.telemetry.histograms import HistogramData
from fanlog.telemetry.snapshot import OTHERS, Snapshot, TopicMetrics

_STATES = {"ok": "bold green", "degraded": "bold yellow"}


def rate_of(now: float, before: float, seconds: float) -> float:
    """Per second. After a restart a counter is lower than before: then its present value counts."""
    grown = now - before if now >= before else now
    return grown / seconds if seconds > 0 else 0.0


def figures(now: Snapshot, before: Snapshot) -> dict[str, Any]:
    """What programs get from `fanlog top --json`: rates since the snapshot before."""
    seconds = now.time - before.time
    totals, then = now.totals, before.totals
    rates = {
        f"{name}_per_second": round(rate_of(getattr(totals, name), getattr(then, name), seconds), 3)
        for name in (
            "published_messages",
            "published_bytes",
            "delivered_messages",
            "delivered_bytes",
            "fetched_bytes",
            "delivered_jobs",
            "redelivered_jobs",
            "dead_letters",
        )
    }
    cpu = rate_of(now.process.cpu_seconds, before.process.cpu_seconds, seconds)
    return {
        "seconds": round(seconds, 3),
        **rates,
        "cpu_percent": round(100 * cpu, 1),
        "loop_delay_ms_p99": _quantile_ms(now, before, "loop_delay_us", 0.99),
        "turn_ms_p99": _quantile_ms(now, before, "turn_us", 0.99),
        "sync_ms_p99": _quantile_ms(now, before, "sync_us", 0.99),
    }


def topic_rates(now: Snapshot, before: Snapshot) -> list[tuple[TopicMetrics, float, float]]:
    """Topics with their messages and bytes per second, the busiest first."""
    seconds = now.time - before.time
    known = {topic.name: topic for topic in before.topics}
    found: list[tuple[TopicMetrics, float, float]] = []
    for topic in now.topics:
        then = known.get(topic.name)
        if then is None or now.scan_age_seconds > seconds:
            rates = topic.messages_per_second, topic.bytes_per_second
        else:
            rates = (
                rate_of(topic.published_messages, then.published_messages, seconds),
                rate_of(topic.published_bytes, then.published_bytes, seconds),
            )
        found.append((topic, *rates))
    others = [one for one in found if one[0].name == OTHERS and one[0].partitions]
    named = [one for one in found if one[0].name != OTHERS]
    named.sort(key=lambda one: (-one[1], -one[0].stored_bytes, one[0].name))
    return named + others


def view(now: Snapshot, before: Snapshot, where: str, rows: int = 10) -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [_title(now, where), _summary(now, before)]
    parts.append(_titled("Busiest topics", _topics(now, before, rows)))
    if now.groups[:-1] or now.queues[:-1]:
        parts.append(_titled("Furthest behind: groups and queues", _lag(now, rows)))
    parts.append(_titled("Slowest readers", _readers(now, rows)))
    parts += [Text(f"! {printable(problem)}", style="red") for problem in now.problems]
    return Group(*parts)


def _title(now: Snapshot, where: str) -> Text:
    up = dt.timedelta(seconds=int(now.uptime_seconds))
    listeners = ", ".join(f"{one.name} {one.connections:,}" for one in now.listeners) or "none"
    return Text.assemble(
        (now.state, _STATES.get(now.state, "bold red")),
        f"  {now.role} {printable(where)}  Fanlog {printable(now.release)}  up for {up}  ",
        (f"connected: {listeners}", "dim"),
    )


def _summary(now: Snapshot, before: Snapshot) -> RenderableType:
    found = figures(now, before)
    process, levels = now.process, now.levels
    flow = _pairs(
        ("published", _flow(found, "published")),
        ("delivered", _flow(found, "delivered")),
        ("fetched", f"{show_size(int(found['fetched_bytes_per_second']))}/s"),
        ("jobs", f"{found['delivered_jobs_per_second']:,.0f}/s"),
    )
    clients = _pairs(
        ("connections", f"{sum(one.connections for one in now.listeners):,}"),
        ("subscriptions", f"{levels.subscriptions:,}"),
        ("behind", f"{levels.readers_behind:,} readers"),
        ("lag", f"{levels.group_lag + levels.queue_lag:,} messages"),
    )
    times = _pairs(
        ("loop delay p99", _ms(found["loop_delay_ms_p99"])),
        ("turn p99", _ms(found["turn_ms_p99"])),
        ("sync p99", _ms(found["sync_ms_p99"])),
        ("waits for disk", show_size(levels.pending_bytes)),
    )
    machine = _pairs(
        ("cpu", f"{found['cpu_percent']:.0f} %"),
        ("memory", show_size(process.resident_bytes)),
        ("files", f"{process.open_files:,} of {process.open_files_max:,}"),
        ("disk free", show_size(process.disk_free_bytes) if process.disk_total_bytes else "-"),
    )
    return Columns([flow, clients, times, machine], padding=(0, 3))


def _flow(found: dict[str, Any], name: str) -> str:
    size = show_size(int(found[f"{name}_bytes_per_second"]))
    return f"{found[f'{name}_messages_per_second']:,.0f}/s, {size}/s"


def _pairs(*pairs: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim")
    table.add_column(no_wrap=True)
    for name, value in pairs:
        table.add_row(name, value)
    return table


def _titled(title: str, table: Table) -> RenderableType:
    return Panel(table, title=title, title_align="left", border_style="dim", padding=(0, 1))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
    for i, column in enumerate(columns):
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=None if i else 1,
        )
    return table


def _topics(now: Snapshot, before: Snapshot, rows: int) -> Table:
    table = _table("TOPIC", ">MESSAGES/S", ">BYTES/S", ">READERS", ">STORED", ">MISSED")
    found = topic_rates(now, before)
    others = [one for one in found if one[0].name == OTHERS]
    named = found[: len(found) - len(others)]
    for topic, messages, size in [*named[:rows], *others]:
        table.add_row(
            Text(printable(topic.name), style="dim" if topic.name == OTHERS else "cyan"),
            f"{messages:,.1f}",
            show_size(int(size)),
            f"{topic.readers:,}",
            show_size(topic.stored_bytes),
            Text(f"{topic.missed_messages:,}", style="red" if topic.missed_messages else ""),
        )
    return table


def _lag(now: Snapshot, rows: int) -> Table:
    table = _table("NAME", "KIND", ">LAG", ">IN FLIGHT", ">MEMBERS", ">DEAD LETTERS")
    found = [
        *((one.lag, one.name, "group", "-", one.members, "-") for one in now.groups),
        *(
            (q.lag, q.name, "queue", f"{q.in_flight:,}", q.workers, f"{q.dead_lettered:,}")
            for q in now.queues
        ),
    ]
    named = sorted((one for one in found if one[1] != OTHERS), key=lambda one: (-one[0], one[1]))
    for lag, name, kind, in_flight, members, dead in named[:rows]:
        table.add_row(
            Text(printable(name), style="cyan"), kind, f"{lag:,}", in_flight, f"{members:,}", dead
        )
    return table


def _readers(now: Snapshot, rows: int) -> Table:
    table = _table("CONNECTION", "USER", "CLIENT", "FOLLOWS", "POLICY", ">MESSAGES", ">BYTES")
    for one in now.readers[:rows]:
        table.add_row(
            Text(printable(one.connection), style="cyan"),
            printable(one.user) or "-",
            printable(one.client) or "-",
            printable(one.target) or "-",
            one.policy or "-",
            f"{one.messages:,}",
            show_size(one.bytes),
        )
    if not now.readers:
        table.add_row(Text("none is behind", style="dim"), *[""] * 6)
    return table


def _quantile_ms(now: Snapshot, before: Snapshot, name: str, share: float) -> float:
    data: HistogramData = getattr(now.times, name)
    return data.since(getattr(before.times, name)).quantile(share) / 1000


def _ms(value: float) -> str:
    return f"≤ {value:g} ms" if value else "-"
