"""Work that a log hands to somebody else, because it would hold up whoever writes: it goes to a
thread, or over the loop in slices. A log by itself, in a tool or while a broker starts, does it
at once.

What is removed from disk goes in the order it was handed over, one after the other: after a crash
a log must not have a hole.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Protocol, TypeVar

from fanlog.log.patience import a_few_times

logger = logging.getLogger("fanlog.log")

T = TypeVar("T")

# How often whoever waits for the end of a hold looks whether the broker stops.
_HOLD_LOOK_SECONDS = 0.05


class Errands(Protocol):
    """Who does the work. Both may do it at once."""

    def in_background(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None:
        """Runs `work` in a thread, and hands its result or exception to `done` on the loop."""
        ...

    def in_slices(self, steps: Iterator[None], /) -> None:
        """Goes through `steps` on the loop, some at a time, with the turns of others between."""
        ...


class AtOnce:
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
    """Files that nobody looks for any more, and how they are removed. Large ones take long."""

    def __init__(self) -> None:
        self.errands: Errands = AtOnce()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running: Callable[[], None] | None = None
        # How many have said that nothing may go for now. Safe from any thread.
        self._holds = 0
        self._released = Condition()

    def hold(self) -> None:
        """Nothing is removed from now on. What is being removed already may go on: nobody who
        looks at the lists now finds it there."""
        with self._released:
            self._holds += 1

    def release(self) -> None:
        """Ends a `hold`, from any thread. What has waited goes on with `resume`."""
        with self._released:
            self._holds -= 1
            self._released.notify_all()

    def resume(self) -> None:
        """After a `release`: on the loop thread."""
        self._next()

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """For whoever removes files in a thread of its own: blocks while nothing may go. False if
        it was `stopped` before."""
        with self._released:
            while self._holds:
                if stopped():
                    return False
                self._released.wait(_HOLD_LOOK_SECONDS)
        return True

    def add(self, remove: Callable[[], None]) -> None:
        """Runs `remove` in a thread, after all that came before it. It may leave files behind, if
        it says so with an `OSError`: a start finds them. It can be run twice."""
        self._waiting.append(remove)
        self._next()

    def finish(self) -> None:
        """Does what still waits, before the broker ends and when its threads have."""
        if self._running is not None:
            # Maybe it was called off before it began.
            self._waiting.appendleft(self._running)
            self._running = None
        while self._waiting:
            _ended(_attempt(self._waiting.popleft()))

    def _next(self) -> None:
        if self._waiting and self._running is None and not self._holds:
            remove = self._running = self._waiting.popleft()
            self.errands.in_background(lambda: _attempt(remove), self._done)

    def _done(self, result: Exception | None) -> None:
        self._running = None
        _ended(result)
        self._next()


def _attempt(remove: Callable[[], None]) -> OSError | None:
    try:
        a_few_times(remove, "The removal of files")
    except OSError as fault:
        return fault
    return None


def _ended(result: Exception | None) -> None:
    if result is not None:
        logger.warning("Files that are not needed any more are still there: %s", result)
