"""Times that a worker asks for."""

from __future__ import annotations

import pytest

from fanlog.client.queues.jobs import extension_ms, milliseconds
from fanlog.errors import InvalidArgumentError


def test_a_delay_is_a_time_that_can_pass() -> None:
    assert [milliseconds(one) for one in (None, -1, 0, 1.5)] == [-1, 0, 0, 1500]
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="a number of seconds, not"):
            milliseconds(wrong)


def test_an_extension_gives_time() -> None:
    """With none the lease would run out at once, and another worker get the job."""
    assert [extension_ms(one) for one in (None, 0.5)] == [-1, 500]
    for wrong in (0, -5):
        with pytest.raises(InvalidArgumentError, match="gives a job no time"):
            extension_ms(wrong)
