"""Callbacks as futures, for those who wait in a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fanlog.broker.ports import Runtime
from fanlog.errors import FanlogError

T = TypeVar("T")


def begun(begin: Callable[[Callable[[FanlogError | None], None]], None]) -> asyncio.Future[None]:
    """Starts work at once. The future ends with it, and raises its error."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(fault: FanlogError | None) -> None:
        if ended.done():
            return
        if fault is None:
            ended.set_result(None)
        else:
            ended.set_exception(fault)

    begin(done)
    return ended


async def threaded(runtime: Runtime, work: Callable[[], T]) -> T:
    """Awaits blocking work that runs in a thread."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | Exception) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    runtime.in_thread(work, done)
    return await future
