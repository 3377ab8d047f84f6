"""The history of metrics in memory: rings of rows, each with one value of every series. No clock
and no files here; time comes with the values.

There are three rings. Every sample is a row of the first; when the slot of a coarser ring is over,
the finer ring's rows of that slot become one row there. Law: everything is bounded by numbers of
rows and of series, never by age. So a clock that jumps can't empty the history: rows of a wrong
time are only out of sight, and of two rows for the same time the later one counts.

A series has a column. A column is given to another series when all are taken and its own was not
sampled for longest; `born` says which rows are of the new one.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fanlog.telemetry.history_series import maybe_parse

NAN = math.nan


class Tier(NamedTuple):
    """How far apart rows are, and how many are kept."""

    step_seconds: int
    rows_max: int

    @property
    def span_seconds(self) -> int:
        return self.step_seconds * self.rows_max


# An hour at 5 s, a day at 1 min, and two weeks at 10 min: a week and the one before, to compare.
TIERS = (Tier(5, 720), Tier(60, 1440), Tier(600, 2016))


class HistoryRow(NamedTuple):
    """The values of one slot, which begins at `slot * step_seconds`. A column past the end has no
    value, and neither has a NaN."""

    slot: int
    values: array[float]


class NewRow(NamedTuple):
    """A row to write, its tier, and the series of its columns."""

    tier: int
    row: HistoryRow
    names: tuple[str, ...]


class Column:
    """The column of one series. `born` has the number of its first row in each tier."""

    __slots__ = ("born", "highest", "index", "name", "seen")

    def __init__(self, index: int, name: str, born: tuple[int, ...], seen: float) -> None:
        self.index = index
        self.name = name
        self.born = born
        self.seen = seen
        parsed = maybe_parse(name)
        self.highest = parsed is not None and parsed[1].highest


class Ring:
    """The rows of one tier, oldest first. `count` is how many there ever were."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.rows: deque[HistoryRow] = deque(maxlen=tier.rows_max)
        self.count = 0

    def append(self, row: HistoryRow) -> None:
        self.rows.append(row)
        self.count += 1

    @property
    def first(self) -> int:
        """The number of the oldest row that is still there."""
        return self.count - len(self.rows)

    def newest(self) -> Iterator[tuple[int, HistoryRow]]:
        """Rows with their numbers, the newest first."""
        for back, row in enumerate(reversed(self.rows)):
            yield self.count - 1 - back, row


class HistoryRings:
    """The rings and the series in them."""

    def __init__(self, series_max: int, tiers: Sequence[Tier] = TIERS) -> None:
        self.series_max = series_max
        self.rings = [Ring(tier) for tier in tiers]
        self.columns: dict[str, Column] = {}
        # By column. It is replaced when it changes: an old copy still describes its rows.
        self.names: tuple[str, ...] = ()
        self._restored_names: tuple[str, ...] | None = None
        self._restored: list[tuple[int, int]] = []

    def add(self, seconds: float, values: Mapping[str, float]) -> list[NewRow]:
        """Takes a sample at a time, and returns the rows that it makes."""
        self._admit(values, seconds)
        row = array("f", [NAN]) * len(self.names)
        for name, value in values.items():
            column = self.columns.get(name)
            if column is not None and math.isfinite(value):
                row[column.index] = value
                column.seen = seconds
        slot = int(seconds // self.rings[0].tier.step_seconds)
        return list(self._append(0, HistoryRow(slot, row)))

    def _append(self, at: int, row: HistoryRow) -> Iterator[NewRow]:
        """Adds a row to a ring, and completed rows to the coarser ones."""
        ring = self.rings[at]
        if at + 1 < len(self.rings) and ring.rows:
            ratio = self.rings[at + 1].tier.step_seconds // ring.tier.step_seconds
            over = ring.rows[-1].slot // ratio
            if over != row.slot // ratio:
                yield from self._append(at + 1, self._merged(ring, at, over, ratio))
        ring.append(row)
        yield NewRow(at, row, self.names)

    def _merged(self, ring: Ring, at: int, slot: int, ratio: int) -> HistoryRow:
        """The newest rows of a ring, as far as they are in one slot of the next."""
        parts: list[tuple[int, array[float]]] = []
        for number, row in ring.newest():
            if row.slot // ratio != slot:
                break
            parts.append((number, row.values))
        merged = array("f", [NAN]) * len(self.names)
        for column in self.columns.values():
            index, born = column.index, column.born[at]
            found = [
                value
                for number, values in parts
                if number >= born and index < len(values) and (value := values[index]) == value
            ]
            if found:
                merged[index] = max(found) if column.highest else sum(found) / len(found)
        return HistoryRow(slot, merged)

    def _admit(self, wanted: Mapping[str, float], seconds: float) -> None:
        """Gives columns to series that have none, and takes them from those not seen for
        longest. A series of this sample keeps its own."""
        new = [name for name in wanted if name not in self.columns]
        if not new:
            return
        names = list(self.names)
        room = self.series_max - len(names)
        born = tuple(ring.count for ring in self.rings)
        for name in new[: max(0, room)]:
            self.columns[name] = Column(len(names), name, born, seconds)
            names.append(name)
        rest = new[max(0, room) :]
        old = [column for column in self.columns.values() if column.name not in wanted]
        old.sort(key=lambda column: column.seen)
        for name, column in zip(rest, old, strict=False):
            del self.columns[column.name]
            self.columns[name] = Column(column.index, name, born, seconds)
            names[column.index] = name
        self.names = tuple(names)

    def restore(self, at: int, row: HistoryRow, names: tuple[str, ...]) -> None:
        """Restores a stored row, with the names of its columns at that time."""
        if names is not self._restored_names:
            self._restored_names = names
            self._restored = self._columns_now(names)
        moved = array("f", [NAN]) * len(self.names)
        size = len(row.values)
        for i, index in self._restored:
            if i < size:
                moved[index] = row.values[i]
        self.rings[at].append(HistoryRow(row.slot, moved))

    def _columns_now(self, names: tuple[str, ...]) -> list[tuple[int, int]]:
        """Which columns the columns of a file are now. Those past the limit are left out."""
        self.make_room(names)
        columns = enumerate(self.columns.get(name) for name in names)
        return [(i, column.index) for i, column in columns if column is not None]

    def make_room(self, names: Iterable[str]) -> None:
        """Gives columns to series that come back from disk, as long as there are any."""
        for name in names:
            if name and name not in self.columns and len(self.names) < self.series_max:
                born = (0,) * len(self.rings)
                self.columns[name] = Column(len(self.names), name, born, -math.inf)
                self.names += (name,)

    def restored(self) -> list[NewRow]:
        """Ends a restore: makes the coarser rows that a process which was killed did not get to,
        and returns them."""
        made = [new for at in range(len(self.rings) - 1) for new in self._catch_up(at)]
        unseen = set(self.columns.values())
        for ring in self.rings:
            for _, row in ring.newest():
                began = float(row.slot * ring.tier.step_seconds)
                size = len(row.values)
                for column in [
                    one
                    for one in unseen
                    if one.index < size and not math.isnan(row.values[one.index])
                ]:
                    column.seen = began
                    unseen.remove(column)
                if not unseen:
                    return made
        return made

    def _catch_up(self, at: int) -> Iterator[NewRow]:
        fine, coarse = self.rings[at], self.rings[at + 1]
        ratio = coarse.tier.step_seconds // fine.tier.step_seconds
        done = coarse.rows[-1].slot if coarse.rows else None
        rows = list(fine.rows)
        slots = [row.slot // ratio for row in rows]
        for i, slot in enumerate(slots[:-1]):
            if slots[i + 1] != slot and (done is None or slot > done):
                part = Ring(fine.tier)
                part.rows.extend(rows[max(0, i + 1 - ratio) : i + 1])
                part.count = fine.first + i + 1
                row = self._merged(part, at, slot, ratio)
                coarse.append(row)
                yield NewRow(at + 1, row, self.names)
