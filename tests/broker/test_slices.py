"""Long work in slices: each turn has one, whoever's it is, and nothing is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fanlog.broker.slices import SLICE_US, Slices
from tests.broker.stage import HandRuntime


def counting(runtime: HandRuntime, seen: list[str], name: str, steps: int) -> Iterator[None]:
    """Steps of half a slice each."""
    for number in range(steps):
        runtime.time_us += SLICE_US // 2
        seen.append(f"{name}{number}")
        yield


def test_a_slice_is_as_long_as_it_may_be_and_the_rest_comes_in_later_turns() -> None:
    runtime, seen, ended = HandRuntime(), list[str](), list[str]()
    Slices(runtime).in_slices(counting(runtime, seen, "a", 5), lambda: ended.append("a"))
    assert seen == ["a0", "a1"]
    runtime.due.popleft()()
    assert seen == ["a0", "a1", "a2", "a3"]
    assert not ended
    runtime.run()
    assert seen[-1] == "a4"
    assert ended == ["a"]


def test_short_work_is_done_at_once() -> None:
    runtime, seen = HandRuntime(), list[str]()
    Slices(runtime).in_slices(counting(runtime, seen, "a", 1))
    assert seen == ["a0"]
    assert not runtime.due


def test_a_turn_has_one_slice_however_much_work_there_is() -> None:
    runtime, seen = HandRuntime(), list[str]()
    slices = Slices(runtime)
    slices.in_slices(counting(runtime, seen, "a", 5))
    slices.in_slices(counting(runtime, seen, "b", 5))
    del seen[:]
    runtime.due.popleft()()
    assert seen == ["a2", "a3"]
    runtime.due.popleft()()
    assert seen == ["a2", "a3", "b2", "b3"]
    runtime.run()
    assert seen == ["a2", "a3", "b2", "b3", "a4", "b4"]


def test_work_that_fails_ends_and_does_not_hold_up_other_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime, ended = HandRuntime(), list[str]()
    slices = Slices(runtime)

    def failing() -> Iterator[None]:
        yield
        raise ValueError("on purpose")

    slices.in_slices(failing(), lambda: ended.append("failed"))
    slices.in_slices(iter([None]), lambda: ended.append("fine"))
    assert ended == ["failed", "fine"]
    assert "the broker's own work failed" in caplog.text


async def test_a_coroutine_gives_others_their_turn_between_items() -> None:
    runtime = HandRuntime()
    slices = Slices(runtime)
    got: list[int] = []

    async def go() -> None:
        async for item in slices.each(range(4)):
            runtime.time_us += SLICE_US // 2
            got.append(item)

    task = asyncio.create_task(go())
    await asyncio.sleep(0)
    assert got == [0, 1]
    while not task.done():
        runtime.run()
        await asyncio.sleep(0)
    assert got == [0, 1, 2, 3]
