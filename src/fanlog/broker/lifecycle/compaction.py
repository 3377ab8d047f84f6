"""When compacted topics are compacted: one partition at a time, in a thread, whenever it is
worthwhile, or when someone asks for it. The work itself is the log's (`log/compaction.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Runtime
from fanlog.errors import FanlogError, InvalidArgumentError, LogFailedError
from fanlog.format.codecs import UnpackLimits
from fanlog.log.compaction import Compaction
from fanlog.log.faults import write_error
from fanlog.log.group_commit import Done
from fanlog.log.rewrite import Rewritten

logger = logging.getLogger("fanlog.broker")


class _CompactionRequest(NamedTuple):
    """A partition to compact; `done` is the caller's callback."""

    partition: Partition
    done: Done | None


class Compactions:
    """All of it belongs to the loop, but for the steps of a run. `shrunk` hears of a partition
    whose log has lost records before an offset; `stopping` ends a run early; `now_us` is the
    clock that tombstones are deleted by."""

    def __init__(
        self,
        runtime: Runtime,
        shrunk: Callable[[Partition, int], None],
        stopping: Callable[[], bool],
        now_us: Callable[[], int],
        limits: UnpackLimits,
    ) -> None:
        self._runtime = runtime
        self._now_us = now_us
        self._shrunk = shrunk
        self._stopping = stopping
        self._limits = limits
        self._queue: deque[_CompactionRequest] = deque()
        self._running: _CompactionRequest | None = None

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

    def _next(self) -> None:
        while self._running is None and self._queue:
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
            )
        except FanlogError as fault:
            self._end(wanted, fault)
            return
        if run is None:
            self._end(wanted, partition.log.failure)
            return

        def proven(fault: Exception | None) -> None:
            # The batches prove their producers until they are rewritten.
            if fault is None:
                self._step(wanted, run)
            else:
                gone = partition.topic.deleted
                self._end(wanted, None if gone else _failed(partition, fault))
                self._next()

        partition.log.when_proven(proven)

    def _step(self, wanted: _CompactionRequest, run: Compaction) -> None:
        self._runtime.in_background(run.step, lambda got: self._stepped(wanted, run, got))

    def _stepped(
        self, wanted: _CompactionRequest, run: Compaction, got: Rewritten | Exception | None
    ) -> None:
        partition = wanted.partition
        if isinstance(got, Rewritten) and not _is_compacted(partition.topic):
            # The topic was altered meanwhile: the new file is not used, and the next step deletes
            # it.
            self._step(wanted, run)
            return
        if isinstance(got, Rewritten):
            try:
                run.swap(got)
            except OSError as fault:
                got = fault
            else:
                self._step(wanted, run)
                return
        if got is None:
            if run.removed_records:
                self._shrunk(partition, run.end)
                logger.info(
                    "%s is compacted: %d records went, %d bytes are free.",
                    partition.name,
                    run.removed_records,
                    run.freed_bytes,
                )
            self._end(wanted, None)
        else:
            self._end(wanted, _failed(partition, got))
        self._next()

    def _end(self, wanted: _CompactionRequest, fault: FanlogError | None) -> None:
        self._running = None
        if fault is not None and wanted.done is None:
            logger.warning("%s is not compacted: %s", wanted.partition.name, fault)
        if wanted.done is not None:
            wanted.done(fault)


def _is_compacted(topic: BrokerTopic) -> bool:
    """Whether it is there, and to be compacted. That may change while it is."""
    return topic.settings.cleanup == "compact" and not topic.deleted


def _settle(ended: asyncio.Future[FanlogError | None], fault: FanlogError | None) -> None:
    """Calls back, unless the caller has given up."""
    if not ended.done():
        ended.set_result(fault)


def _failed(partition: Partition, fault: Exception) -> FanlogError:
    """The error of a run. That it could not write its own files has harmed nothing; that the log
    could not be synced has."""
    log = partition.log
    if isinstance(fault, LogFailedError):
        log.fail(fault)
        return fault
    if isinstance(fault, OSError):
        return write_error(fault, partition.name, "Compacting")
    if isinstance(fault, FanlogError):
        return fault
    logger.error("compacting %s failed: %r", partition.name, fault, exc_info=fault)
    return FanlogError(f"Compacting {partition.name} failed: {fault!r}. Please report this.")
