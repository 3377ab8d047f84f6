"""Finds the dead letters of a table that match a condition. What the table does not have (a key, a
long reason, a text in a value) is read from the log in the background. Requests meanwhile get what
is known.

Law: a match is computed once, and only updated after that, however often it is requested.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fanlog.client.dead_letters import position_of
from fanlog.listeners.web.dead_reading import TOGETHER, read_letters

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.broker.slices import Slices
    from fanlog.client.dead_letters import DeadLetter
    from fanlog.listeners.web.dead_table import LetterTable

# Rows checked between two looks at the clock.
_STEP = 1_000


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A condition. Empty fields match everything."""

    group: str = ""
    reason: str = ""
    queue: str = ""
    origin: str = ""
    key: str = ""
    text: str = ""
    since_us: int | None = None
    until_us: int | None = None

    def fits(self, letter: DeadLetter) -> bool:
        """Whether it matches a dead letter, apart from group and time, which the table has."""
        death = letter.death
        return (
            self.queue in ("", death.queue)
            and self.origin in ("", death.topic)
            and self.reason in death.reason
            and (not self.key or death.key == self.key.encode())
            and (not self.text or _has_text(letter, self.text))
        )


def _has_text(letter: DeadLetter, text: str) -> bool:
    wanted = text.encode()
    fields = (letter.value, letter.death.key, *letter.headers.values())
    return text in letter.death.reason or any(wanted in field for field in fields if field)


class _Look(NamedTuple):
    """Rows that may match, and those of them that must be read to know."""

    tests: list[Callable[[int], bool]]
    doubts: list[Callable[[int], bool]]

    def may_fit(self, rows: list[int]) -> list[int]:
        for test in self.tests:
            rows = [row for row in rows if test(row)]
        return rows

    def must_read(self, rows: list[int]) -> list[int]:
        return [row for row in rows if any(doubt(row) for doubt in self.doubts)]


def _look(table: LetterTable, wanted: DeadLetterFilter) -> _Look:
    """What the columns tell about a condition."""
    tests: list[Callable[[int], bool]] = []
    doubts: list[Callable[[int], bool]] = []
    if wanted.group:
        group = table.maybe_group(wanted.group)
        groups = table.groups
        tests.append(lambda row: groups[row] == group)
    if wanted.queue or wanted.origin:
        sources = table.sources
        named = {
            number
            for number, source in enumerate(table.source_list)
            if wanted.queue in ("", source.queue) and wanted.origin in ("", source.topic)
        }
        tests.append(lambda row: sources[row] in named or not sources[row])
        doubts.append(lambda row: not sources[row])
    if wanted.reason:
        texts = table.texts
        having = {n for n, text in enumerate(table.text_list) if wanted.reason in text}
        tests.append(lambda row: texts[row] in having or not texts[row])
        doubts.append(lambda row: not texts[row])
    if wanted.key:
        hashes, key_hash = table.key_hashes, hash(wanted.key.encode())
        tests.append(lambda row: hashes[row] == key_hash)
    if wanted.key or wanted.text:
        doubts.append(lambda row: True)
    died = table.died_us
    if wanted.since_us is not None:
        since = wanted.since_us
        tests.append(lambda row: died[row] >= since)
    if wanted.until_us is not None:
        until = wanted.until_us
        tests.append(lambda row: died[row] < until)
    return _Look(tests, doubts)


class Match:
    """The matching rows. `seen`: how many rows of the table were checked."""

    def __init__(
        self, broker: BrokerCore, topic: BrokerTopic, table: LetterTable, wanted: DeadLetterFilter
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._table = table
        self._wanted = wanted
        self._removed: int = table.removed
        self.generation = table.generation
        self.rows = array("I")
        self.seen = 0

    @property
    def reads(self) -> bool:
        """Whether the log may have to be read."""
        return bool(self._wanted.key or self._wanted.text or self._wanted.reason)

    async def update(self) -> None:
        """Checks new rows, and drops rows that are gone."""
        table = self._table
        look = _look(table, self._wanted)
        slices = self._broker.slices
        end = len(table)
        async for begin in slices.each(range(self.seen, end, _STEP)):
            some = range(begin, min(begin + _STEP, end))
            live = table.live
            rows = look.may_fit([row for row in some if live[row]])
            doubtful = look.must_read(rows) if look.doubts else []
            if doubtful:
                wrong = set(doubtful) - await self._read(doubtful)
                rows = [row for row in rows if row not in wrong]
            if table.generation != self.generation:
                return
            self.rows.extend(rows)
            self.seen = some.stop
        await self._drop_gone()

    async def _read(self, rows: Sequence[int]) -> set[int]:
        """The rows that match, by their records in the log."""
        positions = {self._table.position(row): row for row in rows}
        fitting: set[int] = set()
        async for letters in read_letters(self._broker, self._topic, list(positions)):
            async for letter in self._broker.slices.each(letters):
                if self._wanted.fits(letter):
                    fitting.add(positions[position_of(letter.id)])
        return fitting

    async def positions(self) -> DeadLetterPositions | None:
        """Their positions; None if rows were renumbered meanwhile."""
        positions, rows = DeadLetterPositions(), self.rows
        async for begin in self._broker.slices.each(range(0, len(rows), _STEP)):
            if self._table.generation != self.generation:
                return None
            positions.add([self._table.position(row) for row in rows[begin : begin + _STEP]])
        return positions

    async def _drop_gone(self) -> None:
        table, removed = self._table, self._table.removed
        if removed == self._removed:
            return
        left = array("I")
        async for begin in self._broker.slices.each(range(0, len(self.rows), _STEP)):
            if table.generation != self.generation:
                return
            live = table.live
            left.extend(row for row in self.rows[begin : begin + _STEP] if live[row])
        self.rows, self._removed = left, removed


class DeadLetterPositions:
    """Positions of many dead letters, in ten bytes each."""

    def __init__(self) -> None:
        self._partitions = array("H")
        self._offsets = array("q")

    def add(self, positions: Sequence[tuple[int, int]]) -> None:
        self._partitions.extend(position[0] for position in positions)
        self._offsets.extend(position[1] for position in positions)

    def __len__(self) -> int:
        return len(self._offsets)

    def some(self) -> Iterator[list[tuple[int, int]]]:
        """All of them, in groups that are read together."""
        for at in range(0, len(self._offsets), TOGETHER):
            end = at + TOGETHER
            yield list(zip(self._partitions[at:end], self._offsets[at:end], strict=True))

    async def page_after(
        self, slices: Slices, behind: tuple[int, int], limit: int
    ) -> list[tuple[int, int]]:
        """The first ones after a position."""
        first: list[tuple[int, int]] = []
        async for at in slices.each(range(0, len(self._offsets), _STEP)):
            end = at + _STEP
            some = zip(self._partitions[at:end], self._offsets[at:end], strict=True)
            first += [position for position in some if position > behind]
            if len(first) > 4 * limit:
                first = sorted(first)[:limit]
        return sorted(first)[:limit]
