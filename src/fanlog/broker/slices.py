"""Long work on the loop, a slice at a time, so that nobody waits for all of it.

What must be done on the loop and grows with what the broker holds is written as a generator of
small steps. Each turn of the loop has one slice for all such work together, however much of it
there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import TypeVar

from fanlog.broker.ports import Runtime

logger = logging.getLogger("fanlog.broker")

T = TypeVar("T")

# A tenth of what a client may notice: several things that are due in one turn add up.
SLICE_US = 2_000


class Slices:
    """All sliced work of a broker. Logs run their slow work with it, too."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def in_slices(
        self, steps: Iterator[object], ended: Callable[[], None] | None = None, /
    ) -> None:
        """Goes through `steps`: the first slice now, the others in later turns. Then `ended`."""
        until_us = self._runtime.work_us() + SLICE_US
        try:
            for _ in steps:
                if self._runtime.work_us() >= until_us:
                    self.later(lambda: self.in_slices(steps, ended))
                    return
        except Exception:
            logger.exception("the broker's own work failed")
        if ended is not None:
            ended()

    async def result(self, steps: Generator[object, None, T]) -> T:
        """Goes through `steps` like `in_slices`; what they return, or raise."""
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> Iterator[object]:
            try:
                found = yield from steps
            except Exception as fault:  # noqa: BLE001 - whoever waits gets it
                if not ended.done():
                    ended.set_exception(fault)
                return
            if not ended.done():
                ended.set_result(found)

        self.in_slices(run())
        return await ended

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with the turns of others between them whenever a slice is used up."""
        until_us = self._runtime.work_us() + SLICE_US
        for item in items:
            yield item
            if self._runtime.work_us() >= until_us:
                await self._turn()
                until_us = self._runtime.work_us() + SLICE_US

    def in_background(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None:
        self._runtime.in_background(work, done)

    async def _turn(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.later(lambda: None if mine.done() else mine.set_result(None))
        await mine

    def later(self, resume: Callable[[], None]) -> None:
        """Calls `resume` in a later turn, as its slice."""
        self._waiting.append(resume)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        try:
            self._waiting.popleft()()
        finally:
            self._schedule()
