"""The world of one simulation: virtual time, the row of events to come, the dice and the trace.

Law: nothing in a run depends on anything but its seed. Whoever needs chance asks `dice`, whoever
needs time asks `now`, and whoever wants something to happen later hands it to `at`.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from array import array
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from greenlet import getcurrent

if TYPE_CHECKING:
    from tests.simulation.process import Process

# The wall clock at the beginning of each run.
EPOCH_SECONDS = 1_700_000_000.0
_SHOWN_LINES = 4000
_HASHED_NOTES = 200


class Killed(BaseException):
    """Ends the code of a process that was killed. Not an `Exception`: nobody may handle it."""


class Stuck(Exception):
    """Nothing is left to happen, or too much has, before what was waited for."""


class Trace:
    """What happened, in order: a hash of all of it, and the last lines for people."""

    def __init__(self, *, keep_all: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._count = 0
        # Notes are hashed together, and put into lines when somebody reads them: that is cheaper.
        self._times = array("d")
        self._notes: list[str] = []
        self._last: deque[tuple[float, str]] = deque(maxlen=None if keep_all else _SHOWN_LINES)

    def note(self, now: float, what: str) -> None:
        self._times.append(now)
        self._notes.append(what)
        if len(self._notes) >= _HASHED_NOTES:
            self._take_in()

    def _take_in(self) -> None:
        self._count += len(self._notes)
        self._last.extend(zip(self._times, self._notes, strict=True))
        self._hash.update(self._times.tobytes())
        self._hash.update("\n".join(self._notes).encode("utf-8", "backslashreplace"))
        del self._times[:]
        self._notes.clear()

    @property
    def count(self) -> int:
        return self._count + len(self._notes)

    @property
    def lines(self) -> list[str]:
        self._take_in()
        return [f"{now:.6f} {what}" for now, what in self._last]

    def digest(self) -> str:
        self._take_in()
        return self._hash.hexdigest()


class Event:
    """Something to come. `cancel` takes it back."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class World:
    """One run. `hub` is where events happen; simulated threads switch back to it."""

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.trace = Trace(keep_all=keep_all)
        self.hub = getcurrent()
        # The process whose code runs now; None for the simulation's own.
        self.current: Process | None = None
        self.processes: list[Process] = []
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0
        self.over = False

    def dice(self, name: str) -> random.Random:
        """A row of chance of its own: what one part draws does not change what another gets."""
        return random.Random(f"{self.seed}/{name}")

    def note(self, what: str) -> None:
        self.trace.note(self.now, what)

    def at(self, when: float, call: Callable[[], None]) -> Event:
        event = Event(call)
        self._count += 1
        heapq.heappush(self._events, (max(self.now, when), self._count, event))
        return event

    def after(self, seconds: float, call: Callable[[], None]) -> Event:
        return self.at(self.now + seconds, call)

    def run(self, done: Callable[[], bool], seconds_max: float) -> None:
        """Lets events happen until `done`. Raises `Stuck` if that takes too long."""
        end = self.now + seconds_max
        while not done():
            if not self._events:
                raise Stuck("nothing is left to happen")
            when, _, event = heapq.heappop(self._events)
            if when > end:
                raise Stuck(f"not done after {seconds_max} simulated seconds")
            self.now = when
            call, event.call = event.call, None
            if call is not None:
                call()

    def close(self) -> None:
        """Nothing happens any more, whatever is left of the processes."""
        self.over = True
        self._events.clear()
        for process in self.processes:
            process.discard()


_active: list[World] = []


def activate(world: World | None) -> None:
    """The world that the simulated parts belong to. One at a time."""
    _active[:] = [] if world is None else [world]


def active() -> World:
    return _active[0]


def maybe_active() -> World | None:
    return _active[0] if _active else None
