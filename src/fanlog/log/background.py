"""Slow work of a log that must not hold up writers: it runs in a thread, or on the loop in slices.
A log on its own, in a tool or while a broker starts, runs it at once.

Files are deleted in the order of the calls, one after the other: after a crash a log must not have
a gap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Protocol, TypeVar

from fanlog.log.retrying import retry_briefly

logger = logging.getLogger("fanlog.log")

T = TypeVar("T")

# While a hold lasts, the waiting thread checks this often whether the broker stops.
_HOLD_LOOK_SECONDS = 0.05


class BackgroundWork(Protocol):
    """Runs the work. Both methods may run it at once."""

    def in_background(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None:
        """Runs `work` in a thread, and hands its result or exception to `done` on the loop."""
        ...

    def in_slices(self, steps: Iterator[None], /) -> None:
        """Goes through `steps` on the loop, some at a time, with the turns of others between."""
        ...


class InlineWork:
    """Does everything before it returns."""

    def in_background(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None:
        try:
            result: T | Exception = work()
        except Exception as fault:  # noqa: BLE001 - handed on, as the interface says
            result = fault
        done(result)

    def in_slices(self, steps: Iterator[None], /) -> None:
        for _ in steps:
            pass


class Removals:
    """Deletes files that are no longer used. Large files take long."""

    def __init__(self) -> None:
        self.background: BackgroundWork = InlineWork()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running: Callable[[], None] | None = None
        # Number of holds. Safe from any thread.
        self._holds = 0
        self._released = Condition()

    def hold(self) -> None:
        """Pauses deletion. A deletion that has started may continue: its file is no longer in any
        list."""
        with self._released:
            self._holds += 1

    def release(self) -> None:
        """Ends a `hold`, from any thread. Call `resume` on the loop after it."""
        with self._released:
            self._holds -= 1
            self._released.notify_all()

    def resume(self) -> None:
        """After a `release`: on the loop thread."""
        self._next()

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """For a thread that deletes files itself: blocks during a hold. False if `stopped` before
        its end."""
        with self._released:
            while self._holds:
                if stopped():
                    return False
                self._released.wait(_HOLD_LOOK_SECONDS)
        return True

    def add(self, remove: Callable[[], None]) -> None:
        """Runs `remove` in a thread, after all earlier ones. It may leave files behind and raise
        `OSError`: the next start finds them. It must be safe to run twice."""
        self._waiting.append(remove)
        self._next()

    def finish(self) -> None:
        """Runs the remaining deletions, when the broker's threads have ended."""
        if self._running is not None:
            # Maybe it was called off before it began.
            self._waiting.appendleft(self._running)
            self._running = None
        while self._waiting:
            _ended(_attempt(self._waiting.popleft()))

    def _next(self) -> None:
        if self._waiting and self._running is None and not self._holds:
            remove = self._running = self._waiting.popleft()
            self.background.in_background(lambda: _attempt(remove), self._done)

    def _done(self, result: Exception | None) -> None:
        self._running = None
        _ended(result)
        self._next()


def _attempt(remove: Callable[[], None]) -> OSError | None:
    try:
        retry_briefly(remove, "The removal of files")
    except OSError as fault:
        return fault
    return None


def _ended(result: Exception | None) -> None:
    if result is not None:
        logger.warning("Files that are not needed any more could not be removed: %s", result)
