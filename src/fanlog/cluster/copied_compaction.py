"""Compacts a replica's logs after its primary has compacted its own: by the same time, so that a
tombstone goes from both.

Its segments end elsewhere than the primary's. So it seals the records that are affected, and
compacts all sealed segments when those records are committed. Compaction removes a record because a
later one has its key: if the later one could still be cut, the key would have lost both.

| a log is | until                                                                    |
| -------- | ------------------------------------------------------------------------ |
| wanted   | the replica is level: then it is sealed, and noted with the position     |
| noted    | that position is committed                                               |
| ready    | the run of the one before it has ended                                   |
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fanlog.errors import FanlogError
from fanlog.format.replication import ReplicaEvent, Replicated, ReplicaTopic
from fanlog.log.compacting import CompactionTask, CompactionThread
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner

logger = logging.getLogger("fanlog.cluster")

# Logs that are sealed at once: each takes the loop's time.
_SEALED_AT_ONCE = 32
# After this number of heartbeats a turn of the primary has ended.
_BEATS = 2


class CompactedLog(NamedTuple):
    """The primary has compacted its log up to `until`, at the time `now_us`."""

    until: int
    now_us: int


class _Ready(NamedTuple):
    owner: Owner
    end: int
    now_us: int


class CopiedCompactions:
    """One for each opening of the folder. `find` returns a log if it exists and has to be
    compacted."""

    def __init__(
        self, find: Callable[[Owner], PartitionLog | None], in_background: CompactionThread
    ) -> None:
        self._find = find
        self._in_background = in_background
        self._wanted: dict[Owner, CompactedLog] = {}
        self._noted: list[_Ready] = []
        self._position = 0
        # The heartbeat from which on a position says all that the replica has.
        self._settled_at = -1
        self._ready: deque[_Ready] = deque()
        self._task: CompactionTask | None = None
        self._closed = False

    def compare(self, topics: Iterable[ReplicaTopic]) -> None:
        """What the primary has compacted before it was followed."""
        for topic in topics:
            for i, theirs in enumerate(topic.partitions):
                log = self._find(Owner(topic.number, i)) if theirs.compacted_until else None
                if log is not None and (
                    log.compacted_until < theirs.compacted_until
                    or log.compacted_us < theirs.compacted_us
                ):
                    found = CompactedLog(theirs.compacted_until, theirs.compacted_us)
                    self._wanted[log.owner] = found

    def hear(self, event: ReplicaEvent) -> None:
        """The primary has compacted a log."""
        owner = Owner(event.number, event.partition)
        self._wanted[owner] = CompactedLog(event.compacted_until, event.compacted_us)

    def restart(self) -> None:
        """Positions count anew."""
        self._settled_at = -1
        for noted in self._noted:
            self._wanted.setdefault(noted.owner, CompactedLog(0, noted.now_us))
        self._noted.clear()

    def heard(self, frame: Replicated) -> None:
        """A frame was taken in."""
        if self._settled_at < 0 or (frame.pieces and not frame.position):
            # It may have brought a part of the turn that was open at the primary.
            self._settled_at = frame.beat + _BEATS
        if frame.position and frame.beat >= self._settled_at:
            if self._wanted and not self._noted:
                self._level_at(frame.position)
            self._committed_at(min(frame.written, frame.synced))

    def _level_at(self, position: int) -> None:
        """The replica has everything up to a position, and nothing more."""
        for owner in list(self._wanted)[:_SEALED_AT_ONCE]:
            wanted = self._wanted.pop(owner)
            log = self._find(owner)
            if log is None:
                continue
            try:
                end = log.seal_before(wanted.until)
            except FanlogError as fault:
                logger.warning("%s is not compacted: %s", _name(owner), fault)
                continue
            self._noted.append(_Ready(owner, end, wanted.now_us))
        self._position = position

    def _committed_at(self, position: int) -> None:
        """Everything up to a position is on all replicas that count."""
        if self._noted and position >= self._position:
            self._ready += self._noted
            self._noted.clear()
            self._next()

    def close(self) -> None:
        """Nothing works in the folder any more. Blocks for a moment."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.halt()

    def _next(self) -> None:
        while self._task is None and self._ready and not self._closed:
            self._begin(self._ready.popleft())

    def _begin(self, ready: _Ready) -> None:
        owner = ready.owner

        def continues() -> bool:
            return not self._closed and self._find(owner) is not None

        log = self._find(owner)
        if log is None:
            return
        try:
            run = log.compaction(ready.end, ready.now_us, lambda: not continues())
        except FanlogError as fault:
            logger.warning("%s is not compacted: %s", _name(owner), fault)
            return
        if run is not None:
            self._task = CompactionTask(
                log, run, _name(owner), self._in_background, may_swap=continues, done=self._ended
            )
            self._task.begin()

    def _ended(self, fault: FanlogError | None) -> None:
        task, self._task = self._task, None
        if fault is not None:
            logger.warning("A copy is not compacted: %s", fault)
        elif task is not None and task.run.removed_records:
            logger.info(
                "A copy is compacted: %d records went, %d bytes are free.",
                task.run.removed_records,
                task.run.freed_bytes,
            )
        self._next()


def _name(owner: Owner) -> str:
    return f"Topic {owner.topic}, partition {owner.partition}"
