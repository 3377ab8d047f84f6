"""Says where an event loop stands still: a thread that looks at the loop's heartbeat, and, when it
is late, at what the loop's thread is doing."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import FrameType

from fanlog.telemetry.loop_probe import LoopProbe

logger = logging.getLogger("fanlog.slow")

# Looks in the time that is too long.
_LOOKS = 4
_LOOK_SECONDS_MIN = 0.05


class Watchdog:
    """It runs from `start`, which the loop's thread calls, to `stop`."""

    def __init__(self, probe: LoopProbe, late_ns: int) -> None:
        self._probe = probe
        self._late_ns = late_ns
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._reported_ns = 0

    def start(self) -> None:
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="fanlog-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        wait = max(_LOOK_SECONDS_MIN, self._late_ns / 1e9 / _LOOKS)
        while not self._stopped.wait(wait):
            self.look(time.monotonic_ns())

    def look(self, now_ns: int) -> None:
        """Says so once if the heartbeat is late."""
        beat_ns = self._probe.beat_ns
        in_time = now_ns - beat_ns <= self._late_ns + self._probe.interval_ns
        if in_time or beat_ns == self._reported_ns:
            return
        self._reported_ns = beat_ns
        # There is no other way to see what another thread does.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._watched)
        where = "" if frame is None else where_of(frame)
        late_ms = (now_ns - beat_ns) / 1e6
        logger.warning("the event loop has stood still for %.0f ms now%s", late_ms, where)


def where_of(frame: FrameType) -> str:
    """` in broker/messages/catalog.py, line 120, page, for 127.0.0.1:50312`: the innermost function
    of ours, and the peer that it works for."""
    code_at, peer = "", ""
    found: FrameType | None = frame
    while found is not None:
        name = found.f_code.co_filename
        if not code_at and "/fanlog/" in name:
            short = name.rpartition("/fanlog/")[2]
            code_at = f" in {short}, line {found.f_lineno}, {found.f_code.co_name}"
        if not peer and found.f_code.co_name in ("_readable", "_take", "data_received"):
            owner = found.f_locals.get("self")
            said = getattr(owner, "peer", "")
            peer = f", for {said}" if isinstance(said, str) and said else ""
        found = found.f_back
    return code_at + peer
