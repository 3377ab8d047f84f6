"""Sorting in steps gives what `sorted` gives, and no step takes long."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.insight.sliced_sort import order_of


def finished(values: list[float], *, descending: bool = False) -> tuple[list[int], int]:
    steps, count = order_of(values, descending=descending), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, count
        count += 1


@given(st.lists(st.integers(0, 20) | st.floats(-5, 5)), st.booleans())
def test_it_is_the_order_of_the_values(values: list[float], descending: bool) -> None:
    order, _ = finished(values, descending=descending)
    sign = -1 if descending else 1
    assert order == sorted(range(len(values)), key=lambda i: sign * values[i])


def test_many_values_are_many_steps() -> None:
    dice = random.Random(1)
    cases: list[list[float]] = [
        [dice.randrange(10**9) for _ in range(30_000)],
        list(map(float, range(30_000))),
        [0] * 30_000,
        [dice.choice((1, 2, dice.random())) for _ in range(30_000)],
    ]
    for values in cases:
        order, count = finished(values)
        assert [values[i] for i in order] == sorted(values)
        assert count >= len(values) // 512
