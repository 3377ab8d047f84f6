"""A clock that tests move. Leases, sessions, retention, retry delays and scheduled messages of its
brokers use it. It runs as usual, until a test advances or freezes it.

Law: both clocks of a broker move together, so the broker never sees a changed wall clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fanlog.errors import InvalidArgumentError
from fanlog.node import LoopRuntime


class Clock:
    """The time of a broker under test.

    >>> clock.advance(60)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._ahead_us = 0
        self._frozen_us: int | None = None
        # Wall clock and monotonic clock differ by this, always.
        self._wall_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._lock = threading.Lock()
        self._attend: list[Callable[[], None]] = []

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return self.monotonic_us() + self._wall_us

    def monotonic_us(self) -> int:
        frozen_us = self._frozen_us
        return self._real_us() if frozen_us is None else frozen_us

    def _real_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._ahead_us

    def now(self) -> float:
        """Seconds since 1970, as `time.time()` has them."""
        return self.now_us() / 1e6

    def advance(self, seconds: float) -> None:
        """Moves the time, and lets the brokers do all work that is then due: when this returns,
        expired leases are free, and messages past their retention are deleted."""
        if seconds < 0:
            raise InvalidArgumentError("A clock only moves forward: use 0 seconds or more.")
        with self._lock:
            moved_us = round(seconds * 1e6)
            self._ahead_us += moved_us
            if self._frozen_us is not None:
                self._frozen_us += moved_us
        for attend in list(self._attend):
            attend()

    def freeze(self) -> None:
        """Stops the time: from now on only `advance` moves it."""
        with self._lock:
            if self._frozen_us is None:
                self._frozen_us = self._real_us()

    def unfreeze(self) -> None:
        """Lets the time run again."""
        with self._lock:
            if self._frozen_us is not None:
                self._ahead_us += self._frozen_us - self._real_us()
                self._frozen_us = None

    def attach(self, attend: Callable[[], None]) -> None:
        """Calls `attend` whenever the time is moved."""
        self._attend.append(attend)

    def detach(self, attend: Callable[[], None]) -> None:
        self._attend.remove(attend)


class ClockedRuntime(LoopRuntime):
    """A broker's runtime whose time is a test's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def now_us(self) -> int:
        return self._clock.now_us()

    def monotonic_us(self) -> int:
        return self._clock.monotonic_us()

    def work_us(self) -> int:
        # Delays of messages go by it. While the clock is frozen, long work is done in one piece.
        return self._clock.monotonic_us()
