"""Group commit: everything that arrives while one sync runs becomes durable with the next.

The loop thread adds pieces and starts a sync; one worker thread writes and syncs. They pass whole
groups to each other: the loop thread owns the pieces that wait, the worker owns the group that it
received. Nobody polls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter_ns

from fanlog.errors import FanlogError, LogFailedError
from fanlog.log import posix
from fanlog.log.faults import sync_error
from fanlog.log.journal import Journal
from fanlog.log.partition import PartitionLog
from fanlog.log.tail import Piece
from fanlog.telemetry.histograms import SYNC_BYTES, SYNC_US, Histogram

logger = logging.getLogger("fanlog.log")

Done = Callable[[FanlogError | None], None]


class _Group:
    """Pieces that become durable together. `written` is held until the worker is done."""

    __slots__ = (
        "adopted",
        "bytes",
        "completed",
        "dones",
        "entries",
        "error",
        "took_ns",
        "written",
    )

    def __init__(self) -> None:
        self.adopted: list[PartitionLog] = []
        self.entries: list[tuple[PartitionLog, Piece]] = []
        self.dones: list[Done] = []
        self.bytes = 0
        self.error: FanlogError | None = None
        self.took_ns = 0
        self.completed = False
        self.written = Lock()


class GroupCommit:
    """Makes pieces durable through the journal, and calls back when they are.

    `post` runs a callable on the loop thread, as `loop.call_soon_threadsafe` does.
    """

    def __init__(
        self,
        journal: Journal,
        post: Callable[[Callable[[], None]], object],
        sync: Callable[[int], None] = posix.sync_data,
    ) -> None:
        self.journal = journal
        self.pending_bytes = 0
        self.failure: FanlogError | None = None
        self._post = post
        self._sync = sync
        self._waiting = _Group()
        self._running: _Group | None = None
        self._inbox: SimpleQueue[_Group | None] = SimpleQueue()
        self._worker: Thread | None = None
        self.syncs = Histogram(SYNC_US)
        self.sync_sizes = Histogram(SYNC_BYTES)
        # Called after a sync that took longer than `slow_ns`, with its time, bytes and logs.
        self.slow: Callable[[int, int, Iterable[PartitionLog]], None] | None = None
        self.slow_ns = 1 << 62

    def add(self, log: PartitionLog, piece: Piece, done: Done) -> None:
        """Takes a piece that `log` has appended. `done` runs on the loop thread, never in here."""
        failure = self.failure
        if failure is not None:
            log.fail(failure)
            self._post(lambda: done(failure))
            return
        group = self._waiting
        group.entries.append((log, piece))
        group.dones.append(done)
        group.bytes += len(piece)
        self.pending_bytes += len(piece)

    def adopt(self, logs: Sequence[PartitionLog], done: Done) -> None:
        """Takes in logs that have files and were not synced by group commits so far. Their files
        are synced with the next group commit, before any piece of theirs is journaled."""
        failure = self.failure
        if failure is not None:
            for log in logs:
                log.fail(failure)
            self._post(lambda: done(failure))
            return
        self._waiting.adopted += logs
        self._waiting.dones.append(done)

    def histograms(self) -> tuple[Histogram, Histogram]:
        """How long syncs took, in µs, and how many bytes they had."""
        return self.syncs, self.sync_sizes

    def kick(self) -> None:
        """Starts a sync of everything that waits. If one is running, its end starts the next."""
        if self._running is not None or not self._waiting.dones:
            return
        group, self._waiting = self._waiting, _Group()
        self._running = group
        group.written.acquire()
        if self._worker is None:
            self._worker = Thread(target=self._work, name="fanlog-sync", daemon=True)
            self._worker.start()
        self._inbox.put(group)

    def drain(self) -> None:
        """Blocks the loop thread until everything added is durable or has failed, and all callbacks
        have run.

        For a stop: a lack of descriptors or memory is retried only for a limited time.
        """
        self.journal.retry.hurry()
        self.kick()
        while (group := self._running) is not None:
            with group.written:
                pass
            self._complete(group)
        self.journal.retry.relax()

    def close(self) -> None:
        """Drains, and ends the worker thread. The journal stays open: it is the store's."""
        self.drain()
        if self._worker is not None:
            self._inbox.put(None)
            self._worker.join()
            self._worker = None

    def _work(self) -> None:
        while (group := self._inbox.get()) is not None:
            begun_ns = perf_counter_ns()
            try:
                if group.adopted:
                    self.journal.adopt(group.adopted, self._sync)
                self.journal.make_durable(group.entries, self._sync)
            except OSError as fault:
                group.error = sync_error(fault, self.journal.folder)
            except Exception as fault:
                # The outermost edge of the thread: publishers must get the error, whatever it is.
                logger.exception("The sync thread failed.")
                group.error = LogFailedError(
                    f"The sync failed ({fault!r}): restart the broker and report this."
                )
            group.took_ns = perf_counter_ns() - begun_ns
            group.written.release()
            self._hand_back(group)

    def _hand_back(self, group: _Group) -> None:
        try:
            self._post(lambda: self._complete(group))
        except RuntimeError:
            # The loop is closed. The code that stops it drains, and completes the group there.
            logger.debug("A sync ended after the loop.")

    def _complete(self, group: _Group) -> None:
        """On the loop thread: starts the next sync, then runs the callbacks of this one."""
        if group.completed:
            return
        group.completed = True
        self._running = None
        self.pending_bytes -= group.bytes
        if group.error is not None:
            self._fail(group, group.error)
            return
        self.kick()
        self.syncs.observe(group.took_ns // 1000)
        self.sync_sizes.observe(group.bytes)
        if group.took_ns > self.slow_ns and self.slow is not None:
            self.slow(group.took_ns, group.bytes, (log for log, _ in group.entries))
        _tell(group.dones, None)

    def _fail(self, group: _Group, error: FanlogError) -> None:
        logger.critical("%s", error)
        self.failure = error
        self.journal.failed = True
        waiting, self._waiting = self._waiting, _Group()
        self.pending_bytes = 0
        for failed in (group, waiting):
            for log in (*failed.adopted, *(log for log, _ in failed.entries)):
                log.fail(error)
        for failed in (group, waiting):
            _tell(failed.dones, error)


def _tell(dones: list[Done], error: FanlogError | None) -> None:
    """A callback that fails must not stop the others."""
    for done in dones:
        try:
            done(error)
        except Exception:
            logger.exception("A callback after a sync failed.")
