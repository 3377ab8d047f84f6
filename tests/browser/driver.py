"""One driver of Playwright for all browser tests of a process, and the one loop that they run on.

The driver is a Node process that takes half a second of CPU to start, and it belongs to the loop it
was started on. So these tests share a loop (tests/conftest.py runs them here). Law: what a test
leaves running is cancelled when it ends, as `asyncio.run` would do; only the driver stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Playwright, async_playwright


class Driver:
    """`run(test())` runs a test; in it, `playwright()` is the shared driver."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playwright: Playwright | None = None
        self._own: set[asyncio.Task[Any]] = set()

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self._loop = self._runner.get_loop()
        try:
            self._runner.run(test)
        finally:
            self._runner.run(self._cancel_rest())

    def close(self) -> None:
        if self._playwright is not None:
            self._runner.run(self._playwright.stop())
        if self._loop is not None:
            self._runner.close()

    @asynccontextmanager
    async def playwright(self) -> AsyncIterator[Playwright]:
        """On another loop than the shared one it is a driver for this block alone."""
        if asyncio.get_running_loop() is not self._loop:
            async with async_playwright() as own:
                yield own
            return
        if self._playwright is None:
            before = asyncio.all_tasks()
            self._playwright = await async_playwright().start()
            self._own = asyncio.all_tasks() - before
        yield self._playwright

    async def _cancel_rest(self) -> None:
        current = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() - self._own if task is not current]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
