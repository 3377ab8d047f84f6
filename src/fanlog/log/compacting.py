"""Carries a compaction run out: its steps in a thread, its swaps on the loop.

A run may end early at any moment, and loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Protocol, TypeVar

from fanlog.errors import FanlogError, LogFailedError
from fanlog.log.compaction import Compaction
from fanlog.log.faults import write_error
from fanlog.log.partition import PartitionLog
from fanlog.log.rewrite import Rewritten

logger = logging.getLogger("fanlog.log")

T = TypeVar("T")


class CompactionThread(Protocol):
    """Runs `work` in a thread, and hands its result or exception to `done` on the loop."""

    def __call__(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None: ...


class CompactionTask:
    """`may_swap` is called before a new file replaces old ones: if it returns False, the run ends.
    `done` gets the error of the run, once; nothing after `halt`."""

    def __init__(
        self,
        log: PartitionLog,
        run: Compaction,
        name: str,
        in_background: CompactionThread,
        *,
        may_swap: Callable[[], bool],
        done: Callable[[FanlogError | None], None],
    ) -> None:
        self.run = run
        self._log = log
        self._name = name
        self._in_background = in_background
        self._may_swap = may_swap
        self._done = done
        self._halted = False
        self._begun = False
        # Held while a step works.
        self._working = Lock()

    def begin(self) -> None:
        """The batches prove their producers until they are rewritten: those are saved first."""
        self._log.when_proven(self._proven)

    def halt(self) -> None:
        """Ends the run, and leaves none of its files half made. Blocks for a step's work; the
        run's `stopped` must say so already."""
        self._halted = True
        with self._working:
            if self._begun:
                # Without a swap the run is over, and removes a file that was ready.
                self.run.step()

    def _proven(self, fault: Exception | None) -> None:
        if self._halted:
            return
        if fault is None:
            self._step()
        else:
            self._done(self._error(fault))

    def _step(self) -> None:
        self._in_background(self._work, self._stepped)

    def _work(self) -> Rewritten | None:
        with self._working:
            if self._halted:
                return None
            self._begun = True
            return self.run.step()

    def _stepped(self, got: Rewritten | Exception | None) -> None:
        if self._halted:
            return
        if isinstance(got, Rewritten):
            try:
                if self._may_swap():
                    self.run.swap(got)
            except OSError as fault:
                got = fault
            else:
                # If the new file is not used, the next step deletes it.
                self._step()
                return
        self._done(None if got is None else self._error(got))

    def _error(self, fault: Exception) -> FanlogError:
        """The error of a run. That it could not write its own files has harmed nothing; that the
        log could not be synced has."""
        if isinstance(fault, LogFailedError):
            self._log.fail(fault)
            return fault
        if isinstance(fault, OSError):
            return write_error(fault, self._name, "Compacting")
        if isinstance(fault, FanlogError):
            return fault
        logger.error("compacting %s failed: %r", self._name, fault, exc_info=fault)
        return FanlogError(f"Compacting {self._name} failed: {fault!r}. Please report this.")
