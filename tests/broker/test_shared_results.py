"""Results that several ask for are made once, and made again when it is time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from fanlog.broker.insight.shared_results import SharedResults
from fanlog.broker.slices import Slices
from fanlog.node import LoopRuntime


class Made:
    """Counts how often something is made."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False

    def steps(self) -> Generator[None, None, int]:
        yield
        if self.fails:
            raise ValueError("no")
        self.count += 1
        return self.count


async def results() -> SharedResults:
    runtime = LoopRuntime()
    return SharedResults(Slices(runtime), runtime)


async def test_all_who_ask_share_it() -> None:
    shared, made = await results(), Made()
    found = await asyncio.gather(*(shared.get("a", made.steps) for _ in range(10)))
    assert found == [1] * 10
    assert await shared.get("a", made.steps) == 1
    assert await shared.get("b", made.steps) == 2


async def test_what_is_not_good_any_more_is_made_again() -> None:
    shared, made = await results(), Made()
    assert await shared.get("a", made.steps) == 1
    await asyncio.sleep(0.1)  # A rest: fifty times what it took.
    assert await shared.get("a", made.steps, lambda kept: kept > 1) == 2
    assert await shared.get("a", made.steps, lambda kept: kept > 1) == 2


async def test_who_goes_away_takes_it_from_nobody() -> None:
    shared, made = await results(), Made()
    first = asyncio.create_task(shared.get("a", made.steps))
    second = asyncio.create_task(shared.get("a", made.steps))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


async def test_a_fault_reaches_those_who_ask_and_is_not_kept() -> None:
    shared, made = await results(), Made()
    made.fails = True
    with pytest.raises(ValueError, match="no"):
        await shared.get("a", made.steps)
    made.fails = False
    assert await shared.get("a", made.steps) == 1


async def test_not_everything_is_kept() -> None:
    shared, made = await results(), Made()
    for n in range(200):
        await shared.get(n, made.steps)
    assert await shared.get(0, made.steps) == 201
    assert await shared.get(199, made.steps) == 200


async def test_many_other_questions_do_not_push_out_what_is_used() -> None:
    shared, made, others = await results(), Made(), Made()
    for number in range(200):
        await shared.get(("other", number), others.steps)
        assert await shared.get("names", made.steps, lambda _: True, lasting=True) == 1
