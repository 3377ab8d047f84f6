"""Beginning and waiting under asyncio, which subscriptions, members of groups and workers of queues
share."""

from __future__ import annotations

import asyncio

import pytest

from fanlog.client.core.arrivals import Arrivals
from fanlog.client.waiting import begin, wait_for
from fanlog.errors import ClosedError, ConnectionLostError

CLOSED = ClosedError("closed")


async def waiting(arrivals: Arrivals[str]) -> asyncio.Task[None]:
    """Somebody who waits."""
    task = asyncio.create_task(wait_for(arrivals))
    await asyncio.sleep(0)
    assert arrivals.wanted
    return task


async def test_whoever_waits_is_woken_by_the_next_thing() -> None:
    arrivals: Arrivals[str] = Arrivals()
    task = await waiting(arrivals)
    arrivals.put("tea")
    arrivals.put("coffee")
    await task
    assert not arrivals.wanted
    assert arrivals.take() == "tea"


async def test_the_end_wakes_whoever_waits() -> None:
    arrivals: Arrivals[str] = Arrivals()
    task = await waiting(arrivals)
    arrivals.close(CLOSED)
    with pytest.raises(ClosedError):
        await task


async def test_nobody_waits_for_what_came_before_the_end() -> None:
    arrivals: Arrivals[str] = Arrivals()
    arrivals.put("tea")
    arrivals.close(CLOSED)
    await wait_for(arrivals)
    arrivals.take()
    with pytest.raises(ClosedError):
        await wait_for(arrivals)


async def test_giving_up_the_wait_loses_nothing() -> None:
    arrivals: Arrivals[str] = Arrivals()
    task = await waiting(arrivals)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    arrivals.put("tea")
    await wait_for(arrivals)
    assert arrivals.take() == "tea"


async def test_it_is_attached_once_and_again_after_a_failure() -> None:
    arrivals: Arrivals[str] = Arrivals()
    asked: list[str] = []

    async def attach() -> None:
        asked.append("attach")
        if len(asked) == 1:
            raise ConnectionLostError("lost")

    with pytest.raises(ConnectionLostError):
        await begin(arrivals, attach)
    assert not arrivals.started
    assert await begin(arrivals, attach)
    assert not await begin(arrivals, attach)
    assert len(asked) == 2
