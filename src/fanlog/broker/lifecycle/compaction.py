"""When compacted topics are compacted: one partition at a time, in a thread, whenever it is
worthwhile, or when someone asks for it. The work itself is the log's (`log/compaction.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Runtime
from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format.codecs import UnpackLimits
from fanlog.log.compacting import CompactionTask
from fanlog.log.compaction import Compaction
from fanlog.log.group_commit import Done

logger = logging.getLogger("fanlog.broker")


class _CompactionRequest(NamedTuple):
    """A partition to compact; `done` is the caller's callback."""

    partition: Partition
    done: Done | None


class ReplicatedLogs(Protocol):
    """The copies of the logs on other machines."""

    def tombstones_end(self, partition: Partition) -> int:
        """The offset before which everybody who copies the log has had its tombstones."""
        ...

    def compacted(self, partition: Partition, until: int, now_us: int) -> None:
        """The log was compacted up to an offset, by a time: its copies follow."""
        ...


class Compactions:
    """Everything but the steps of a run happens on the loop. `shrunk` is called with a partition
    whose log has lost records before an offset. `stopping` ends a run early. `now_us` is the clock
    for the age of tombstones."""

    def __init__(
        self,
        runtime: Runtime,
        shrunk: Callable[[Partition, int], None],
        stopping: Callable[[], bool],
        now_us: Callable[[], int],
        *,
        limits: UnpackLimits,
        replicated: ReplicatedLogs,
    ) -> None:
        self._runtime = runtime
        self._replicated = replicated
        self._now_us = now_us
        self._shrunk = shrunk
        self._stopping = stopping
        self._limits = limits
        self._queue: deque[_CompactionRequest] = deque()
        self._running: _CompactionRequest | None = None
        self._task: CompactionTask | None = None
        self._closed = False

    def check(self, topics: Iterable[BrokerTopic]) -> Iterator[None]:
        """Queues logs that are worth compacting. Checks one topic per step."""
        if self._running is not None:
            return
        now_us = self._now_us()
        for topic in topics:
            yield
            if not _is_compacted(topic):
                continue
            for partition in topic.partitions:
                if partition.log.compaction_due(partition.visible_end, now_us):
                    self._queue.append(_CompactionRequest(partition, None))
        self._next()

    async def compact(self, topic: BrokerTopic) -> None:
        """Compacts the visible part of a topic, however small."""
        if topic.settings.cleanup != "compact":
            raise InvalidArgumentError(
                f"Topic {topic.name!r} is not a compacted one: its cleanup is 'delete'. Change it "
                f"with: fanlog topic alter {topic.name} --cleanup compact"
            )
        for partition in topic.partitions:
            ended: asyncio.Future[FanlogError | None] = asyncio.get_running_loop().create_future()
            self._queue.append(_CompactionRequest(partition, partial(_settle, ended)))
            self._next()
            fault = await ended
            if fault is not None:
                raise fault

    def close(self) -> None:
        """Nothing works in the folder any more, and nobody is called back. `stopping` must say so
        already."""
        self._closed = True
        if self._task is not None:
            self._task.halt()

    def _next(self) -> None:
        while self._running is None and self._queue and not self._closed:
            self._running = self._queue.popleft()
            self._begin(self._running)

    def _begin(self, wanted: _CompactionRequest) -> None:
        partition = wanted.partition
        if not _is_compacted(partition.topic):
            self._end(wanted, None)
            return
        try:
            run = partition.log.compaction(
                partition.visible_end,
                self._now_us(),
                lambda: self._stopping() or not _is_compacted(partition.topic),
                everything=wanted.done is not None,
                limits=self._limits,
                tombstones_end=self._replicated.tombstones_end(partition),
            )
        except FanlogError as fault:
            self._end(wanted, fault)
            return
        if run is None:
            self._end(wanted, partition.log.failure)
            return
        self._task = CompactionTask(
            partition.log,
            run,
            partition.name,
            self._runtime.in_background,
            may_swap=lambda: self._may_swap(partition, run),
            done=lambda fault: self._ended(wanted, run, fault),
        )
        self._task.begin()

    def _may_swap(self, partition: Partition, run: Compaction) -> bool:
        """Whether the topic was not altered meanwhile, and nobody has begun to copy the log who
        would not get the tombstones."""
        passed = self._replicated.tombstones_end(partition)
        return _is_compacted(partition.topic) and run.tombstones_until <= passed

    def _ended(
        self, wanted: _CompactionRequest, run: Compaction, fault: FanlogError | None
    ) -> None:
        partition = wanted.partition
        if partition.topic.deleted:
            fault = None
        elif fault is None:
            self._replicated.compacted(partition, run.end, run.now_us)
            if run.removed_records:
                self._shrunk(partition, run.end)
                logger.info(
                    "%s is compacted: %d records went, %d bytes are free.",
                    partition.name,
                    run.removed_records,
                    run.freed_bytes,
                )
        self._end(wanted, fault)
        self._next()

    def _end(self, wanted: _CompactionRequest, fault: FanlogError | None) -> None:
        self._running = self._task = None
        if fault is not None and wanted.done is None:
            logger.warning("%s is not compacted: %s", wanted.partition.name, fault)
        if wanted.done is not None:
            wanted.done(fault)


def _is_compacted(topic: BrokerTopic) -> bool:
    """Whether the topic exists and is a compacted one. That may change while it is."""
    return topic.settings.cleanup == "compact" and not topic.deleted


def _settle(ended: asyncio.Future[FanlogError | None], fault: FanlogError | None) -> None:
    """Calls back, unless the caller has given up."""
    if not ended.done():
        ended.set_result(fault)
