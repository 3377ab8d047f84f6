"""The two clocks, and the border between them. Durations are measured by the monotonic clock.
What is stored has times of the wall clock, which somebody may have set meanwhile: they become ages
when they are loaded, within limits, and nothing expires just because the clock jumped."""

from __future__ import annotations

import logging
from typing import Protocol

logger = logging.getLogger("fanlog.broker")

SECOND_US = 1_000_000
# After a start, state with an age is kept for at least this time, however old it seems: its owner
# comes back within that time, and the wall clock may be wrong.
RETURN_SECONDS = 3600
# Clocks run apart by less than this between two looks, unless somebody sets one of them.
_JUMP_US = 60 * SECOND_US


class Clocks(Protocol):
    """See `Runtime`."""

    def now_us(self) -> int: ...
    def monotonic_us(self) -> int: ...


def wall_time_us(clocks: Clocks, monotonic_us: int) -> int:
    """A moment of the monotonic clock, as it is stored."""
    return clocks.now_us() + monotonic_us - clocks.monotonic_us()


def moment_of_us(clocks: Clocks, stored_us: int, kept_us: int) -> int:
    """When something happened, by the monotonic clock of this process. `stored_us` is when by the
    wall clock, and `kept_us` for how long it is kept: it has at least `RETURN_SECONDS` left."""
    age_us = max(0, clocks.now_us() - stored_us)
    oldest_us = max(0, kept_us - RETURN_SECONDS * SECOND_US)
    return clocks.monotonic_us() - min(age_us, oldest_us)


class TrustedClock:
    """The wall clock as far as it is trusted when records are deleted for their age.

    A clock that jumps forward is ignored for `trust_seconds`: time passes as before, and an
    operator who set the clock wrong can correct it, with nothing lost. A clock that is set back is
    believed at once, because it deletes nothing.
    """

    def __init__(self, clocks: Clocks, trust_seconds: float) -> None:
        self._clocks = clocks
        self._trust_us = int(trust_seconds * SECOND_US)
        self._wall_us = clocks.now_us()
        self._monotonic_us = clocks.monotonic_us()
        self._ahead_us = 0
        self._trust_at_us = 0

    def load(self, newest_us: int) -> None:
        """`newest_us` is the time of the newest record: the broker was not there since, or the
        wall clock has jumped. Nobody can tell which."""
        if newest_us:
            self._distrust(self._wall_us - newest_us)

    def now_us(self) -> int:
        """Never ahead of the wall clock."""
        wall_us, monotonic_us = self._clocks.now_us(), self._clocks.monotonic_us()
        jump_us = (wall_us - self._wall_us) - (monotonic_us - self._monotonic_us)
        self._wall_us, self._monotonic_us = wall_us, monotonic_us
        if jump_us > _JUMP_US:
            logger.warning(
                "The wall clock jumped forward by %d s. Retention ignores that for %d s, and then "
                "follows the clock. Correct the clock if it is wrong.",
                *(jump_us // SECOND_US, self._trust_us // SECOND_US),
            )
            self._distrust(self._ahead_us + jump_us)
        elif jump_us < -_JUMP_US:
            logger.warning(
                "The wall clock was set back by %d s. New records get the time of the newest one "
                "in their partition until the clock is past it.",
                -jump_us // SECOND_US,
            )
            self._ahead_us = max(0, self._ahead_us + jump_us)
        if self._ahead_us and monotonic_us >= self._trust_at_us:
            jumped = self._ahead_us // SECOND_US
            logger.info("Retention follows the wall clock again, which jumped by %d s.", jumped)
            self._ahead_us = 0
        return wall_us - self._ahead_us

    def _distrust(self, ahead_us: int) -> None:
        if ahead_us > _JUMP_US:
            self._ahead_us = ahead_us
            self._trust_at_us = self._clocks.monotonic_us() + self._trust_us
