"""What is remembered of each dead letter of a topic: where it is, when and why it died, where it
came from. Half a million of them fit into memory, because there are columns of numbers and no
objects. Their values stay in the log.

| column      | meaning                                                            |
| ----------- | ------------------------------------------------------------------ |
| partitions  | where its record is: partition                                     |
| offsets     | and offset                                                         |
| died_us     | when it died                                                       |
| groups      | the number of its reason's group                                   |
| texts       | the number of its reason; 0: too long, or one of too many, to keep |
| sources     | the number of its topic and queue; 0: one of too many              |
| key_hashes  | of the job's key                                                   |
| live        | 1 until it is replayed, deleted or replaced                        |
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fanlog.listeners.web.dead_reasons import OTHER_REASONS

# Distinct reasons and origins. Further ones are counted under "other".
GROUPS_MAX = 2_000
SOURCES_MAX = 5_000
# Reasons that are kept in full, so that a search for a text need not read the log.
TEXTS_MAX = 10_000
TEXT_CHARACTERS_MAX = 500
# Records added between two looks at the clock.
STEP = 25
# Dead rows are removed when there are as many as live ones.
_GONE_MIN = 10_000
# One large dict takes tens of milliseconds when it grows; many small ones grow one by one.
_SHARDS = 512


class DeadLetterFacts(NamedTuple):
    """A record, read as a dead letter."""

    died_us: int
    reason: str
    group: str
    topic: str
    queue: str
    key_hash: int


# A record: its key, its offset, and its dead letter. None: a tombstone for its key.
Record = tuple[bytes | None, int, DeadLetterFacts | None]


class DeadLetterGroup:
    """Dead letters that died for the same reason. `stale`: the first, the last or the example is
    gone and must be found again."""

    __slots__ = ("count", "example", "first_us", "last_us", "number", "stale", "title")

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title
        self.count = 0
        self.first_us = 0
        self.last_us = 0
        self.example = -1
        self.stale = False

    def add(self, row: int, died_us: int) -> None:
        self.count += 1
        if self.count == 1:
            self.first_us = self.last_us = died_us
            self.example = row
            self.stale = False
            return
        self.first_us = min(self.first_us, died_us)
        if died_us >= self.last_us:
            self.last_us, self.example = died_us, row

    def remove(self, row: int, died_us: int) -> None:
        self.count -= 1
        if row == self.example or died_us <= self.first_us or died_us >= self.last_us:
            self.stale = True


class DeadLetterSource(NamedTuple):
    topic: str
    queue: str


_OTHER_SOURCE = DeadLetterSource("", "")


class LetterTable:
    """The columns, and the row of each dead letter. Rows are in the order of each partition's
    log."""

    def __init__(self) -> None:
        self.partitions = array("H")
        self.offsets = array("q")
        self.died_us = array("q")
        self.groups = array("I")
        self.texts = array("I")
        self.sources = array("I")
        self.key_hashes = array("q")
        self.live = bytearray()
        # How many are live, how many went, and how often rows were given new numbers.
        self.count = 0
        self.removed = 0
        self.generation = 0
        self._rows: list[dict[bytes | None, int]] = [{} for _ in range(_SHARDS)]
        self._by_partition: dict[int, array[int]] = {}
        self.group_list: list[DeadLetterGroup] = [DeadLetterGroup(0, OTHER_REASONS)]
        self._group_numbers: dict[str, int] = {OTHER_REASONS: 0}
        self.text_list: list[str] = [""]
        self._text_numbers: dict[str, int] = {"": 0}
        self.source_list: list[DeadLetterSource] = [_OTHER_SOURCE]
        self.source_counts: list[int] = [0]
        self._source_numbers: dict[DeadLetterSource, int] = {_OTHER_SOURCE: 0}

    def __len__(self) -> int:
        """Rows, live or not."""
        return len(self.offsets)

    # What the log says

    def take(self, partition: int, records: Sequence[Record]) -> Iterator[None]:
        """Adds records of a partition, in steps."""
        for at, (key, offset, found) in enumerate(records):
            rows = self._rows[hash(key) % _SHARDS]
            old = rows.pop(key, None)
            if old is not None:
                self.remove(old)
            if found is not None:
                rows[key] = self._add(partition, offset, found)
            if at % STEP == STEP - 1:
                yield

    def _add(self, partition: int, offset: int, found: DeadLetterFacts) -> int:
        row = len(self.offsets)
        group = self._group(found.group)
        source = self._source(DeadLetterSource(found.topic, found.queue))
        self.partitions.append(partition)
        self.offsets.append(offset)
        self.died_us.append(found.died_us)
        self.groups.append(group)
        self.texts.append(self._text(found.reason))
        self.sources.append(source)
        self.key_hashes.append(found.key_hash)
        self.live.append(1)
        self.group_list[group].add(row, found.died_us)
        self.source_counts[source] += 1
        own = self._by_partition.get(partition)
        if own is None:
            own = self._by_partition[partition] = array("I")
        own.append(row)
        self.count += 1
        return row

    def _group(self, title: str) -> int:
        number = self._group_numbers.get(title)
        if number is None:
            if len(self.group_list) > GROUPS_MAX:
                return 0
            number = self._group_numbers[title] = len(self.group_list)
            self.group_list.append(DeadLetterGroup(number, title))
        return number

    def _text(self, text: str) -> int:
        number = self._text_numbers.get(text)
        if number is None:
            if len(self.text_list) > TEXTS_MAX or len(text) > TEXT_CHARACTERS_MAX:
                return 0
            number = self._text_numbers[text] = len(self.text_list)
            self.text_list.append(text)
        return number

    def _source(self, source: DeadLetterSource) -> int:
        number = self._source_numbers.get(source)
        if number is None:
            if len(self.source_list) > SOURCES_MAX:
                return 0
            number = self._source_numbers[source] = len(self.source_list)
            self.source_list.append(source)
            self.source_counts.append(0)
        return number

    def remove(self, row: int) -> None:
        """Marks a row as gone. Does nothing if it was gone before."""
        if self.live[row]:
            self.live[row] = 0
            self.count -= 1
            self.removed += 1
            self.group_list[self.groups[row]].remove(row, self.died_us[row])
            self.source_counts[self.sources[row]] -= 1

    def forget_before(self, partition: int, start: int) -> Iterator[None]:
        """Removes rows before the log's new start, in steps."""
        rows = self._by_partition.get(partition, array("I"))
        for at in range(self._first(rows, start)):
            self.remove(rows[at])
            if at % STEP == STEP - 1:
                yield

    # What others ask

    def _first(self, rows: array[int], offset: int) -> int:
        """The index, among a partition's rows, of the first at or after an offset."""
        return bisect_left(rows, offset, key=self.offsets.__getitem__)

    def find(self, partition: int, offset: int) -> int | None:
        """The row of a live dead letter."""
        rows = self._by_partition.get(partition)
        if rows is None:
            return None
        at = self._first(rows, offset)
        if at == len(rows) or self.offsets[rows[at]] != offset or not self.live[rows[at]]:
            return None
        return rows[at]

    def id(self, row: int) -> str:
        return f"{self.partitions[row]}:{self.offsets[row]}"

    def position(self, row: int) -> tuple[int, int]:
        return self.partitions[row], self.offsets[row]

    def maybe_group(self, title: str) -> int | None:
        """The number of a group of reasons; None if there is none."""
        return self._group_numbers.get(title)

    def freshen(self) -> Iterator[None]:
        """Finds the first, the last and the example of each group that is stale. In steps."""
        stale = {group.number: group for group in self.group_list if group.stale and group.count}
        for group in self.group_list:
            group.stale = False
        if not stale:
            return
        found: dict[int, tuple[int, int, int]] = {}
        for begin in range(0, len(self.offsets), STEP):
            for row in range(begin, min(begin + STEP, len(self.offsets))):
                number = self.groups[row]
                if number in stale and self.live[row]:
                    died = self.died_us[row]
                    first, last, example = found.get(number, (died, died, row))
                    example = row if died >= last else example
                    found[number] = (min(first, died), max(last, died), example)
            yield
        for number, (first, last, example) in found.items():
            group = stale[number]
            group.first_us, group.last_us, group.example = first, last, example

    def free_keys(self) -> Iterator[None]:
        """Frees the keys of an unused table. In steps, because all at once takes long."""
        for shard in range(_SHARDS):
            self._rows[shard] = {}
            yield

    @property
    def mostly_gone(self) -> bool:
        gone = len(self.offsets) - self.count
        return gone > max(_GONE_MIN, self.count)

    def renumber(self) -> Iterator[None]:
        """Removes dead rows, in steps. Nothing else may change the table between them."""
        fresh = LetterTable()
        new_rows = array("i", bytes(4 * len(self.offsets)))
        for row in range(len(self.offsets)):
            if self.live[row]:
                found = DeadLetterFacts(
                    self.died_us[row],
                    self.text_list[self.texts[row]],
                    self.group_list[self.groups[row]].title,
                    *self.source_list[self.sources[row]],
                    self.key_hashes[row],
                )
                new_rows[row] = fresh._add(self.partitions[row], self.offsets[row], found)
            if row % STEP == STEP - 1:
                yield
        for own, rows in zip(fresh._rows, self._rows, strict=True):
            own |= {key: new_rows[row] for key, row in rows.items() if self.live[row]}
            yield
        fresh.removed, fresh.generation = self.removed, self.generation + 1
        old = self._rows
        self.__dict__.update(fresh.__dict__)
        # Freeing all keys at once takes long, too.
        while old:
            old.pop()
            yield
