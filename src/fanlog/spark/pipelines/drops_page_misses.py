"""The part of the report on what readers missed: over time, by topic, by reader, and at once. It
uses the broker's drop records; without them, the broker's counters."""

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fanlog.model import TopicInfo
from fanlog.spark.pipelines.drops_page_drawing import (
    OTHERS_COLOUR,
    ROWS_MAX,
    ChartPoint,
    bars,
    none,
    over_time,
    table,
)

TITLE = "<h2>Missed</h2><p>What readers of a topic did not get.</p>"
# The kinds in which records are missed, in the order in which they are drawn.
KINDS = {
    "skipped": "#e0a030",
    "retention": "#c6302b",
    "damaged": "#7b4fa3",
    "unreadable": "#a06040",
    "more": OTHERS_COLOUR,
}
CUT_OFF = "disconnected"
# The topic that stands for those above the broker's limit.
NOT_KEPT = "(not kept)"
TOPICS_SHOWN = 8


class MissCount(NamedTuple):
    """Misses of one kind in one topic and interval: the records, and how often."""

    topic: str
    kind: str
    start: dt.datetime
    records: int
    times: int


class ReaderMisses(NamedTuple):
    """What a reader missed in a topic. `published` is the number of records it could have read
    until its last miss, if known."""

    reader: str
    topic: str
    records: int
    times: int
    cut_off: int
    published: int | None
    last: dt.datetime

    @property
    def share(self) -> float | None:
        """The share of published records that it missed."""
        return min(1.0, self.records / self.published) if self.published else None


class LongGap(NamedTuple):
    reader: str
    topic: str
    partition: int
    first: int
    next: int
    records: int
    kind: str
    time: dt.datetime


class Misses(NamedTuple):
    """All recorded misses. `warn_share` is the share that a reader may miss without a warning."""

    counts: list[MissCount]
    readers: list[ReaderMisses]
    gaps: list[LongGap]
    warn_share: float

    def is_warned(self, reader: ReaderMisses) -> bool:
        return reader.share is not None and reader.share > self.warn_share


def figures_of(misses: Misses | None) -> dict[str, Any] | None:
    """For `report.json`."""
    if misses is None:
        return None
    return {
        "counts": [some._asdict() for some in misses.counts],
        "readers": [
            some._asdict() | {"share": some.share, "warning": misses.is_warned(some)}
            for some in misses.readers
        ],
        "gaps": [some._asdict() for some in misses.gaps],
    }


def missed(folder: Path, topics: list[TopicInfo], misses: Misses | None) -> str:
    if misses is None or not misses.counts:
        return _counted(folder, topics)
    parts = [TITLE, _summary(misses)]
    if any(some.records for some in misses.counts):
        parts += [_over_time(folder, misses.counts)]
    parts += [_by_topic(folder, misses.counts), _by_reader(folder, misses), _longest(misses.gaps)]
    return "".join(parts)


def _summary(misses: Misses) -> str:
    records = sum(some.records for some in misses.counts)
    cut_off = sum(some.times for some in misses.counts if some.kind == CUT_OFF)
    warned = sum(map(misses.is_warned, misses.readers))
    since = min(some.start for some in misses.counts)
    said = f"<b>{records:,} records</b> were missed since {since:%Y-%m-%d %H:%M} UTC."
    if cut_off:
        said += f" Readers were cut off {_times(cut_off)}."
    if warned:
        who = "One reader" if warned == 1 else f"{warned:,} readers"
        said += f" <b>{who} missed more than {_limit(misses)}</b> of what was published."
    return f"<p class=big>{said}</p>"


def _limit(misses: Misses) -> str:
    return f"{100 * misses.warn_share:.3g} %"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _over_time(folder: Path, counts: list[MissCount]) -> str:
    totals: Counter[str] = Counter()
    for some in counts:
        totals[some.topic] += some.records
    shown = [topic for topic, records in totals.most_common(TOPICS_SHOWN) if records]
    points = [ChartPoint(some.start, some.topic, some.records) for some in counts if some.records]
    picture = over_time(
        folder / "missed.png", points, shown, "records missed", {NOT_KEPT: OTHERS_COLOUR}
    )
    return f"<h3>Over time (UTC)</h3>{picture}"


# By topic, by reader, at once


def _by_topic(folder: Path, counts: list[MissCount]) -> str:
    records: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for some in counts:
        records[some.topic, some.kind] += some.records
        times[some.topic, some.kind] += some.times
    kinds = [kind for kind in KINDS if any(records[key] for key in records if key[1] == kind)]

    def total(topic: str) -> int:
        return sum(records[topic, kind] for kind in kinds)

    topics = sorted({topic for topic, _ in times}, key=lambda topic: (-total(topic), topic))
    hit = [topic for topic in topics if total(topic)]
    series = {kind: [records[topic, kind] for topic in hit] for kind in kinds}
    picture = bars(folder / "missed-topics.png", hit, series, "records missed", KINDS)
    rows = [
        (topic, *(records[topic, kind] for kind in kinds), times[topic, CUT_OFF])
        for topic in topics[:ROWS_MAX]
    ]
    heads = ("topic", *kinds, "readers cut off")
    left = _left(len(topics), "topics")
    return f"<h3>By topic</h3>{picture if hit else ''}{table(heads, rows)}{left}"


def _by_reader(folder: Path, misses: Misses) -> str:
    readers = sorted(misses.readers, key=lambda some: (-some.records, -some.cut_off))
    shown = readers[:ROWS_MAX]
    marked = [misses.is_warned(some) for some in shown]
    rows = [
        (
            some.reader,
            some.topic,
            some.records,
            some.times,
            _percent(some.share),
            some.cut_off,
            f"{some.last:%Y-%m-%d %H:%M}",
        )
        for some in shown
    ]
    heads = ("reader", "topic", "records missed", "times", "of all", "cut off", "last (UTC)")
    hit = [(some, mark) for some, mark in zip(shown, marked, strict=True) if some.records]
    series = {
        f"more than {_limit(misses)}": [s.records if m else 0 for s, m in hit],
        "less, or not known": [0 if m else s.records for s, m in hit],
    }
    colours = dict(zip(series, ("#c6302b", "#3a6ea5"), strict=True))
    series = {label: values for label, values in series.items() if any(values)}
    names = [f"{some.reader} · {some.topic}" for some, _ in hit]
    picture = bars(folder / "missed-readers.png", names, series, "records missed", colours)
    legend = (
        "<p class=faint>“Of all” is the share of the messages that were published between the "
        f"reader's subscription and its last miss. A share above {_limit(misses)} is marked: give "
        "such a reader more room, or more readers.</p>"
    )
    body = table(heads, rows, marked) + _left(len(readers), "readers") + legend
    return f"<h3>By reader</h3>{picture if hit else ''}{body}"


def _longest(gaps: list[LongGap]) -> str:
    if not gaps:
        return ""
    rows = [
        (
            gap.topic,
            gap.partition,
            f"{gap.first:,} to {gap.next - 1:,}",
            gap.records,
            gap.kind,
            gap.reader,
            f"{gap.time:%Y-%m-%d %H:%M:%S}",
        )
        for gap in gaps[:ROWS_MAX]
    ]
    heads = ("topic", "partition", "offsets", "records", "why", "reader", "time (UTC)")
    return f"<h3>Longest gaps</h3>{table(heads, rows)}"


def _left(count: int, what: str) -> str:
    return f"<p>… and {count - ROWS_MAX:,} {what} more.</p>" if count > ROWS_MAX else ""


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


# Without drop records


def counted_misses(info: TopicInfo) -> int:
    return info.counters.skipped_records + info.counters.lost_records + info.counters.disconnects


def _counted(folder: Path, topics: Iterable[TopicInfo]) -> str:
    since = "<p>Counted since the broker started.</p>"
    hit = sorted(filter(counted_misses, topics), key=counted_misses, reverse=True)
    if not hit:
        return TITLE + none("No reader has missed a record.")
    rows = [
        (
            info.name,
            info.counters.skipped_records,
            info.counters.lost_records,
            info.counters.disconnects,
        )
        for info in hit
    ]
    series = {"skipped": [row[1] for row in rows], "lost": [row[2] for row in rows]}
    colours = {"skipped": KINDS["skipped"], "lost": KINDS["retention"]}
    names = [row[0] for row in rows]
    picture = bars(folder / "missed-topics.png", names, series, "records missed", colours)
    heads = ("topic", "records skipped", "records lost", "readers cut off")
    return TITLE + since + picture + table(heads, rows[:ROWS_MAX])
