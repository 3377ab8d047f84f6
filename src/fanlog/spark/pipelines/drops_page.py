"""The report of `drops` as a page with pictures, which needs nothing beside it: `report.html`. The
pictures are there as files, too, and the figures as `report.json`."""

import base64
import datetime as dt
import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fanlog.errors import ConfigError
from fanlog.model import GroupInfo, TopicInfo

COLOURS = (
    *("#c6302b", "#3a6ea5", "#e0a030", "#0b6e4f", "#7b4fa3", "#5fbf8f", "#a06040", "#d07aa0"),
    *("#708090", "#9aa52b"),
)
OTHERS = "others"
OTHERS_COLOUR = "#bbbbbb"
WIDTH_INCHES = 9.0
ROW_INCHES = 0.38
ROWS_MAX = 20
BARS_MAX = 400
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;text-align:left;"
    "border-bottom:1px solid #ddd}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "img{max-width:100%}.none{color:#0b6e4f}"
)


class LetterCount(NamedTuple):
    """Dead letters of one kind in one interval; `waiting` of them are still there."""

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


class Facts(NamedTuple):
    topics: list[TopicInfo]
    groups: list[GroupInfo]
    letters: list[LetterCount]
    holes: list[Hole]


def write_report(folder: Path, facts: Facts, *, reasons_max: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        _dropped(folder, facts.topics),
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


def _figures(facts: Facts) -> dict[str, Any]:
    return {
        "dropped": {info.name: info.counters for info in facts.topics if _missed(info)},
        "letters": [some._asdict() for some in facts.letters],
        "lag": {info.name: info.lag for info in facts.groups},
        "holes": [some._asdict() for some in facts.holes],
    }


# What slow readers missed


def _missed(info: TopicInfo) -> int:
    return info.counters.skipped_records + info.counters.lost_records + info.counters.disconnects


def _dropped(folder: Path, topics: list[TopicInfo]) -> str:
    title = "<h2>Dropped</h2><p>What slow readers of a topic missed since the broker started.</p>"
    hit = sorted((info for info in topics if _missed(info)), key=_missed, reverse=True)
    if not hit:
        return title + _none("No reader has missed a record.")
    rows = [
        (
            info.name,
            info.counters.skipped_records,
            info.counters.lost_records,
            info.counters.disconnects,
        )
        for info in hit
    ]
    bars = {"skipped": [row[1] for row in rows], "lost": [row[2] for row in rows]}
    picture = _bars(folder / "dropped.png", [row[0] for row in rows], bars, "records")
    heads = ("topic", "records skipped", "records lost", "readers cut off")
    return title + picture + _table(heads, rows)


# Dead letters


def _dead(folder: Path, letters: list[LetterCount], reasons_max: int) -> str:
    title = "<h2>Dead letters</h2><p>Jobs and rows that were given up, and why.</p>"
    if not letters:
        return title + _none("There are none.")
    kinds: Counter[tuple[str, str, str]] = Counter()
    waiting: Counter[tuple[str, str, str]] = Counter()
    reasons: Counter[str] = Counter()
    for some in letters:
        kind = (some.source, some.queue, some.reason)
        kinds[kind] += some.letters
        waiting[kind] += some.waiting
        reasons[some.reason] += some.letters
    shown = [reason for reason, _ in reasons.most_common(reasons_max)]
    picture = _over_time(folder / "dead.png", letters, shown)
    rows = [(*kind, count, waiting[kind]) for kind, count in kinds.most_common(ROWS_MAX)]
    left = len(kinds) - len(rows)
    more = f"<p>… and {left} kinds more.</p>" if left else ""
    heads = ("from", "queue", "reason", "letters", "still there")
    return title + picture + _table(heads, rows) + more


def _over_time(path: Path, letters: list[LetterCount], shown: list[str]) -> str:
    """Bars over time, a colour for each reason."""
    starts = _all_starts({some.start for some in letters})
    places = {start: i for i, start in enumerate(starts)}
    heights: dict[str, list[int]] = defaultdict(lambda: [0] * len(starts))
    for some in letters:
        reason = some.reason if some.reason in shown else OTHERS
        heights[reason][places[some.start]] += some.letters
    figure = _figure(WIDTH_INCHES, 4.2)
    axes = figure.add_subplot()
    bottom = [0] * len(starts)
    names = [*shown, *([OTHERS] if OTHERS in heights else [])]
    for i, reason in enumerate(names):
        colour = OTHERS_COLOUR if reason == OTHERS else COLOURS[i % len(COLOURS)]
        label = reason if len(reason) <= 48 else f"{reason[:47]}…"
        axes.bar(range(len(starts)), heights[reason], 0.8, bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, heights[reason], strict=True)]
    step = max(1, len(starts) // 6)
    ticks = range(0, len(starts), step)
    axes.set_xticks(list(ticks), [starts[i].strftime("%d %b %H:%M") for i in ticks])
    axes.set_xlim(-0.9, max(4, len(starts)) - 0.1)
    axes.set_ylabel("dead letters")
    _plain(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return _saved(figure, path)


def _all_starts(known: set[dt.datetime]) -> list[dt.datetime]:
    """The intervals from the first to the last, also those in which nothing died: a quiet night
    should look like one."""
    starts = sorted(known)
    if len(starts) < 2:
        return starts
    step = min(b - a for a, b in pairwise(starts))
    count = (starts[-1] - starts[0]) // step + 1
    return starts if count > BARS_MAX else [starts[0] + step * i for i in range(count)]


# Who is behind


def _lagging(folder: Path, groups: list[GroupInfo]) -> str:
    title = "<h2>Lag</h2><p>Groups and queues that have not done all that is there.</p>"
    behind = sorted((info for info in groups if info.lag), key=lambda info: -info.lag)
    if not behind:
        return title + _none("Nobody is behind.")
    rows = [
        (info.name, info.kind, info.state, info.lag, f"{info.lag_seconds:,.0f} s")
        for info in behind
    ]
    lags = {"lag": [info.lag for info in behind]}
    picture = _bars(folder / "lag.png", [info.name for info in behind], lags, "records behind")
    return title + picture + _table(("group", "kind", "state", "records", "oldest"), rows)


def _holes(holes: list[Hole]) -> str:
    if not holes:
        return ""
    rows = [(some.topic, some.partition, some.first, some.last, some.missing) for some in holes]
    title = "<h2>Holes in the lake</h2><p>Records that were gone before they were archived.</p>"
    return title + _table(("topic", "partition", "first", "last", "missing"), rows)


# Drawing and writing


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib import figure  # noqa: PLC0415
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "The report's plots need matplotlib: run pip install matplotlib."
        ) from None
    made = figure.Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def _bars(path: Path, names: Sequence[str], series: dict[str, list[int]], unit: str) -> str:
    """Horizontal bars, the longest on top, one behind the other for each series."""
    names = names[:ROWS_MAX]
    figure = _figure(WIDTH_INCHES, 1.2 + ROW_INCHES * len(names))
    axes = figure.add_subplot()
    left = [0] * len(names)
    for i, (label, every) in enumerate(series.items()):
        values = every[: len(names)]
        axes.barh(range(len(names)), values, 0.7, left, color=COLOURS[i], label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for i, total in enumerate(left):
        axes.annotate(f" {total:,}", (total, i), va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    _plain(axes)
    if len(series) > 1:
        axes.legend(frameon=False)
    return _saved(figure, path)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _saved(figure: Any, path: Path) -> str:
    figure.savefig(path, dpi=110)
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{path.stem}" src="data:image/png;base64,{data}"></p>'


def _none(sentence: str) -> str:
    return f"<p class=none>{sentence}</p>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    rows = list(rows)
    numeric = [all(isinstance(row[i], int) for row in rows) for i in range(len(heads))]
    marks = [" class=n" if some else "" for some in numeric]
    head = "".join(f"<th{mark}>{name}</th>" for mark, name in zip(marks, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{m}>{_shown(cell)}</td>" for m, cell in zip(marks, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else html.escape(str(cell))
