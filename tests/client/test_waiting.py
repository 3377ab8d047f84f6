"""Waiting and closing, which subscriptions, members of groups and workers of queues share; and the
window that they grant the broker."""

from __future__ import annotations

import asyncio

import pytest

from fanlog.client.waiting import Arrivals
from fanlog.client.window import CreditWindow
from fanlog.errors import ClosedError, ConnectionLostError, MessagesLostError

CLOSED = ClosedError("closed")


async def waiting(arrivals: Arrivals[str]) -> asyncio.Task[None]:
    """Somebody who waits."""
    task = asyncio.create_task(arrivals.wait())
    await asyncio.sleep(0)
    assert arrivals.wanted
    return task


class TestArrivals:
    async def test_whoever_waits_is_woken_by_the_next_thing(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        task = await waiting(arrivals)
        arrivals.put("tea")
        assert not arrivals.wanted
        await task
        assert arrivals.take() == "tea"

    async def test_a_fault_is_raised_in_its_turn(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        arrivals.put("tea")
        arrivals.put(MessagesLostError("two are lost"))
        arrivals.put("coffee")
        await arrivals.wait()
        assert arrivals.take() == "tea"
        with pytest.raises(MessagesLostError):
            arrivals.take()
        assert arrivals.take() == "coffee"

    async def test_the_end_wakes_whoever_waits(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        task = await waiting(arrivals)
        arrivals.close(CLOSED)
        with pytest.raises(ClosedError):
            await task

    async def test_what_came_before_the_end_can_still_be_taken(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        arrivals.put("tea")
        arrivals.close(CLOSED)
        await arrivals.wait()
        assert arrivals.take() == "tea"
        with pytest.raises(ClosedError):
            await arrivals.wait()

    async def test_it_is_closed_once_and_the_first_reason_counts(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        arrivals.check_open()
        assert arrivals.close(ConnectionLostError("lost"))
        assert not arrivals.close(CLOSED)
        with pytest.raises(ConnectionLostError):
            arrivals.check_open()

    async def test_giving_up_the_wait_loses_nothing(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        task = await waiting(arrivals)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        arrivals.put("tea")
        await arrivals.wait()
        assert arrivals.take() == "tea"

    async def test_it_is_attached_once_and_again_after_a_failure(self) -> None:
        arrivals: Arrivals[str] = Arrivals()
        asked: list[str] = []

        async def attach() -> None:
            asked.append("attach")
            if len(asked) == 1:
                raise ConnectionLostError("lost")

        with pytest.raises(ConnectionLostError):
            await arrivals.begin(attach)
        assert not arrivals.started
        assert await arrivals.begin(attach)
        assert not await arrivals.begin(attach)
        assert len(asked) == 2


class TestCreditWindow:
    def test_half_a_window_that_is_done_with_is_granted_again(self) -> None:
        granted: list[int] = []
        window = CreditWindow(100, granted.append)
        window.consume(49)
        assert granted == []
        window.consume(1)
        window.consume(49)
        window.consume(11)
        assert granted == [150, 210]

    def test_no_window_grants_nothing(self) -> None:
        granted: list[int] = []
        CreditWindow(0, granted.append).consume(1000)
        assert granted == []

    def test_bytes_of_a_connection_before_are_not_granted_again(self) -> None:
        granted: list[int] = []
        window = CreditWindow(100, granted.append)
        window.queued_bytes = 120
        window.reconnect()
        window.free(60)
        window.queued_bytes += 60
        window.free(60)
        assert granted == []
        assert window.take(60)
        window.consume(60)
        assert (granted, window.queued_bytes) == ([160], 0)
