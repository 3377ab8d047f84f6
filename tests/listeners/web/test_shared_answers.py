"""One computation serves all who ask at the same time; a failure is not kept."""

from __future__ import annotations

import asyncio

import pytest

from fanlog.listeners.web.shared_answers import SharedAnswers


class Owner:
    """Whose answer it is."""


async def test_those_who_ask_together_share_one_answer() -> None:
    shared, owner, other, made = SharedAnswers[int](), Owner(), Owner(), 0

    async def find() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return made

    assert await asyncio.gather(*(shared.get(owner, find) for _ in range(5))) == [1] * 5
    assert await shared.get(owner, find) == 1
    assert await shared.get(other, find) == 2
    shared.forget(owner)
    assert await shared.get(owner, find) == 3


async def test_a_failure_is_told_and_not_kept() -> None:
    shared, owner = SharedAnswers[int](), Owner()

    async def fail() -> int:
        raise ValueError("no")

    async def find() -> int:
        return 1

    with pytest.raises(ValueError, match="no"):
        await shared.get(owner, fail)
    await asyncio.sleep(0)
    assert await shared.get(owner, find) == 1


async def test_who_goes_away_leaves_the_answer_to_the_others() -> None:
    shared, owner, resume = SharedAnswers[int](), Owner(), asyncio.Event()

    async def find() -> int:
        await resume.wait()
        return 1

    first = asyncio.ensure_future(shared.get(owner, find))
    second = asyncio.ensure_future(shared.get(owner, find))
    await asyncio.sleep(0)
    first.cancel()
    resume.set()
    assert await second == 1
    assert first.cancelled()


async def test_each_question_has_its_answer_and_very_many_are_not_kept() -> None:
    shared, owner, made = SharedAnswers[int](), Owner(), 0

    async def find() -> int:
        nonlocal made
        made += 1
        return made

    assert [await shared.get(owner, find, key) for key in (1, 2, 1)] == [1, 2, 1]
    for key in range(3, 200):
        await shared.get(owner, find, key)
    before = made
    assert await shared.get(owner, find, 1) == 1
    assert await shared.get(owner, find, 199) == before + 1
    assert await shared.get(owner, find, 199) == before + 2
