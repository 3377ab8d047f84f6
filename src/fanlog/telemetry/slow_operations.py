"""Slow operations, named with their cause: what took so long, for whom, and how long. Each kind has
a threshold in `[telemetry]`; a flood of them is one line a second for each kind, with a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from fanlog.config_security import TelemetryOptions
from fanlog.identity import Identity
from fanlog.telemetry.callers import describe

logger = logging.getLogger("fanlog.slow")

_NEVER_NS = 1 << 62
_SECOND_NS = 1_000_000_000
_NAMED = 3


class SlowLog:
    """Writes the lines. `*_ns` are the thresholds, for those who measure. Without `on` it writes
    nothing: a program around an embedded broker may be as slow as it likes."""

    def __init__(
        self, options: TelemetryOptions, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.turn_ns = _threshold(options.slow_turn_ms)
        self.sync_ns = _threshold(options.slow_sync_ms)
        self.request_ns = _threshold(options.slow_request_ms)
        self.loop_ns = _threshold(options.slow_loop_ms)
        self.on = True
        self._now_ns = now_ns
        # By kind: when the next line may be written, and how many were left out.
        self._next: dict[str, tuple[int, int]] = {}

    def turn(self, took_ns: int, append_ns: int, topics: Sequence[str], readers: int) -> None:
        """`append_ns` of it went by until all was in the logs, the rest to readers and into
        acknowledgements."""
        parts = (
            f"{_ms(append_ns)} to append, {_ms(took_ns - append_ns)} to send to {readers} readers"
        )
        self._say("turn", f"slow turn: {_ms(took_ns)}, {parts}; {_names(topics)}")

    def sync(self, took_ns: int, size: int, topics: Sequence[str]) -> None:
        self._say("sync", f"slow sync: {_ms(took_ns)} for {size} bytes; {_names(topics)}")

    def request(self, took_ns: int, what: str, who: Identity | None, *, waited: bool) -> None:
        """`waited`: for the disk or for others, and not on the loop."""
        where = "it waited for the disk or for others" if waited else "all of it on the event loop"
        self._say("request", f"slow request: {what} took {_ms(took_ns)}{describe(who)}; {where}")

    def loop(self, took_ns: int) -> None:
        self._say("loop", f"the event loop stood still for {_ms(took_ns)}")

    def _say(self, kind: str, sentence: str) -> None:
        if not self.on:
            return
        now_ns = self._now_ns()
        next_ns, left_out = self._next.get(kind, (0, 0))
        if now_ns < next_ns:
            self._next[kind] = (next_ns, left_out + 1)
            return
        self._next[kind] = (now_ns + _SECOND_NS, 0)
        more = f" ({left_out} more since the last such line)" if left_out else ""
        logger.warning("%s%s", sentence, more)


def _threshold(ms: int) -> int:
    return ms * 1_000_000 if ms else _NEVER_NS


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.0f} ms"


def _names(topics: Sequence[str]) -> str:
    """`topic orders`, or `topics a, b, c and 4 more`."""
    if not topics:
        return "no topic"
    shown = ", ".join(topics[:_NAMED])
    more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    return f"topic{'s' if len(topics) > 1 else ''} {shown}{more}"
