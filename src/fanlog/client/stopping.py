"""Work that runs until an event or SIGTERM stops it. Process managers send SIGTERM to ask a program
to finish."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

# By loop: who stops at the next SIGTERM.
_running: dict[asyncio.AbstractEventLoop, set[asyncio.Event]] = {}


@contextmanager
def stopped_by_sigterm(until: asyncio.Event | None = None) -> Generator[asyncio.Event]:
    """An event that SIGTERM sets: `until`, or a new one. A program that handles the signal itself
    keeps its own handler, and sets `until`."""
    stopped = until or asyncio.Event()
    loop = asyncio.get_running_loop()
    running = _running.get(loop)
    if running is None:
        running = set[asyncio.Event]()
        if not _may_handle() or not _on_sigterm(loop, running):
            yield stopped
            return
        _running[loop] = running
    running.add(stopped)
    try:
        yield stopped
    finally:
        running.discard(stopped)
        if not running:
            del _running[loop]
            loop.remove_signal_handler(signal.SIGTERM)


def _may_handle() -> bool:
    """Whether this thread receives signals, and no other handler is set."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )


def _on_sigterm(loop: asyncio.AbstractEventLoop, running: set[asyncio.Event]) -> bool:
    """Whether the loop supports signals; loops on Windows don't."""
    try:
        loop.add_signal_handler(signal.SIGTERM, _stop_all, running)
    except NotImplementedError:
        return False
    return True


def _stop_all(running: set[asyncio.Event]) -> None:
    for stopped in running:
        stopped.set()
