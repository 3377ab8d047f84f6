"""The report of `drops` as a page with pictures, which needs nothing beside it: `report.html`. The
pictures are there as files, too, and the figures as `report.json`."""

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fanlog.model import GroupInfo, TopicInfo
from fanlog.spark.pipelines.drops_page_drawing import (
    ROWS_MAX,
    STYLE,
    ChartPoint,
    bars,
    none,
    over_time,
    table,
)
from fanlog.spark.pipelines.drops_page_misses import (
    Misses,
    counted_misses,
    figures_of,
    missed,
)


class IntervalDeadLetters(NamedTuple):
    """Dead letters of one kind in one interval; `waiting` of them are not handled yet."""

    source: str
    queue: str
    reason: str
    start: dt.datetime
    letters: int
    waiting: int


class Hole(NamedTuple):
    topic: str
    partition: int
    first: int
    last: int
    there: int
    missing: int


class DropsFacts(NamedTuple):
    """`misses` is None if the broker has no records of any."""

    topics: list[TopicInfo]
    groups: list[GroupInfo]
    misses: Misses | None
    letters: list[IntervalDeadLetters]
    holes: list[Hole]


def write_report(folder: Path, facts: DropsFacts, *, reasons_max: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        missed(folder, facts.topics, facts.misses),
        _dead(folder, facts.letters, reasons_max),
        _lagging(folder, facts.groups),
        _holes(facts.holes),
    ]
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = (
        f"<!doctype html><meta charset=utf-8><title>Drops</title><style>{STYLE}</style>"
        f"<h1>What did not arrive</h1><p>As of {now}.</p>{''.join(parts)}"
    )
    (folder / "report.html").write_text(page)
    (folder / "report.json").write_bytes(msgspec.json.encode(_figures(facts)))


def _figures(facts: DropsFacts) -> dict[str, Any]:
    return {
        "missed": figures_of(facts.misses),
        "counted": {info.name: info.counters for info in facts.topics if counted_misses(info)},
        "letters": [some._asdict() for some in facts.letters],
        "lag": {info.name: info.lag for info in facts.groups},
        "holes": [some._asdict() for some in facts.holes],
    }


# Dead letters


def _dead(folder: Path, letters: list[IntervalDeadLetters], reasons_max: int) -> str:
    title = "<h2>Dead letters</h2><p>Jobs and rows that were given up, and why.</p>"
    if not letters:
        return title + none("There are none.")
    kinds: Counter[tuple[str, str, str]] = Counter()
    waiting: Counter[tuple[str, str, str]] = Counter()
    reasons: Counter[str] = Counter()
    for some in letters:
        kind = (some.source, some.queue, some.reason)
        kinds[kind] += some.letters
        waiting[kind] += some.waiting
        reasons[some.reason] += some.letters
    shown = [reason for reason, _ in reasons.most_common(reasons_max)]
    points = [ChartPoint(some.start, some.reason, some.letters) for some in letters]
    picture = over_time(folder / "dead.png", points, shown, "dead letters")
    rows = [(*kind, count, waiting[kind]) for kind, count in kinds.most_common(ROWS_MAX)]
    left = len(kinds) - len(rows)
    more = f"<p>… and {left} kinds more.</p>" if left else ""
    heads = ("from", "queue", "reason", "letters", "still there")
    return title + picture + table(heads, rows) + more


# Lag


def _lagging(folder: Path, groups: list[GroupInfo]) -> str:
    title = "<h2>Lag</h2><p>Groups and queues that have not done all that is there.</p>"
    behind = sorted((info for info in groups if info.lag), key=lambda info: -info.lag)
    if not behind:
        return title + none("Nobody is behind.")
    rows = [
        (info.name, info.kind, info.state, info.lag, f"{info.lag_seconds:,.0f} s")
        for info in behind
    ]
    lags = {"lag": [info.lag for info in behind]}
    picture = bars(folder / "lag.png", [info.name for info in behind], lags, "records behind")
    return title + picture + table(("group", "kind", "state", "records", "oldest"), rows)


def _holes(holes: list[Hole]) -> str:
    if not holes:
        return ""
    rows = [(some.topic, some.partition, some.first, some.last, some.missing) for some in holes]
    title = "<h2>Holes in the lake</h2><p>Records that were gone before they were archived.</p>"
    return title + table(("topic", "partition", "first", "last", "missing"), rows)
