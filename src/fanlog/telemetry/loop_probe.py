"""Measures how late the event loop gets round to what is due: a timer that notes its own delay."""

from __future__ import annotations

import asyncio
import time

from fanlog.telemetry.histograms import Histogram
from fanlog.telemetry.slow_operations import SlowLog

_INTERVAL_SECONDS = 0.05


class LoopProbe:
    """It runs from `start` to `stop`. `beat_ns` is when it last ran."""

    interval_ns = int(_INTERVAL_SECONDS * 1e9)

    def __init__(self, delays: Histogram, slow: SlowLog | None = None) -> None:
        self._delays = delays
        self.slow = slow
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self.beat_ns = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        # uvloop's own clock counts whole ms, and stands still during a turn.
        self.beat_ns = time.monotonic_ns()
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._woke)

    def _woke(self) -> None:
        late_ns = time.monotonic_ns() - self.beat_ns - self.interval_ns
        self._delays.observe(max(0, late_ns) // 1000)
        if self.slow is not None and late_ns > self.slow.loop_ns:
            self.slow.loop(late_ns)
        self._wait()
