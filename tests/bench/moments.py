"""Measurements that last for a moment. A busy machine may sleep through it, or its disk may: then
nothing was counted, and a longer moment is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

MOMENTS_S = (0.05, 0.5, 5.0)


def until_counted(measure: Callable[[float], T], rates: Callable[[T], Iterable[float]]) -> T:
    """What was measured in the shortest of some moments in which everything was counted, or at
    last in the longest: whether that is enough is for the test to say."""
    *short, longest = MOMENTS_S
    for seconds in short:
        measured = measure(seconds)
        if min(rates(measured)) > 0:
            return measured
    return measure(longest)
