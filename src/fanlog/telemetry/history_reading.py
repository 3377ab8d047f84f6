"""Reading the history: some series over some time, on a grid of equal steps.

What is captured on the event loop can be read in a thread: rows never change, and a column's
number of its first row keeps out those of the series that had the column before.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from math import isnan
from typing import NamedTuple

from fanlog.telemetry.history import Column, HistoryRings, HistoryRow, Tier


class Grid(NamedTuple):
    """Cells of `step` seconds from `start` on."""

    start: int
    step: int
    cells: int

    @property
    def end(self) -> int:
        return self.start + self.step * self.cells

    def times(self) -> list[int]:
        return list(range(self.start, self.end, self.step))

    def earlier(self, seconds: int) -> Grid:
        return self._replace(start=self.start - seconds)


class _TierRows(NamedTuple):
    tier: Tier
    first: int
    rows: list[HistoryRow]


class _RowPart(NamedTuple):
    """A row as a grid needs it: which cells it is in, and where it comes from."""

    cells: range
    values: array[float]
    tier: int
    number: int


class Captured:
    """The rows that there were at one moment, and some of the series."""

    def __init__(self, history: HistoryRings, names: Sequence[str]) -> None:
        self._held = [_TierRows(ring.tier, ring.first, list(ring.rows)) for ring in history.rings]
        self._columns = {name: history.columns.get(name) for name in names}

    def read(
        self, grid: Grid, now: float, pause: Callable[[], object] = lambda: None
    ) -> dict[str, list[float | None]]:
        """The values of each series in each cell; None where there is none. `pause` is called after
        each series: a thread lets others work then."""
        parts = self._parts(grid, now)
        found: dict[str, list[float | None]] = {}
        for name, column in self._columns.items():
            pause()
            found[name] = [None] * grid.cells if column is None else _values(column, grid, parts)
        return found

    def _parts(self, grid: Grid, now: float) -> list[_RowPart]:
        """The rows that fall on a grid: of the finest tier that goes back so far. What a coarser
        tier does not have yet comes from the finer ones."""
        at = tier_for([held.tier for held in self._held], grid.start, now, grid.step)
        parts: list[_RowPart] = []
        since, until = grid.start, min(grid.end, math.ceil(now) + 1)
        for tier in range(at, -1, -1):
            step, first, rows = self._held[tier].tier.step_seconds, *self._held[tier][1:]
            # Of several rows for one slot the last counts: the clock was set back.
            found = {
                row.slot: (number, row)
                for number, row in enumerate(rows, first)
                if since < (row.slot + 1) * step and row.slot * step < until
            }
            for slot, (number, row) in found.items():
                begin = max(0, (slot * step - grid.start) // grid.step)
                end = -(-((slot + 1) * step - grid.start) // grid.step)
                # A row that is shorter than a cell is in the one where it begins.
                end = end if step > grid.step else begin + 1
                cells = range(begin, min(grid.cells, end))
                parts.append(_RowPart(cells, row.values, tier, number))
            if found:
                since = (max(found) + 1) * step
        return parts


def _values(column: Column, grid: Grid, parts: list[_RowPart]) -> list[float | None]:
    index, born, highest = column.index, column.born, column.highest
    sums: list[float | None] = [None] * grid.cells
    counts = [0] * grid.cells
    for cells, values, tier, number in parts:
        if number < born[tier] or index >= len(values):
            continue
        value = values[index]
        if isnan(value):
            continue
        for cell in cells:
            known = sums[cell]
            counts[cell] += 1
            if known is None:
                sums[cell] = value
            else:
                sums[cell] = max(known, value) if highest else known + value
    if highest:
        counts = [1] * grid.cells
    return [
        None if total is None else float(f"{total / count:.6g}")
        for total, count in zip(sums, counts, strict=True)
    ]


def tier_for(tiers: Sequence[Tier], begin: float, now: float, slack: int = 0) -> int:
    """The finest tier that goes back to `begin`, but for `slack` seconds: the first cell of a grid
    may begin a little before the requested time."""
    for at, tier in enumerate(tiers):
        if now - begin <= tier.span_seconds + max(tier.step_seconds, slack):
            return at
    return len(tiers) - 1


def make_grid(tiers: Sequence[Tier], begin: float, end: float, now: float, points_max: int) -> Grid:
    """A grid over a time with at most this number of cells, and one more. They begin at multiples
    of the step, so that one who asks again sees the same cells."""
    step = tiers[tier_for(tiers, begin, now)].step_seconds
    span = max(end - begin, step)
    step *= max(1, math.ceil(span / (step * points_max)))
    start = int(begin // step) * step
    return Grid(start, step, int((end - start) // step) + 1)
