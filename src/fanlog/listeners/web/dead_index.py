"""An index of the dead letters of each topic, for people. The first request for a topic starts
reading it in the background. After that the index reads only new records. A request waits for a
bounded time, then gets what is known, and the progress.

Law: the index is bounded, and goes when nobody has asked for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from fanlog.errors import LimitError, TopicDeletedError
from fanlog.listeners.web.dead_matches import DeadLetterFilter, DeadLetterPositions, Match
from fanlog.listeners.web.dead_reading import read_stretch
from fanlog.listeners.web.dead_table import LetterTable

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic, Partition

logger = logging.getLogger("fanlog.listeners")

# About 200 bytes of memory each.
ROWS_MAX = 2_000_000
# Indexed topics: 40 kB each, even without dead letters.
TOPICS_MAX = 1000
_IDLE_SECONDS = 300.0
_SWEEP_SECONDS = 60.0
# Conditions of one topic with cached matches.
_MATCHES_MAX = 8
# Topics, and searches, that read at the same time.
_AT_A_TIME = 2
# An answer waits this long for missing data.
PATIENCE_SECONDS = 0.8


class IndexProgress(NamedTuple):
    """Records read, of all records."""

    done: int
    total: int


class _Gates(NamedTuple):
    """Limits how many topics are read at once, so that a long search delays no other topic."""

    reading: asyncio.Semaphore
    searching: asyncio.Semaphore


class DeadLetterIndex:
    """The dead letters of one topic."""

    def __init__(self, broker: BrokerCore, topic: BrokerTopic, gates: _Gates) -> None:
        self._broker = broker
        self.topic = topic
        self.table = LetterTable()
        self._gates = gates
        # The first offset that each log had, and the next one to read.
        self._starts: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._reading: asyncio.Task[None] | None = None
        self._matches: dict[DeadLetterFilter, Match] = {}
        self._matching: dict[DeadLetterFilter, asyncio.Task[None]] = {}
        # Conditions whose whole match is needed, for example by a task that deletes it.
        self._needed: Counter[DeadLetterFilter] = Counter()
        self.asked_at = 0.0
        # Held while dead letters are replayed or deleted, so that none is replayed twice.
        self.settling = asyncio.Lock()

    @property
    def progress(self) -> IndexProgress:
        done = total = 0
        for partition in self.topic.partitions:
            start, end = partition.log.start_offset, partition.visible_end
            total += end - start
            done += max(0, min(end, self._positions.get(partition.index, start)) - start)
        return IndexProgress(done, total)

    @property
    def is_needed(self) -> bool:
        """Whether a task or an export uses it."""
        return self.settling.locked() or bool(self._needed)

    def _ends(self) -> list[tuple[Partition, int, int]]:
        return [(p, p.log.start_offset, p.visible_end) for p in self.topic.partitions]

    def _has(self, ends: list[tuple[Partition, int, int]]) -> bool:
        return all(
            self._positions.get(p.index, 0) >= end and self._starts.get(p.index, 0) >= start
            for p, start, end in ends
        )

    async def ready(self, wait_seconds: float | None = None) -> bool:
        """Waits at most this long. Returns whether the index has all that is visible now."""
        loop = asyncio.get_running_loop()
        self.asked_at = loop.time()
        until = None if wait_seconds is None else loop.time() + wait_seconds
        ends = self._ends()
        while not self._has(ends):
            if self.topic.deleted:
                raise TopicDeletedError(f"Topic {self.topic.name!r} was deleted.")
            # Another waiter may start the next reading before this one resumes.
            reading = self._reading
            if reading is None or reading.done():
                reading = self._reading = loop.create_task(self._read())
            if not await _within(reading, until) or (reading.cancelled() and until is not None):
                return False
            reading.result()
        self._check_size()
        return True

    async def _read(self) -> None:
        """Reads new records."""
        async with self._gates.reading:
            for partition, start, end in self._ends():
                await self._read_partition(partition, start, end)
            if self.table.mostly_gone:
                await self._steps(self.table.renumber())

    async def _read_partition(self, partition: Partition, start: int, end: int) -> None:
        index, table = partition.index, self.table
        if start > self._starts.get(index, 0):
            await self._steps(table.forget_before(index, start))
            self._starts[index] = start
        position = max(start, self._positions.get(index, 0))
        while position < end:
            stretch = await read_stretch(self._broker, partition, position)
            await self._steps(table.take(index, stretch.records))
            position = self._positions[index] = stretch.next_offset
            self._check_size()
        self._positions[index] = position

    def _check_size(self) -> None:
        if self.table.count > ROWS_MAX:
            raise LimitError(
                f"{self.topic.name!r} has more than {ROWS_MAX:,} dead letters, too many to show "
                "one by one. Export, replay or purge them with: fanlog dead"
            )

    async def _steps(self, steps: Any) -> None:
        async for _ in self._broker.slices.each(steps):
            pass

    async def match(
        self, wanted: DeadLetterFilter, wait_seconds: float | None = None
    ) -> tuple[Match, bool]:
        """The dead letters that match a condition, and whether these are all. Other conditions may
        evict this one from the cache; the next request then starts again."""
        loop = asyncio.get_running_loop()
        until = None if wait_seconds is None else loop.time() + wait_seconds
        complete = await self.ready(wait_seconds)
        rows = len(self.table)
        while True:
            match = self._match(wanted)
            task = self._matching.get(wanted)
            if task is None or task.done():
                task = self._matching[wanted] = loop.create_task(self._update(match))
            if not await _within(task, until) or (task.cancelled() and until is not None):
                return match, False
            task.result()
            # Rows may have been renumbered meanwhile.
            if match.generation == self.table.generation and match.seen >= rows:
                return match, complete
            if until is not None and loop.time() >= until:
                return match, False
            rows = min(rows, len(self.table))

    async def positions(self, wanted: DeadLetterFilter) -> DeadLetterPositions:
        """The positions of all dead letters that match a condition now."""
        self._needed[wanted] += 1
        try:
            while True:
                match, _ = await self.match(wanted)
                positions = await match.positions()
                if positions is not None:
                    return positions
        finally:
            self._needed -= Counter([wanted])

    def _match(self, wanted: DeadLetterFilter) -> Match:
        match = self._matches.pop(wanted, None)
        if match is None or match.generation != self.table.generation:
            match = Match(self._broker, self.topic, self.table, wanted)
        # Moved to the end: the least recently requested one is evicted first.
        self._matches[wanted] = match
        others = [one for one in self._matches if one != wanted and one not in self._needed]
        for old in others[: max(0, len(self._matches) - _MATCHES_MAX)]:
            del self._matches[old]
            _cancel(self._matching.pop(old, None))
        return match

    async def _update(self, match: Match) -> None:
        async with self._gates.searching if match.reads else nullcontext():
            await match.update()

    def close(self) -> None:
        """It is no longer needed."""
        _cancel(self._reading)
        for task in self._matching.values():
            _cancel(task)
        self._broker.slices.in_slices(self.table.free_keys())


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()


async def _within(task: asyncio.Task[None], until: float | None) -> bool:
    """Whether a task ends before a moment. The task is not cancelled, even if this call is."""
    left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
    done, _ = await asyncio.wait({task}, timeout=left)
    return bool(done)


class DeadLetterIndexes:
    """The indexes of all topics in use."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._indexes: dict[int, DeadLetterIndex] = {}
        self._gates = _Gates(asyncio.Semaphore(_AT_A_TIME), asyncio.Semaphore(_AT_A_TIME))
        self._sweeper: asyncio.TimerHandle | None = None
        # Running exports.
        self.exports = 0

    def of(self, topic: BrokerTopic) -> DeadLetterIndex:
        index = self._indexes.pop(topic.number, None)
        if index is None or index.topic is not topic:
            index = DeadLetterIndex(self._broker, topic, self._gates)
        self._indexes[topic.number] = index
        if len(self._indexes) > TOPICS_MAX:
            self._forget_oldest()
        loop = asyncio.get_running_loop()
        index.asked_at = loop.time()
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return index

    def _forget_oldest(self) -> None:
        for number, index in self._indexes.items():
            if not index.is_needed:
                del self._indexes[number]
                index.close()
                return

    def about(self, topic: BrokerTopic) -> int:
        """How many dead letters a topic has: exact once it was read, and never too low."""
        index = self._indexes.get(topic.number)
        if index is not None and index.topic is topic:
            done, total = index.progress
            return min(total, index.table.count + total - done)
        return sum(p.visible_end - p.log.start_offset for p in topic.partitions)

    def _sweep(self) -> None:
        """Drops indexes that were not requested lately, and those above the limit."""
        loop = asyncio.get_running_loop()
        rows = sum(len(index.table) for index in self._indexes.values())
        for number, index in list(self._indexes.items()):
            idle = loop.time() - index.asked_at
            if index.topic.deleted or idle > _IDLE_SECONDS or rows > ROWS_MAX:
                if index.is_needed:
                    continue
                rows -= len(index.table)
                del self._indexes[number]
                index.close()
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep) if self._indexes else None

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for index in self._indexes.values():
            index.close()
        self._indexes.clear()
