"""Runs work in a plain program until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from fanlog.client.blocking.loop import LoopThread

_LOOK_SECONDS = 0.1
T = TypeVar("T")


def run_until_stopped(
    loop: LoopThread,
    until: threading.Event | None,
    work: Callable[[asyncio.Event], Coroutine[Any, Any, T]],
) -> T:
    """Runs `work` on the client's loop until it ends. `until` ends it. SIGTERM does too, if this is
    the program's main thread and no other handler is set."""
    stopped = asyncio.Event()

    async def run() -> T:
        watching = asyncio.ensure_future(_watch(until, stopped)) if until is not None else None
        try:
            return await work(stopped)
        finally:
            if watching is not None:
                watching.cancel()

    def stop(number: int, frame: FrameType | None) -> None:
        loop.post(stopped.set)

    in_main = threading.current_thread() is threading.main_thread()
    ours = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        return loop.call(run())
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def _watch(until: threading.Event, stopped: asyncio.Event) -> None:
    while not until.is_set():  # noqa: ASYNC110 - an event of threads, not of the loop
        await asyncio.sleep(_LOOK_SECONDS)
    stopped.set()
