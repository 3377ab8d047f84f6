"""The end of a blocking client, seen by the threads that wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from fanlog.client.blocking.loop import LoopThread
from fanlog.errors import ClosedError
from tests.client.ways import PATIENCE_SECONDS


def test_whoever_waits_learns_of_the_end_even_if_the_loop_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that stops a client may be held up before it goes on."""
    loop = LoopThread()
    begun, heard = threading.Event(), list[type[BaseException]]()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def waiting() -> None:
        try:
            loop.call(wait())
        except BaseException as error:  # noqa: BLE001 - whatever it is
            heard.append(type(error))

    waiter = threading.Thread(target=waiting)
    waiter.start()
    assert begun.wait(PATIENCE_SECONDS)
    asks = loop._loop
    hand_over = asks.call_soon_threadsafe

    def hand_over_and_dawdle(end: Callable[[], object]) -> asyncio.Handle:
        handle = hand_over(end)
        waiter.join(PATIENCE_SECONDS)
        return handle

    monkeypatch.setattr(asks, "call_soon_threadsafe", hand_over_and_dawdle)
    loop.stop()
    assert heard == [ClosedError]
