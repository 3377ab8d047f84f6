"""The append times of records, with a cache: the first record after a group's offset stays the same
while the group stands still. Times of records in the tail are known at once. Others are read from
disk, a bounded number at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fanlog.errors import FanlogError
from fanlog.format.header import read_header

if TYPE_CHECKING:
    from fanlog.broker.insight.ports import Threads
    from fanlog.broker.messages.topics import Partition

# Topic number, partition and offset. It refers to no partition, since the topic may be deleted.
_RecordKey = tuple[int, int, int]
# The key of a record.
Asked = tuple["Partition", int]

# Times kept in each of two halves. The older half is dropped when the newer one is full.
_KEPT_MAX = 50_000
# Records that a thread reads before it yields to others: a few ms.
_TOGETHER = 16
# The time of a record that can't be read.
UNREADABLE = 0


class RecordTimes:
    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._newer: dict[_RecordKey, int] = {}
        self._older: dict[_RecordKey, int] = {}

    def maybe_time(self, partition: Partition, offset: int) -> int | None:
        """When the record was appended, in microseconds; None if it has to be read from disk."""
        key = (partition.topic.number, partition.index, offset)
        known = self._newer.get(key)
        if known is not None:
            return known
        known = self._older.get(key)
        if known is None:
            tail = partition.log.tail
            if not tail.start_offset <= offset < partition.visible_end:
                return None
            pieces, _ = tail.read(offset, partition.visible_end, 1)
            known = read_header(pieces[0]).append_time_us
        self._keep(key, known)
        return known

    async def load(self, wanted: Iterable[Asked]) -> None:
        """Reads the times of these from disk. `maybe_time` knows them then."""
        asked = [one for one in wanted if self.maybe_time(*one) is None]
        for at in range(0, len(asked), _TOGETHER):
            some = [(*one, one[0].visible_end) for one in asked[at : at + _TOGETHER]]
            found = await self._threads.threaded(
                lambda some=some: [_read_time(*one) for one in some]
            )
            for (partition, offset, _), time_us in zip(some, found, strict=True):
                self._keep((partition.topic.number, partition.index, offset), time_us)

    def _keep(self, key: _RecordKey, time_us: int) -> None:
        if len(self._newer) >= _KEPT_MAX:
            self._older, self._newer = self._newer, {}
        self._newer[key] = time_us


def _read_time(partition: Partition, offset: int, end: int) -> int:
    with contextlib.suppress(FanlogError):
        return partition.log.append_time(offset, end) or UNREADABLE
    return UNREADABLE
