"""What bounds one topic beside its settings. `metering.py` makes it for topics that have a rate or
count for a quota; most have none."""

from __future__ import annotations

from collections.abc import Callable

from fanlog.errors import FanlogError
from fanlog.security.limits import RateBuckets
from fanlog.security.quotas import Share


class TopicLimits:
    """What bounds a topic: a rate of its own, and quotas that it counts for."""

    __slots__ = ("_now_us", "_share", "rates")

    def __init__(self, rates: RateBuckets | None, share: Share, now_us: Callable[[], int]) -> None:
        self.rates = rates
        self._share = share
        self._now_us = now_us

    def stored(self, messages: int, size: int) -> None:
        """A turn has put this into the topic's log."""
        self._share.grew(size)
        if self.rates is not None:
            self.rates.take(messages, size, self._now_us())

    def recount(self, stored_bytes: int) -> None:
        self._share.recount(stored_bytes)

    def end(self) -> None:
        self._share.end()

    def maybe_fault(self, pause_seconds_max: float) -> FanlogError | None:
        """Why the topic accepts no messages now."""
        if self.rates is not None and self.rates.in_debt:
            now_us = self._now_us()
            if self.rates.debt_seconds(now_us) > pause_seconds_max:
                return self.rates.refusal(now_us)
        return self._share.maybe_fault()
