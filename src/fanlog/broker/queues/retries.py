"""How long a failed job waits before it is handed out again. The queue's rule decides, for every
worker and every kind of failure.

The wait after failure n is `retry_delay_seconds` times `retry_factor` to the power n - 1, at most
`retry_max_seconds`. Up to the share `retry_jitter` of it is taken off, by chance.
Law: it never waits for less than that, by the monotonic clock."""

from __future__ import annotations

import secrets

from fanlog.format.checksum import crc32c
from fanlog.model import QueueSettings

# With the largest factor, more of them would only overflow.
_STEPS_MAX = 64
_CHANCES = 1 << 32
# Drawn once, so that two brokers do not wait alike.
_SALT = secrets.token_bytes(8)


def retry_delay_us(settings: QueueSettings, failures: int, job: tuple[int, int, int]) -> int:
    """The wait after `failures` failures of a job at topic number, partition and offset. The same
    arguments give the same result, so that the stored time is the real one."""
    steps = min(max(failures, 1) - 1, _STEPS_MAX)
    longest = settings.retry_delay_seconds * settings.retry_factor**steps
    delay_us = round(min(longest, settings.retry_max_seconds) * 1e6)
    if not settings.retry_jitter or not delay_us:
        return delay_us
    said = f"{job} {failures}".encode()
    return delay_us - int(delay_us * settings.retry_jitter * (crc32c(_SALT + said) / _CHANCES))
