"""How a follower waits and ends: a subscription, a group's member and a queue's worker have one of
these each, for what has come and was not taken yet.

Law: it is closed once, and the first reason counts. Whoever waits is woken by the next thing, by a
fault among them, or by the end; what came before the end can still be taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from fanlog.errors import FanlogError

T = TypeVar("T")


class Arrivals(Generic[T]):
    """What has come for one follower. `items` may be changed while nobody waits for them."""

    __slots__ = ("_wake", "closed", "items", "started")

    def __init__(self) -> None:
        self.items: deque[T | FanlogError] = deque()
        self.started = False
        self.closed: FanlogError | None = None
        self._wake: asyncio.Future[None] | None = None

    # The beginning and the end

    async def begin(self, attach: Callable[[], Awaitable[None]]) -> bool:
        """Attaches the follower, if that was not done before. Whether it began now."""
        if self.started:
            return False
        self.started = True
        try:
            await attach()
        except BaseException:
            self.started = False
            raise
        return True

    def close(self, reason: FanlogError) -> bool:
        """No more will come. Whether this closed it: it may have been closed before."""
        if self.closed is not None:
            return False
        self.closed = reason
        self._rouse()
        return True

    def check_open(self) -> None:
        """A loop ends when its follower is closed. One that begins after that is a mistake."""
        if self.closed is not None:
            raise self.closed

    # What comes

    @property
    def wanted(self) -> bool:
        """Whether somebody waits, and there is nothing to take."""
        return self._wake is not None and not self.items

    def put(self, item: T | FanlogError) -> None:
        """Something has come, or a fault that is raised in its turn."""
        self.items.append(item)
        if self._wake is not None:
            self._rouse()

    async def wait(self) -> None:
        """Waits until there is something to take. Raises the reason if no more will come."""
        while not self.items:
            if self.closed is not None:
                raise self.closed
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    def take(self) -> T:
        """The next thing, which must be there. Raises a fault in its turn."""
        item = self.items.popleft()
        if isinstance(item, FanlogError):
            raise item
        return item

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
