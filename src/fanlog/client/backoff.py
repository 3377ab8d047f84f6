"""How long to wait before another attempt after a failure."""

from __future__ import annotations

import random

import msgspec

from fanlog.errors import InvalidArgumentError

# With the largest factor that makes sense, more of them would only overflow.
_STEPS_MAX = 64


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Waits that grow: `first_seconds` after the first failure, `factor` times as long after each
    further one, at most `max_seconds`. `jitter` is the share of each wait that is random, so that
    jobs that failed together do not come back together.

    >>> Backoff(first_seconds=2, jitter=0).delay_seconds(3)
    8.0
    """

    first_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if (
            self.first_seconds < 0
            or self.max_seconds < 0
            or not 1 <= self.factor <= 100
            or not 0 <= self.jitter <= 1
        ):
            raise InvalidArgumentError(
                f"{self} makes no sense: seconds are 0 or more, factor is 1 to 100, and jitter is "
                "0 to 1."
            )

    def delay_seconds(self, failures: int) -> float:
        """The wait after this number of failures."""
        steps = min(max(failures, 1) - 1, _STEPS_MAX)
        delay = min(self.first_seconds * self.factor**steps, self.max_seconds)
        return delay * (1 - self.jitter * random.random())
