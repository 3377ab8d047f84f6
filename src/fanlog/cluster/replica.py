"""A follower's copy of its primary's logs. There is no broker over it: nobody writes here but
`apply`; `copied_reads.py` reads what is committed.

It takes the stamped bytes of the primary, turn by turn, and says how far it has them: `written` at
once, `synced` when everything up to there that has to be synced is durable. A `Node` can be opened
on the folder after `close`.

Law: a position is acknowledged only if everything before it is here. After an error nothing is
taken until `begin`, because what follows would leave a hole. It is long because all that may change
`written` and `synced` is here, so that this law can be checked in one file.

| in the data folder                      | of a follower                                         |
| --------------------------------------- | ----------------------------------------------------- |
| segments, their epochs, where logs begin | copied: the same bytes, in files of other sizes      |
| `topic.json`, the id of the history     | copied                                                |
| `catalog.json`                          | local; numbers and epochs at least those of the       |
|                                         | primary                                               |
| `.idx`, `.producers`                    | made again from the batches; producers whose batches  |
|                                         | are gone are copied                                   |
| `priorities`                            | made again from the batches                           |
| `compacted.json`, compacted segments    | local: it compacts after its primary                  |
| `journal/`, `clean`, `damaged.json`,    | local                                                 |
| `reserve`, `lock`, `metrics/`           |                                                       |
| `ledgers.json`, `audit.json`            | removed: they are about a reign that has ended        |
| `transactions/`                         | local; the next primary removes what it does not need |
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from fanlog.cluster.copied_logs import CopiedLogs
from fanlog.cluster.damage import first_damage
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
from fanlog.log.cutting import CutList, cut_folder, forget_reign
from fanlog.log.faults import folder_error, write_error
from fanlog.log.group_commit import GroupCommit
from fanlog.log.opening import StoredTopic
from fanlog.log.partition import PartitionLog
from fanlog.log.posix import sync_data
from fanlog.log.scan import Owner
from fanlog.log.store import LogStore
from fanlog.log.tail import Piece
from fanlog.model import Durability

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
        """Whether the position has to wait. Then it is reported later."""
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
    that this copy is not whole until it has everything again. `complete`: it was whole when it was
    used last, and the machine has not lost anything since. `suspect`: the machine may have lost
    what was never synced. `searched` is called when all of that was read, and its damage noted.

    It has many fields, because what a position promises depends on the folder, on what waits for a
    sync, and on how whole the copy is."""

    def __init__(
        self,
        folder: Path,
        options: LogOptions,
        runtime: ReplicaRuntime,
        incomplete: Callable[[], None],
        *,
        complete: bool = True,
        suspect: bool = False,
        searched: Callable[[], None] = lambda: None,
        moved: Callable[[], None] = lambda: None,
        sync: Callable[[int], None] = sync_data,
    ) -> None:
        self.epoch = 0
        self.written = 0
        self.synced = 0
        # The newest position with something that need not be synced: its publisher waits for
        # `written`.
        self.unsynced_position = 0
        # The newest heartbeat.
        self.beat = 0
        # Why nothing is taken any more, until `begin`.
        self.failure: FanlogError | None = None
        self._folder = os.fspath(folder.absolute())
        self._options = options
        self._runtime = runtime
        self._note_incomplete = incomplete
        self._complete = complete
        self._suspect = suspect
        self._searched = searched
        self._moved = moved
        self._sync = sync
        self._is_open = False
        self._store: LogStore
        self._logs: CopiedLogs
        self._group: GroupCommit | None = None
        # Whether a sync has ever failed: then nobody knows what is on the disk.
        self.sync_failed = False
        self._syncing = _Syncing(self._synced_to, self.fail)

    # The folder

    def open(self) -> None:
        """Takes the folder, and recovers its logs. Blocks."""
        self._open_store()
        self._employ()

    def _open_store(self) -> None:
        if os.path.isdir(self._folder):
            forget_reign(self._folder)
        self._store = LogStore(Path(self._folder), self._options, self.epoch)
        self._store.open()
        self._logs = CopiedLogs(
            self._store,
            self._sync_piece,
            self._adopt,
            self.fail,
            incomplete=self._incomplete,
            in_background=self._runtime.in_background,
        )
        self._is_open = True

    def _incomplete(self) -> None:
        self._complete = False
        self.written = self.synced = 0
        self._syncing.waiting.clear()
        self._note_incomplete()

    def _employ(self) -> None:
        self._store.employ(_Work(self._runtime))

    def close(self, *, clean: bool = True) -> None:
        """Syncs what waits, and releases the folder. Blocks. After a `clean` one the next start
        does not scan the logs."""
        if not self._is_open:
            return
        self._logs.compactions.close()
        if self._group is not None:
            self._group.close()
            self.sync_failed = self.sync_failed or self._group.failure is not None
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
    def is_damaged(self) -> bool:
        """Whether it has damage that its next connection to a primary repairs."""
        return self._is_open and bool(first_damage(self._store))

    @property
    def history(self) -> tuple[str, str]:
        return self._store.history

    def ends(self, unproven: Collection[Owner] = ()) -> list[ReplicaEnd]:
        """Where the logs end: of those that have or had records, or lack their producers."""
        return [
            ReplicaEnd(*log.owner, log.end_offset, log.owner in unproven)
            for topic in self._store.topics
            for log in topic.logs
            if log.end_offset or log.owner in unproven
        ]

    def maybe_log(self, number: int, partition: int) -> PartitionLog | None:
        """A log, for readers. None if it is not here, or the folder is closed."""
        return self._logs.maybe_log(number, partition) if self._is_open else None

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
        self.written = self.synced = self.beat = self.unsynced_position = 0
        self._syncing.waiting.clear()
        self._logs.compactions.restart()
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
        if self._suspect:
            await self._search()
        plan = self._plan(topics, followed.history)
        cuts = self._to_cut(plan)
        if cuts.ends or plan.restarts or self._lacks(plan.creations):
            self._incomplete()
        if cuts.ends or cuts.starts or self._needs_empty_journal(plan):
            self.close()
            try:
                await self._in_thread(lambda: self._cut(cuts))
            finally:
                if self._is_open:
                    self._employ()
        if followed.history:
            self._store.adopt_history(followed.history, followed.restored_from)
        await self._carry_out(plan)
        self._logs.compactions.compare(topics)
        # This primary's logs may have all batches, and what was copied from another one has not.
        thinned = set[Owner]() if self._complete else _thinned((*topics, *self.topics))
        return self.ends(thinned)

    async def _search(self) -> None:
        """Reads what a power cut may have taken. Where batches are missing in the middle, the log
        ends all the same where it did: the primary would count it as a copy."""
        logs = [
            log
            for topic in self._store.topics
            if topic.settings.level is not Durability.FSYNC
            for log in topic.logs
        ]

        ended = threading.Event()

        def search() -> None:
            for log in logs:
                log.look_for_damage()
            ended.set()

        logger.info("%s is read: its machine was started again.", self._folder)
        try:
            await self._in_thread(search)
        finally:
            # Also if the connection has not waited for it: the next one need not search again.
            if ended.is_set():
                self._searched()
                self._suspect = False

    async def _in_thread(self, work: Callable[[], None]) -> None:
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._runtime.in_background(work, ended.set_result)
        await _outlast(ended)
        fault = ended.result()
        if fault is not None:
            raise fault

    def _plan(self, primary: Sequence[ReplicaTopic], history: str) -> Plan:
        own = self.topics
        if not own or not history or history == self.history[0]:
            return reconcile(primary, own, first_damage(self._store))
        logger.warning("%s has another history than the primary: it is copied anew.", self._folder)
        self._incomplete()
        return reconcile(primary, ())._replace(deletions=tuple(topic.number for topic in own))

    def _lacks(self, creations: Sequence[ReplicaTopic]) -> bool:
        """Whether it may have had one of these topics, and acknowledged what was in it: a primary
        of the past has deleted it, and that was not committed. A topic with a number that was never
        used here was created while this replica was away."""
        return any(topic.number < self._store.next_number for topic in creations)

    def _needs_empty_journal(self, plan: Plan) -> bool:
        """Whether the journal may have records of other topics with these numbers. A folder that is
        opened again has an empty one."""
        used_until = self._logs.numbers_used_until
        return bool(plan.alterations) or any(t.number < used_until for t in plan.creations)

    def _cut(self, cuts: CutList) -> None:
        """Cuts the closed folder if there is something to cut, and opens it again. Any thread."""
        if cuts.ends or cuts.starts:
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

    async def _carry_out(self, plan: Plan) -> None:
        """There may be thousands of topics, each with syncs: the loop has its turn between them."""
        steps = self._logs.carry_out(plan)
        while True:
            # What this takes is needed at once.
            with self._store.at_once():
                if next(steps, True):
                    return
            await asyncio.sleep(0)

    def apply(self, frame: Replicated) -> None:
        """Takes a frame in: its events, then its pieces. Raises if it is damaged or does not fit,
        or if it can't be stored: then nothing after that is taken until `begin`."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))
        if not self._is_open or frame.epoch != self.epoch:
            fault = ProtocolError(f"The frame has epoch {frame.epoch}, not {self.epoch}.")
            self.fail(fault)
            raise fault
        given = self._syncing.given
        try:
            if frame.events or frame.pieces:
                # Before anything is appended: a piece that is here and can't be synced would never
                # be, and what comes after it would say that it is.
                self._group_commit()
            for event in frame.events:
                self._logs.take_event(event)
            for piece in frame.pieces:
                self._logs.take_piece(piece, self.epoch, caught_up=bool(frame.position))
            self._logs.compactions.heard(frame)
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
        if not frame.pieces or self._syncing.given - given < len(frame.pieces):
            self.unsynced_position = max(self.unsynced_position, frame.position)
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
            self._complete = True
            self.synced = position
        self._moved()

    def _synced_to(self, position: int) -> None:
        self._complete = True
        self.synced = position
        self._moved()

    def _sync_piece(self, log: PartitionLog, piece: Piece) -> None:
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
    """Waits, even if the task is cancelled: a thread works in the folder, and nothing else may work
    there meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as fault:
            cancelled = fault
    if cancelled is not None:
        raise cancelled


def _thinned(topics: Sequence[ReplicaTopic]) -> set[Owner]:
    """Logs whose batches do not tell all of their producers."""
    return {
        Owner(topic.number, i)
        for topic in topics
        for i, partition in enumerate(topic.partitions)
        if partition.start or partition.compacted_until
    }


def describe_topics(topics: Sequence[StoredTopic]) -> list[ReplicaTopic]:
    """Topics on disk, with the history of their logs."""
    return [
        ReplicaTopic(
            topic.number,
            topic.name,
            topic.settings,
            tuple(
                ReplicaPartition(
                    log.start_offset,
                    log.end_offset,
                    tuple(log.epochs),
                    log.compacted_until,
                    log.compacted_us,
                    log.read_until,
                    log.lost_until,
                )
                for log in topic.logs
            ),
        )
        for topic in topics
    ]
