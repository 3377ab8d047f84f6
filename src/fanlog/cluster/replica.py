"""A follower's copy of its primary's logs. There is no broker over it: nobody writes here but
`apply`, and nobody reads.

It takes the stamped bytes of the primary, turn by turn, and says how far it has them: `written` at
once, `synced` when everything up to there that has to be synced is durable. A `Node` can be opened
on the folder after `close`.

Law: a position is acknowledged only if everything before it is here. After an error nothing is
taken until `begin`, because what follows would leave a hole.

| in the data folder                      | of a follower                                         |
| --------------------------------------- | ----------------------------------------------------- |
| segments, their epochs, where logs begin | copied: the same bytes, in files of other sizes      |
| `topic.json`, the id of the history     | copied                                                |
| `catalog.json`                          | local; numbers and epochs at least those of the       |
|                                         | primary                                               |
| `.idx`, `.producers`                    | made again from the batches                           |
| `priorities`                            | made again from the batches                           |
| `compacted.json`, compacted segments    | local: a follower compacts on its own                 |
| `journal/`, `clean`, `damaged.json`,    | local                                                 |
| `reserve`, `lock`, `metrics/`           |                                                       |
| `ledgers.json`, `audit.json`            | removed: they are about a reign that has ended        |
| `transactions/`                         | local; the next primary removes what it does not need |
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from fanlog.cluster.copied_logs import CopiedLogs
from fanlog.cluster.reconcile import Plan, reconcile
from fanlog.config import LogOptions
from fanlog.errors import FanlogError, ProtocolError, StorageError
from fanlog.format.replication import (
    Applied,
    Followed,
    ReplicaEnd,
    ReplicaPartition,
    Replicated,
    ReplicaTopic,
)
from fanlog.log.background import InlineWork
from fanlog.log.cutting import CutList, cut_folder, forget_reign
from fanlog.log.faults import folder_error, write_error
from fanlog.log.group_commit import GroupCommit
from fanlog.log.opening import StoredTopic
from fanlog.log.partition import LOST_EVERYWHERE, PartitionLog
from fanlog.log.posix import sync_data
from fanlog.log.scan import Owner
from fanlog.log.store import LogStore
from fanlog.log.tail import Piece

logger = logging.getLogger("fanlog.cluster")

T = TypeVar("T")


class ReplicaRuntime(Protocol):
    """See `broker.ports.Runtime`. `post` runs a call on the loop, from any thread."""

    def now_us(self) -> int: ...
    def post(self, call: Callable[[], None], /) -> object: ...
    def in_background(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None: ...


class _Work:
    """Slow work of the logs."""

    def __init__(self, runtime: ReplicaRuntime) -> None:
        self.in_background = runtime.in_background

    def in_slices(self, steps: Iterator[None], /) -> None:
        for _ in steps:
            pass


class _Syncing:
    """Pieces that group commit has, and positions that wait for them. They are completed in the
    order in which they were given. Each opening of the folder has its own: what an earlier one
    still hears is of no account."""

    def __init__(
        self, synced: Callable[[int], None], failed: Callable[[FanlogError], None]
    ) -> None:
        self.given = 0
        self.completed = 0
        self.waiting: deque[tuple[int, int]] = deque()
        self._synced = synced
        self._failed = failed

    def done(self, fault: FanlogError | None) -> None:
        """For group commit."""
        self.completed += 1
        if fault is not None:
            self.waiting.clear()
            self._failed(fault)
        position = 0
        while self.waiting and self.waiting[0][0] <= self.completed:
            position = self.waiting.popleft()[1]
        if position:
            self._synced(position)

    def wait(self, position: int) -> bool:
        """Whether the position has to wait; it is told later then."""
        if self.completed < self.given:
            self.waiting.append((self.given, position))
            return True
        return False

    def detach(self) -> None:
        self.waiting.clear()
        self._failed = _ignore


def _ignore(fault: FanlogError) -> None:
    logger.debug("a replica that is closed: %s", fault)


class Replica:
    """Opened and closed like a store. `moved` is called when `written`, `synced` or `failure` have
    changed. `incomplete` is called before records go that may be committed: it must note, durably,
    that this copy is not whole until it has everything again."""

    def __init__(
        self,
        folder: Path,
        options: LogOptions,
        runtime: ReplicaRuntime,
        incomplete: Callable[[], None],
        *,
        moved: Callable[[], None] = lambda: None,
        sync: Callable[[int], None] = sync_data,
    ) -> None:
        self.epoch = 0
        self.written = 0
        self.synced = 0
        # The newest heartbeat.
        self.beat = 0
        # Why nothing is taken any more, until `begin`.
        self.failure: FanlogError | None = None
        self._folder = os.fspath(folder.absolute())
        self._options = options
        self._runtime = runtime
        self._incomplete = incomplete
        self._moved = moved
        self._sync = sync
        self._is_open = False
        self._store: LogStore
        self._logs: CopiedLogs
        self._group: GroupCommit | None = None
        self._syncing = _Syncing(self._synced_to, self.fail)

    # The folder

    def open(self) -> None:
        """Takes the folder, and recovers its logs. Blocks."""
        self._open_store()
        self._employ()

    def _open_store(self) -> None:
        if os.path.isdir(self._folder):
            forget_reign(self._folder)
        self._store = LogStore(Path(self._folder), self._options, self._runtime.now_us, self.epoch)
        self._store.open()
        self._logs = CopiedLogs(self._store, self._commit, self._adopt, self.fail)
        self._is_open = True

    def _employ(self) -> None:
        self._store.employ(_Work(self._runtime))

    def close(self, *, clean: bool = True) -> None:
        """Syncs what waits, and releases the folder. Blocks. After a `clean` one the next start
        does not scan the logs."""
        if not self._is_open:
            return
        if self._group is not None:
            self._group.close()
            clean = clean and self._group.failure is None
            self._group = None
        self._syncing.detach()
        self._syncing = _Syncing(self._synced_to, self.fail)
        self._is_open = False
        self._store.close(clean=clean)

    @property
    def topics(self) -> list[ReplicaTopic]:
        """What the folder has."""
        return describe_topics(self._store.topics)

    @property
    def newest_epoch(self) -> int:
        """The highest epoch that the folder has ever had. The next reign over it is above that."""
        return self._store.epoch

    @property
    def is_full(self) -> bool:
        """Whether its disk was full, and has no room yet."""
        return self._is_open and self._store.reserve.full

    @property
    def history(self) -> tuple[str, str]:
        return self._store.history

    def ends(self) -> list[ReplicaEnd]:
        """Where the logs end: of those that have or had records."""
        return [
            ReplicaEnd(topic.number, log.owner.partition, log.end_offset)
            for topic in self._store.topics
            for log in topic.logs
            if log.end_offset
        ]

    # Following

    @property
    def applied(self) -> Applied:
        """How far it is."""
        return Applied(self.epoch, self.written, self.synced, self.beat)

    def begin(self, epoch: int) -> None:
        """A connection to the primary of this epoch begins: nothing is acknowledged on it yet."""
        if epoch < self.epoch:
            raise ProtocolError(
                f"A primary of epoch {epoch} is over: this replica has seen epoch {self.epoch}."
            )
        self.epoch = epoch
        self._store.raise_epoch(epoch)
        self._store.reserve.look_for_room()
        self.written = self.synced = self.beat = 0
        self._syncing.waiting.clear()
        self.failure = None if self._group is None else self._group.failure

    async def adopt(
        self, followed: Followed, topics: Sequence[ReplicaTopic]
    ) -> Sequence[ReplicaEnd]:
        """Makes the logs begin as the primary's do. Where they end after that. Nothing else may use
        the replica meanwhile. Raises StorageError if the disk refuses that."""
        try:
            return await self._reconcile(followed, topics)
        except OSError as fault:
            raise write_error(fault, self._folder) from fault

    async def _reconcile(
        self, followed: Followed, topics: Sequence[ReplicaTopic]
    ) -> Sequence[ReplicaEnd]:
        if not self._is_open:
            # The last one failed within a cut. It is finished now.
            self.open()
        self.begin(followed.epoch)
        plan = self._plan(topics, followed.history)
        cuts = self._to_cut(plan)
        if cuts.ends or cuts.starts:
            self._incomplete()
            self.close()
            ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            self._runtime.in_background(lambda: self._cut(cuts), ended.set_result)
            await _outlast(ended)
            fault = ended.result()
            if fault is not None:
                raise fault
            self._employ()
        if followed.history:
            self._store.adopt_history(followed.history, followed.restored_from)
        self._carry_out(plan)
        return self.ends()

    def _plan(self, primary: Sequence[ReplicaTopic], history: str) -> Plan:
        own = self.topics
        if not own or not history or history == self.history[0]:
            return reconcile(primary, own, self._damaged())
        logger.warning("%s has another history than the primary: it is copied anew.", self._folder)
        self._incomplete()
        return reconcile(primary, ())._replace(deletions=tuple(topic.number for topic in own))

    def _cut(self, cuts: CutList) -> None:
        """Cuts the closed folder, and opens it again. Any thread."""
        try:
            cut_folder(self._folder, cuts)
        except OSError as fault:
            raise folder_error(fault, fault.filename or self._folder) from fault
        self._open_store()

    def _to_cut(self, plan: Plan) -> CutList:
        """What has to be done while the folder is closed: whatever makes a log end earlier."""
        gone = set(plan.deletions)
        ends = {
            log.owner: log.end_offset
            for topic in self._store.topics
            if topic.number not in gone
            for log in topic.logs
            if log.end_offset
        }
        return CutList(plan.ends, {o: s for o, s in plan.restarts.items() if s < ends.get(o, 0)})

    def _carry_out(self, plan: Plan) -> None:
        # What this takes is needed at once.
        self._store.employ(InlineWork())
        try:
            self._logs.carry_out(plan)
        finally:
            self._store.employ(_Work(self._runtime))

    def _damaged(self) -> dict[Owner, int]:
        """The first damaged offset of each log that has damage."""
        found: dict[Owner, int] = {}
        for topic in self._store.topics:
            for log in topic.logs:
                firsts = [d.first for d in log.damaged if d.reason != LOST_EVERYWHERE]
                if firsts:
                    found[log.owner] = max(min(firsts), log.start_offset)
        return found

    def apply(self, frame: Replicated) -> None:
        """Takes a frame in: its events, then its pieces. Raises if it is damaged or does not fit,
        or if it can't be stored: then nothing after that is taken until `begin`."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))
        if not self._is_open or frame.epoch != self.epoch:
            fault = ProtocolError(f"The frame has epoch {frame.epoch}, not {self.epoch}.")
            self.fail(fault)
            raise fault
        try:
            if frame.events or frame.pieces:
                # Before anything is appended: a piece that is here and can't be synced would never
                # be, and what comes after it would say that it is.
                self._group_commit()
            for event in frame.events:
                self._logs.take_event(event)
            for piece in frame.pieces:
                self._logs.take_piece(piece, self.epoch, caught_up=bool(frame.position))
        except FanlogError as fault:
            self.fail(fault)
            raise
        except OSError as fault:
            error = write_error(fault, self._folder)
            self.fail(error)
            raise error from fault
        if self._group is not None:
            self._group.kick()
        self.beat = frame.beat
        self._advance(frame.position)

    def fail(self, fault: FanlogError) -> None:
        """Takes nothing more. What was taken stays."""
        if self.failure is None:
            self.failure = fault
            self._syncing.waiting.clear()
            if isinstance(fault, StorageError):
                logger.error("The replica in %s stops: %s", self._folder, fault)
            self._moved()

    def tick(self) -> None:
        """Once a second: looks whether a full disk has room again."""
        if self._is_open:
            self._store.reserve.look_for_room()

    def _advance(self, position: int) -> None:
        if position <= self.written:
            return
        self.written = position
        if not self._syncing.wait(position):
            self.synced = position
        self._moved()

    def _synced_to(self, position: int) -> None:
        self.synced = position
        self._moved()

    def _commit(self, log: PartitionLog, piece: Piece) -> None:
        group = self._group_commit()
        self._syncing.given += 1
        group.add(log, piece, self._syncing.done)

    def _adopt(self, topic: StoredTopic) -> None:
        """The topic has durability fsync from now on."""
        group = self._group_commit()
        self._syncing.given += 1
        group.adopt(topic.logs, self._syncing.done)

    def _group_commit(self) -> GroupCommit:
        if self._group is None:
            self._group = GroupCommit(self._store.get_journal(), self._runtime.post, self._sync)
        return self._group


async def _outlast(ended: asyncio.Future[Exception | None]) -> None:
    """Waits, also where the task is cancelled: a thread works in the folder, and nobody else may
    meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as fault:
            cancelled = fault
    if cancelled is not None:
        raise cancelled


def describe_topics(topics: Sequence[StoredTopic]) -> list[ReplicaTopic]:
    """Topics on disk, with the history of their logs."""
    return [
        ReplicaTopic(
            topic.number,
            topic.name,
            topic.settings,
            tuple(
                ReplicaPartition(
                    log.start_offset, log.end_offset, tuple(log.epochs), log.compacted_until
                )
                for log in topic.logs
            ),
        )
        for topic in topics
    ]
