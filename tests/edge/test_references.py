"""How often a target is followed upstream, and when it ends."""

from __future__ import annotations

import asyncio

import pytest

from fanlog.edge.references import References, TopicReference

TARGET = TopicReference("t", False)


async def test_a_follow_that_failed_takes_nothing_from_the_next_one() -> None:
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[None]] = [loop.create_future(), loop.create_future()]
    begun: list[TopicReference] = []
    ended: list[TopicReference] = []
    again: list[asyncio.Task[bool]] = []

    async def begin(target: TopicReference) -> None:
        begun.append(target)
        await answers[len(begun) - 1]

    def end(target: TopicReference) -> None:
        """Somebody comes between the fault and those who are told of it."""
        ended.append(target)
        again.append(asyncio.create_task(references.follow(TARGET)))

    references = References(begin, end, 0.0)
    first = asyncio.create_task(references.follow(TARGET))
    answers[0].set_exception(ConnectionError("not now"))
    with pytest.raises(ConnectionError):
        await first
    answers[1].set_result(None)
    assert await again[0] is False
    # It ends when its one follower leaves, and not before.
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert TARGET in references
    assert len(ended) == 1
    await references.close()


async def test_what_failed_is_begun_anew_for_who_comes_in_the_same_turn() -> None:
    begun: list[TopicReference] = []

    async def begin(target: TopicReference) -> None:
        begun.append(target)
        if len(begun) == 1:
            raise ConnectionError("not now")

    references = References(begin, lambda _: None, 0.0)
    first = asyncio.create_task(references.follow(TARGET))
    await asyncio.sleep(0)  # It has asked,
    await asyncio.sleep(0)  # and it has failed.
    assert not references.hold(TARGET)
    await references.follow(TARGET)
    assert len(begun) == 2
    with pytest.raises(ConnectionError):
        await first
    assert references.hold(TARGET)
    await references.close()
