"""Draws the report of `drops`: its pictures, each a file and a part of the page, and its tables.
The sections decide their content."""

import base64
import datetime as dt
import html
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fanlog.errors import ConfigError

COLOURS = (
    *("#3a6ea5", "#e0a030", "#0b6e4f", "#c6302b", "#7b4fa3", "#5fbf8f", "#a06040", "#d07aa0"),
    *("#708090", "#9aa52b"),
)
OTHERS = "others"
OTHERS_COLOUR = "#bbbbbb"
INK, FAINT_INK, GRID = "#333333", "#777777", "#e6e6e6"
WIDTH_INCHES = 9.0
ROW_INCHES = 0.36
ROWS_MAX = 20
BARS_MAX = 400
# A few bars would be too wide.
BARS_MIN = 12
TICKS_MAX = 7
NAME_LENGTH_MAX = 48
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;"
    "color:#222}h2{margin-top:2em;border-bottom:2px solid #eee}h3{margin:1.6em 0 0}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;text-align:left;"
    "border-bottom:1px solid #ddd}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "tr.warn td{background:#fdf0ea}tr.warn td:first-child{box-shadow:inset 4px 0 #c6302b}"
    "tr.warn td:first-child::before{content:'\\26a0\\00a0';color:#c6302b}"
    ".big{font-size:1.15em}img{max-width:100%}.none{color:#0b6e4f}.faint{color:#777}"
)


class ChartPoint(NamedTuple):
    """An amount in the interval that begins then."""

    start: dt.datetime
    name: str
    height: int


def figure_of(width: float, height: float) -> Any:
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


def over_time(
    path: Path,
    points: Iterable[ChartPoint],
    shown: Sequence[str],
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> str:
    """Bars over time, a colour for each name. Names that are not `shown` count as others."""
    points = list(points)
    starts = _all_starts({point.start for point in points})
    columns = {start: i for i, start in enumerate(starts)}
    heights: dict[str, list[int]] = defaultdict(lambda: [0] * len(starts))
    for point in points:
        name = point.name if point.name in shown else OTHERS
        heights[name][columns[point.start]] += point.height
    figure = figure_of(WIDTH_INCHES, 3.8)
    axes = figure.add_subplot()
    bottom = [0] * len(starts)
    names = [*shown, *([OTHERS] if OTHERS in heights else [])]
    for i, name in enumerate(names):
        colour = OTHERS_COLOUR if name == OTHERS else COLOURS[i % len(COLOURS)]
        colour = (colours or {}).get(name, colour)
        axes.bar(range(len(starts)), heights[name], 0.85, bottom, color=colour, label=_short(name))
        bottom = [a + b for a, b in zip(bottom, heights[name], strict=True)]
    _time_axis(axes, starts)
    axes.set_ylim(0, max(bottom) * 1.06 or 1)
    axes.set_ylabel(unit)
    _plain(axes, "y")
    figure.legend(loc="outside lower center", ncols=min(len(names), 3), frameon=False)
    return _saved(figure, path)


def _all_starts(known: set[dt.datetime]) -> list[dt.datetime]:
    """All intervals from the first to the last, empty ones included: a quiet night should look like
    one."""
    starts = sorted(known)
    if len(starts) < 2:
        return starts
    step = min(b - a for a, b in pairwise(starts))
    count = (starts[-1] - starts[0]) // step + 1
    return starts if count > BARS_MAX else [starts[0] + step * i for i in range(count)]


def _time_axis(axes: Any, starts: Sequence[dt.datetime]) -> None:
    step = -(-len(starts) // TICKS_MAX)
    ticks = list(range(0, len(starts), step))
    clock = "%H:%M:%S" if any(start.second for start in starts) else "%H:%M"
    labels = [starts[i].strftime(f"{clock}\n%d %b") for i in ticks]
    axes.set_xticks(ticks, labels)
    room = max(0, BARS_MIN - len(starts)) / 2
    axes.set_xlim(-0.7 - room, len(starts) - 0.3 + room)


def bars(
    path: Path,
    names: Sequence[str],
    series: Mapping[str, Sequence[int]],
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> str:
    """Horizontal bars, the longest on top, one behind the other for each series."""
    names = names[:ROWS_MAX]
    rows = range(len(names))
    figure = figure_of(WIDTH_INCHES, 1.1 + ROW_INCHES * len(names))
    axes = figure.add_subplot()
    left = [0] * len(names)
    for i, (label, every) in enumerate(series.items()):
        values = every[: len(names)]
        colour = (colours or {}).get(label, COLOURS[i % len(COLOURS)])
        axes.barh(rows, values, 0.7, left, color=colour, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for i, total in enumerate(left):
        axes.annotate(
            f"{total:,}",
            (total, i),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
        )
    axes.set_yticks(rows, [_short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max(left) * 1.12 or 1)
    axes.set_xlabel(unit)
    _plain(axes, "x")
    if len(series) > 1:
        figure.legend(loc="outside upper right", ncols=len(series), frameon=False)
    return _saved(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH_MAX else f"{name[: NAME_LENGTH_MAX - 1]}…"


def _plain(axes: Any, figures: str) -> None:
    """Grid lines for the axis with figures, and nothing else."""
    axes.spines[["top", "right", "left" if figures == "y" else "bottom"]].set_visible(False)
    axes.spines[:].set_color(FAINT_INK)
    axes.tick_params(length=0, colors=FAINT_INK)
    axes.tick_params(axis="x" if figures == "y" else "y", labelcolor=INK)
    axes.grid(axis=figures, color=GRID)
    axes.set_axisbelow(True)
    axis = axes.yaxis if figures == "y" else axes.xaxis
    axis.set_major_formatter("{x:,.0f}")
    axis.get_major_locator().set_params(integer=True, nbins=6)
    axis.label.set_color(FAINT_INK)


def _saved(figure: Any, path: Path) -> str:
    figure.savefig(path, dpi=110)
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{path.stem}" src="data:image/png;base64,{data}"></p>'


# Text


def none(sentence: str) -> str:
    return f"<p class=none>{sentence}</p>"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], marked: Sequence[bool] = ()
) -> str:
    """Figures stand to the right. Rows that are `marked` are a warning."""
    rows = list(rows)
    right = [all(_is_figure(row[i]) for row in rows) for i in range(len(heads))]
    sides = [" class=n" if some else "" for some in right]
    head = "".join(f"<th{side}>{name}</th>" for side, name in zip(sides, heads, strict=True))
    body = "".join(
        f"<tr{' class=warn' if i < len(marked) and marked[i] else ''}>"
        + "".join(f"<td{side}>{_cell(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _is_figure(cell: object) -> bool:
    return isinstance(cell, int) or (isinstance(cell, str) and cell.endswith(("–", " %", " s")))


def _cell(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else html.escape(str(cell))
