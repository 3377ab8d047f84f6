"""A bounded scan: fetches pieces of the log, and searches them in a thread, until there are enough
rows, the partitions end, or the budget is used up. Skipped messages are counted by offsets and
never decoded, so the cost of a scan does not depend on how much was published."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fanlog.broker.insight.stretches import OffsetGap, read_pieces
from fanlog.errors import TopicDeletedError
from fanlog.format.batch import split_batches
from fanlog.listeners.web.explorer_look import Look, LookPlan, LookResult, Reach, next_reach

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import Partition

ScanEnd = Literal["end", "limit", "budget"]
# What one look may unpack, unless the first batch alone is larger, and how long it may take. Others
# have their batches unpacked by the same threads. Between two looks a scan rests as long as it has
# looked: a thread that computes slows down the loop.
_LOOK_BYTES = 2 << 20
_LOOK_SECONDS = 0.02
# How many bytes of a partition one fetch reads: in a large search, and at least.
_FETCH_BYTES = 512 * 1024
_FETCH_BYTES_MIN = 16 * 1024
# Of each of many partitions only the first batches are kept: together they would take much memory.
_MANY = 16
_FETCH_BYTES_OF_MANY = 64 * 1024
# A range of offsets that is in fact this many times larger is fetched in smaller ones.
_RANGE_TIMES_MAX = 8
_FETCHES_AT_A_TIME = 16


class ExplorerScan:
    """One scan over some partitions."""

    def __init__(
        self, core: BrokerCore, plan: LookPlan, reaches: Sequence[Reach], *, seconds_max: float
    ) -> None:
        self._core = core
        self._plan = plan
        self.reaches = reaches
        self.found = LookResult()
        self.ended: ScanEnd = "end"
        self._seconds_max = seconds_max
        self._fetch_bytes = _FETCH_BYTES_OF_MANY if len(reaches) > _MANY else _FETCH_BYTES
        for reach in reaches:
            reach.span = self._first_span(reach.partition)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds_max
        plan, found, rest = self._plan, self.found, 0.0
        while (reach := next_reach(self.reaches, backward=plan.backward)) is not None:
            if len(found.rows) >= plan.rows_max or found.row_bytes >= plan.row_bytes_max:
                self.ended = "limit"
                return
            left = until - loop.time()
            if found.bytes >= plan.bytes_max or left <= 0:
                self.ended = "budget"
                return
            if reach.is_dry:
                await self._fetch_dry(reach)
            else:
                await asyncio.sleep(rest)
                began = loop.time()
                await self._look(min(left, _LOOK_SECONDS))
                rest = min(loop.time() - began, _LOOK_SECONDS)

    async def _look(self, seconds: float) -> None:
        size = min(_LOOK_BYTES, max(1, self._plan.bytes_max - self.found.bytes))
        look = Look(self._plan, self.reaches, self.found, seconds, size)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(result: Exception | None) -> None:
            if done.done():
                return
            if result is None:
                done.set_result(None)
            else:
                done.set_exception(result)

        # At least one batch is unpacked, whatever its size.
        unpacked_bytes = max(_LOOK_BYTES, self._plan.limits.bytes_max)
        self._core.unpacker.in_thread(unpacked_bytes, look.run, ended)
        await done

    # Fetching

    async def _fetch_dry(self, first: Reach) -> None:
        """Fetches for the next partition, and for those that may follow."""
        backward = self._plan.backward
        dry = [reach for reach in self.reaches if reach.is_dry and reach is not first]
        if backward:
            dry = [reach for reach in dry if reach.time_us >= first.time_us]
        else:
            dry = [reach for reach in dry if reach.time_us <= first.time_us]
        chosen = [first, *dry[: _FETCHES_AT_A_TIME - 1]]
        fetched = await asyncio.gather(*map(self._fetch, chosen))
        for reach, pieces in zip(chosen, fetched, strict=True):
            reach.pieces = pieces
            if not pieces:
                # Truncated or deleted meanwhile: there is nothing more.
                reach.low = reach.high

    async def _fetch(self, reach: Reach) -> list[memoryview | OffsetGap]:
        try:
            return await (self._fetch_back(reach) if self._plan.backward else self._fetch_on(reach))
        except TopicDeletedError:
            # A failed partition does not hide the others.
            if all(other.partition.topic.deleted for other in self.reaches):
                raise
            return []

    def _first_span(self, partition: Partition) -> int:
        """How many offsets to fetch first, backwards: by what a message takes in the log."""
        log = partition.log
        each = max(1, log.bytes // max(1, log.end_offset - log.start_offset))
        if self._plan.conditions:
            return max(1, self._fetch_bytes // each)
        wanted = max(self._plan.rows_max, _FETCH_BYTES_MIN // each)
        return max(1, min(wanted, self._fetch_bytes // each))

    async def _fetch_back(self, reach: Reach) -> list[memoryview | OffsetGap]:
        while True:
            reach.low = min(reach.high, max(reach.low, reach.partition.log.start_offset))
            low = max(reach.low, reach.high - reach.span)
            pieces, size = await self._range(reach.partition, low, reach.high)
            if pieces is not None:
                break
            reach.span = max(1, reach.span // 8)
        if size < self._fetch_bytes // 4:
            reach.span *= 4
        return pieces

    async def _fetch_on(self, reach: Reach) -> list[memoryview | OffsetGap]:
        found = await self._read(reach.partition, reach.low, reach.high)
        if isinstance(found, OffsetGap):
            return [found]
        pieces = found[0]
        if len(self.reaches) > _MANY and pieces and len(pieces[0]) > _FETCH_BYTES_OF_MANY:
            return [await self._core.threaded(lambda: _beginning(pieces[0]))]
        return list(pieces)

    async def _range(
        self, partition: Partition, low: int, high: int
    ) -> tuple[list[memoryview | OffsetGap] | None, int]:
        """Everything between two offsets, and its size; None instead of the pieces if it is too
        large."""
        pieces: list[memoryview | OffsetGap] = []
        size = 0
        while low < high:
            found = await self._read(partition, low, high)
            if isinstance(found, OffsetGap):
                pieces.append(found)
                low = found.next
                continue
            read, low = found
            if not read:
                break
            pieces += read
            size += sum(map(len, read))
            if size > _RANGE_TIMES_MAX * self._fetch_bytes and low < high:
                return None, size
        return pieces, size

    async def _read(
        self, partition: Partition, offset: int, high: int
    ) -> tuple[list[memoryview], int] | OffsetGap:
        return await read_pieces(self._core.reading, partition, offset, high, self._fetch_bytes)


def _beginning(piece: memoryview) -> memoryview:
    """The first batches of a piece, as a copy: a view would keep all of it in memory."""
    end = 0
    for at, header in split_batches(piece):
        if end and at + header.length > _FETCH_BYTES_OF_MANY:
            break
        end = at + header.length
    return memoryview(bytes(piece[:end]))
