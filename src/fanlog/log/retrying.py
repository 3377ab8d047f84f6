"""Repeats operations that failed for lack of a descriptor or memory. If a file could not be opened,
it was not synced, and nothing is lost: the caller only waits longer. Only threads that may block
are patient, never the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from fanlog.errors import OutOfResourcesError
from fanlog.log.faults import is_temporary

logger = logging.getLogger("fanlog.log")

T = TypeVar("T")

_FIRST_SECONDS = 0.01
_LONGEST_SECONDS = 0.25


class Retry:
    """Tries again without end, or, after `hurry`, a limited number of times."""

    def __init__(self, tries_in_a_hurry: int = 20) -> None:
        self._tries_in_a_hurry = tries_in_a_hurry
        self._hurry = Event()

    def hurry(self) -> None:
        """Somebody waits for the end, who may be the one that has the descriptors."""
        self._hurry.set()

    def relax(self) -> None:
        self._hurry.clear()

    def until_done(self, work: Callable[[], T], what: str) -> T:
        """The result of `work`. Blocks; raises what is not temporary."""
        seconds = _FIRST_SECONDS
        tries_left = self._tries_in_a_hurry
        said = False
        while True:
            try:
                result = work()
            except (OSError, OutOfResourcesError) as fault:
                if not _may_pass(fault) or (self._hurry.is_set() and tries_left <= 0):
                    raise
                if not said:
                    said = True
                    logger.warning("%s failed, and will be tried again: %s", what, fault)
            else:
                if said:
                    logger.warning("%s works again.", what)
                return result
            if self._hurry.wait(seconds):
                time.sleep(_LONGEST_SECONDS)
                tries_left -= 1
            seconds = min(2 * seconds, _LONGEST_SECONDS)


def _may_pass(fault: OSError | OutOfResourcesError) -> bool:
    return isinstance(fault, OutOfResourcesError) or is_temporary(fault)


def retry_briefly(work: Callable[[], T], what: str) -> T:
    """The result of `work`, tried for a second or so. For readers: they can get an error, and try
    again."""
    retry = Retry(tries_in_a_hurry=4)
    retry.hurry()
    return retry.until_done(work, what)
