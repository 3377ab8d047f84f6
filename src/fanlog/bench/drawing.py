"""What all pictures of reports share: the empty picture, colours, ticks, bars.

Law: nothing here knows a report. matplotlib is optional and slow to import, so it is imported when
the first picture is drawn.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from fanlog.bench.figures import count
from fanlog.bench.systems import BenchError

# matplotlib's own annotations leave the keywords of nearly every method unknown.
Axes: TypeAlias = Any
Figure: TypeAlias = Any

COLOURS = {
    "fanlog, 64 a batch": "#0b6e4f",
    "fanlog, 1 a batch": "#5fbf8f",
    "fanlog, redis port": "#5fbf8f",
    "fanlog": "#0b6e4f",
    "redis": "#c6302b",
    "nats": "#3a6ea5",
}
OTHER_COLOUR = "#888888"
WIDTH_INCHES = 8.0
HEIGHT_INCHES = 4.6
BAR_INCHES = 0.36
RESOLUTION_DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """An empty picture that needs no display."""
    try:
        from matplotlib import figure as drawing
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise BenchError("Plots need matplotlib: run `pip install 'fanlog[bench]'`.") from None
    figure = drawing.Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colour_of(label: str) -> str:
    """The system's colour."""
    return COLOURS.get(label, OTHER_COLOUR)


def count_tick(value: float, _: int) -> str:
    """A rate at an axis."""
    for unit, letter in ((1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def plain_tick(value: float, _: int) -> str:
    """A time at an axis."""
    return f"{value:,.0f}"


def steps_between(values: list[float]) -> list[float]:
    """1, 2, 5, 10, 20 and so on, from just below the least to just above the greatest."""
    steps = [step * 10.0**power for power in range(13) for step in (1, 2, 5)]
    low = max([step for step in steps if step <= min(values)], default=steps[0])
    high = min([step for step in steps if step >= max(values)], default=steps[-1])
    return [step for step in steps if low <= step <= high]


def finish(axes: Axes, title: str) -> None:
    """What all pictures have in common."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)


def draw_bars(
    axes: Axes,
    labels: list[str],
    values: list[float],
    colours: list[str],
    *,
    faded: list[bool] | None = None,
    notes: list[str] | None = None,
    logarithmic: bool = False,
) -> None:
    """Horizontal bars, the first on top, each with its figure and an optional note at its end."""
    bars = axes.barh(range(len(values)), values, color=colours, height=0.7)
    for bar, is_faded in zip(bars, faded or [False] * len(values), strict=True):
        bar.set_alpha(0.4 if is_faded else 1.0)
    ends = zip(values, notes or [""] * len(values), strict=True)
    axes.bar_label(bars, [f"{count(value)}{note}" for value, note in ends], padding=4, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 4)
    else:
        axes.set_xlim(0, max(values) * (1.25 if notes else 1.15))
    axes.xaxis.set_major_formatter(count_tick)
