"""Which delayed messages there are: by id, and by when they are due. It holds numbers only, about
60 bytes a message. Ids, targets and values stay in the log, and are found by their offset.

An id is known by two hashes of 64 bits, salted anew with every start: nobody can make two ids that
pass for one. Entries are spread over small sorted columns, which are searched by halves.

A message that was given a time is due by the wall clock: people mean the calendar. One that was
given a delay is due by a clock that nobody can set.
"""

from __future__ import annotations

import secrets
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from fanlog.broker.ports import Runtime
from fanlog.broker.schedule.due_order import Due, DueOrder
from fanlog.format.schedules import NONCE_BYTES

# At ten million messages, a column of one shard has 2,500 entries.
_SHARDS = 4096
# No moment is past this one, whatever a record says: it has to fit into 63 bits, twice.
MOMENT_US_MAX = 1 << 61
# Entries that one step checks.
_STEP = 512
_BEGIN = Due(-1, -1)
# Two looks at two clocks differ by less, unless somebody sets one of them.
_SHIFT_US_MAX = 500


class PendingEntry(NamedTuple):
    """A message that waits. `by_wall`: `moment_us` is one of the wall clock."""

    nonce: int
    offset: int
    moment_us: int
    by_wall: bool

    @property
    def due(self) -> Due:
        return Due(self.moment_us, self.offset)


class DueEntry(NamedTuple):
    """A message that was due, as it was known."""

    due: Due
    by_wall: bool


class _Shard:
    """Entries whose ids' first hashes end alike, in the order of those hashes."""

    __slots__ = ("first", "moments", "nonces", "offsets", "second")

    def __init__(self) -> None:
        self.first = array("q")
        self.second = array("q")
        self.nonces = array("Q")
        self.offsets = array("q")
        # Twice the moment; and one more if it is the wall clock's.
        self.moments = array("q")

    def find(self, first: int, second: int) -> int:
        """Where an id is; -1 if it is not there."""
        hashes = self.first
        at = bisect_left(hashes, first)
        while at < len(hashes) and hashes[at] == first:
            if self.second[at] == second:
                return at
            at += 1
        return -1

    def entry(self, at: int) -> PendingEntry:
        moment = self.moments[at]
        return PendingEntry(self.nonces[at], self.offsets[at], moment >> 1, bool(moment & 1))

    def put(self, at: int, nonce: int, offset: int, moment: int) -> None:
        self.nonces[at] = nonce
        self.offsets[at] = offset
        self.moments[at] = moment

    def remove(self, at: int) -> None:
        for column in (self.first, self.second, self.nonces, self.offsets, self.moments):
            del column[at]


class Pending:
    """All messages that wait. Those that are being moved are known by id, and not due any more."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._salt = secrets.token_bytes(16)
        self._shards: list[_Shard | None] = [None] * _SHARDS
        self._length = 0
        self._shift_us = runtime.work_us() - runtime.now_us()
        # By the wall clock, and by the other.
        self.calendar = DueOrder()
        self.delays = DueOrder()

    def __len__(self) -> int:
        return self._length

    def delay_moment(self, time_us: int, append_time_us: int) -> int:
        """When a record with a delay is due, by the clock that nobody sets."""
        delay_us = min(-time_us, MOMENT_US_MAX >> 1)
        # The wall clock may have been set since: a message waits at most for the delay that was
        # requested.
        latest_us = self._runtime.work_us() + delay_us
        return max(0, min(append_time_us + self._shift() + delay_us, latest_us))

    def _shift(self) -> int:
        """How far the other clock is ahead of the wall clock. It is the same for messages that
        come together, so that they stay in order, and never too small, so that none is early."""
        shift_us = self._runtime.work_us() - self._runtime.now_us()
        if not self._shift_us - _SHIFT_US_MAX < shift_us <= self._shift_us:
            self._shift_us = shift_us
        return self._shift_us

    def find(self, id: bytes) -> PendingEntry | None:
        first, second = self._hashes(id)
        shard = self._shards[first % _SHARDS]
        if shard is None:
            return None
        at = shard.find(first, second)
        return None if at < 0 else shard.entry(at)

    def add(
        self, nonce: int, id: bytes, offset: int, moment_us: int, *, by_wall: bool
    ) -> PendingEntry | None:
        """Adds a message. Returns the one that it replaces, which had its id."""
        first, second = hash(id), hash(id + self._salt)
        shard = self._shards[first % _SHARDS]
        if shard is None:
            shard = self._shards[first % _SHARDS] = _Shard()
        packed = moment_us << 1 | by_wall
        hashes = shard.first
        begin = at = bisect_left(hashes, first)
        former = None
        while at < len(hashes) and hashes[at] == first:
            if shard.second[at] == second:
                former = shard.entry(at)
                self._order(former).remove(former.due)
                shard.put(at, nonce, offset, packed)
                break
            at += 1
        else:
            hashes.insert(begin, first)
            shard.second.insert(begin, second)
            shard.nonces.insert(begin, nonce)
            shard.offsets.insert(begin, offset)
            shard.moments.insert(begin, packed)
            self._length += 1
        (self.calendar if by_wall else self.delays).add(moment_us, offset)
        return former

    def put(self, id: bytes, entry: PendingEntry) -> PendingEntry | None:
        """The same with an entry that was there before."""
        nonce, offset, moment_us, by_wall = entry
        return self.add(nonce, id, offset, moment_us, by_wall=by_wall)

    def remove(self, id: bytes, nonce: int) -> PendingEntry | None:
        """Takes a message out, unless another has its id by now."""
        first, second = self._hashes(id)
        shard = self._shards[first % _SHARDS]
        at = -1 if shard is None else shard.find(first, second)
        if shard is None or at < 0 or shard.nonces[at] != nonce:
            return None
        entry = shard.entry(at)
        self._order(entry).remove(entry.due)
        shard.remove(at)
        if not shard.first:
            self._shards[first % _SHARDS] = None
        self._length -= 1
        return entry

    def postpone(self, id: bytes, entry: PendingEntry, seconds: float) -> None:
        """Lets a message that was taken to be moved be due again a little later."""
        moment_us = self._runtime.work_us() + int(seconds * 1_000_000)
        self.put(id, entry._replace(moment_us=moment_us, by_wall=False))

    def take_due(self, most: int) -> dict[int, DueEntry]:
        """What is due now, by offset, the first due in front. It is not due any more: the caller
        moves it, postpones it, or puts it back."""
        taken: dict[int, DueEntry] = {}
        for due in self.calendar.take(self._runtime.now_us(), most):
            taken[due.offset] = DueEntry(due, by_wall=True)
        for due in self.delays.take(self._runtime.work_us(), most - len(taken)):
            taken[due.offset] = DueEntry(due, by_wall=False)
        return taken

    def due_now(self, most: int) -> list[int]:
        """The offsets of what is due now, the first in front. They stay where they are."""
        found: list[int] = []
        clocks = (self._runtime.now_us(), self._runtime.work_us())
        for order, now_us in zip((self.calendar, self.delays), clocks, strict=True):
            if order.first is not None and order.first.moment_us <= now_us:
                some = islice(order.after(_BEGIN), most)
                found += [due.offset for due in some if due.moment_us <= now_us]
        return found

    def put_back(self, taken: DueEntry) -> None:
        (self.calendar if taken.by_wall else self.delays).add(*taken.due)

    def due_within(self, seconds: float) -> Iterator[list[int]]:
        """The offsets of what will be due soon, some at a step. Others may come and go between
        two steps."""
        ahead_us = int(seconds * 1_000_000)
        clocks = (self._runtime.now_us(), self._runtime.work_us())
        for order, now_us in zip((self.calendar, self.delays), clocks, strict=True):
            last: Due | None = _BEGIN
            while last is not None:
                some = list(islice(order.after(last), _STEP))
                soon = [due.offset for due in some if due.moment_us <= now_us + ahead_us]
                last = some[-1] if len(soon) == _STEP else None
                yield soon

    def _order(self, entry: PendingEntry) -> DueOrder:
        return self.calendar if entry.by_wall else self.delays

    def _hashes(self, id: bytes) -> tuple[int, int]:
        return hash(id), hash(id + self._salt)


def split_key(key: bytes) -> tuple[int, bytes]:
    """The nonce and the id of a record's key."""
    return int.from_bytes(key[:NONCE_BYTES], "big"), key[NONCE_BYTES:]
