"""How fast something may happen. Law: a caller that is too fast waits; nothing is refused or
lost."""

from __future__ import annotations


class Rate:
    """So many a second, with a second's worth at once. 0 is no limit. The clock is handed in."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._at = now

    def change(self, per_second: float, now: float) -> None:
        """From now on it is another rate."""
        self._refill(now)
        self._per_second = per_second
        self._left = min(self._left, per_second)

    def take(self, count: float, now: float) -> None:
        if self._per_second:
            self._refill(now)
            self._left -= count

    def wait_seconds(self, now: float) -> float:
        """How long to wait before the next one."""
        if not self._per_second:
            return 0.0
        self._refill(now)
        return 0.0 if self._left >= 0 else -self._left / self._per_second

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._left = min(self._per_second, self._left + (now - self._at) * self._per_second)
            self._at = now
