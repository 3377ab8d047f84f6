"""Reads of a follower's own copy: what is committed, from the files that it has anyway.

Law: a reader gets the same batches as from the primary, or none from here. So a log is not read
while it may be cut, and a compacted topic not at all: followers compact after the primary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from fanlog.cluster.committed_ends import CommittedEnds
from fanlog.edge.own_copy import CopiedBlock
from fanlog.format.replication import ReplicaEnd, Replicated, ReplicaTopic
from fanlog.log.partition import PartitionLog
from fanlog.log.retrying import retry_briefly
from fanlog.model import TopicSettings

logger = logging.getLogger("fanlog.cluster")

T = TypeVar("T")


class ReadingThreads(Protocol):
    """The threads for reads that somebody waits for."""

    def in_thread(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None: ...


class CopiedReads:
    """The `OwnCopy` of the edge in front of a follower. `find_log` finds a log of the replica."""

    def __init__(
        self,
        find_log: Callable[[int, int], PartitionLog | None],
        threads: ReadingThreads,
        block_bytes_max: int,
    ) -> None:
        self._find_log = find_log
        self._threads = threads
        self._block_bytes_max = block_bytes_max
        self._ends = CommittedEnds()
        # The reign whose history the logs have. 0: they may be cut now.
        self._epoch = 0
        self._is_following = False
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        # Topics that are compacted, or once were.
        self._compacted: set[int] = set()
        self._reading = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # Batches that were read here, for people and tests.
        self.blocks_read = 0

    # What the follower's role says

    async def pause(self) -> None:
        """Nothing is read from here on, until `begin`."""
        self._epoch = 0
        self._is_following = False
        await self._idle.wait()

    def begin(self, epoch: int, topics: Sequence[ReplicaTopic], ends: Sequence[ReplicaEnd]) -> None:
        """The logs are a part of this reign's history, and end there."""
        self._names.clear()
        self._numbers.clear()
        self._compacted.clear()
        for topic in topics:
            self._put_topic(topic.number, topic.name, topic.settings)
            if any(partition.compacted_until for partition in topic.partitions):
                self._compacted.add(topic.number)
        self._ends.begin(ends)
        self._epoch = epoch

    def heard(self, sent: Replicated) -> None:
        """The replica has taken a frame."""
        for event in sent.events:
            if event.deleted:
                self._forget(event.number)
            elif event.settings is not None:
                self._put_topic(event.number, event.name, event.settings)
        self._ends.heard(sent)
        self._is_following = True

    def lost(self) -> None:
        """The connection to the primary is gone."""
        self._is_following = False

    def _put_topic(self, number: int, name: str, settings: TopicSettings) -> None:
        self._names[number] = name
        self._numbers[name] = number
        if settings.cleanup == "compact":
            self._compacted.add(number)

    def _forget(self, number: int) -> None:
        name = self._names.pop(number, "")
        if self._numbers.get(name) == number:
            del self._numbers[name]

    # For the edge

    def maybe_number(self, topic: str) -> int | None:
        return self._numbers.get(topic)

    def maybe_name(self, number: int) -> str | None:
        return self._names.get(number)

    def has(
        self, number: int, partition: int, offset: int, *, epoch: int, upstream_away: bool
    ) -> bool:
        if not self._epoch or epoch != self._epoch or number in self._compacted:
            return False
        if not self._is_following and not upstream_away:
            # The primary may have deleted records since.
            return False
        log = self._find_log(number, partition)
        return log is not None and log.start_offset <= offset < self._end_of(log)

    def _end_of(self, log: PartitionLog) -> int:
        return min(self._ends.end_of(log.owner.topic, log.owner.partition), log.end_offset)

    def start_of(self, number: int, partition: int) -> int:
        log = self._find_log(number, partition)
        return 0 if log is None else log.start_offset

    async def read(
        self, number: int, partition: int, offset: int, bytes_wanted: int
    ) -> CopiedBlock | None:
        log = self._find_log(number, partition)
        if log is None or not self._epoch:
            return None
        end, size = self._end_of(log), min(bytes_wanted, self._block_bytes_max)
        if not log.start_offset <= offset < end:
            return None
        block = await self._read(log, lambda: log.read(offset, end, size))
        if block is None:
            return None
        self.blocks_read += 1
        return CopiedBlock(block, log.start_offset, end)

    async def offset_at(self, number: int, partition: int, time_us: int) -> int | None:
        log = self._find_log(number, partition)
        if log is None or not self._epoch:
            return None
        end = self._end_of(log)
        found = await self._read(log, lambda: log.offset_at(time_us))
        return None if found is None or found >= end else found

    async def _read(self, log: PartitionLog, work: Callable[[], T]) -> T | None:
        """The result of work on files, in a thread. None if it fails: then the primary answers."""
        ended: asyncio.Future[T | Exception] = asyncio.get_running_loop().create_future()

        def done(result: T | Exception) -> None:
            # Also if nobody waits for it any more.
            self._reading -= 1
            if not self._reading:
                self._idle.set()
            if not ended.done():
                ended.set_result(result)

        self._reading += 1
        self._idle.clear()
        self._threads.in_thread(lambda: retry_briefly(work, "A reader"), done)
        result = await ended
        if isinstance(result, Exception):
            logger.info("%s is read from the primary: %s", log.owner, result)
            return None
        return result
