"""Items that one follower has received and not taken yet: a subscription, a group's member and a
queue's worker have one of these each.

Law: it is closed once, and the first reason counts. The next thing, a fault or the end wakes the
waiting caller. What came before the end can still be taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fanlog.errors import FanlogError

T = TypeVar("T")


class Arrivals(Generic[T]):
    """`wake` is set while a shell waits, and `on_close` is called at the end. `items` may be
    changed while nobody waits for them."""

    __slots__ = ("closed", "items", "on_close", "started", "wake")

    def __init__(self) -> None:
        self.items: deque[T | FanlogError] = deque()
        # Whether the first request was sent.
        self.started = False
        self.closed: FanlogError | None = None
        self.wake: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits, and there is nothing to take."""
        return self.wake is not None and not self.items

    def put(self, item: T | FanlogError) -> None:
        """Something has come, or a fault that is raised in its turn."""
        self.items.append(item)
        if self.wake is not None:
            self.wake()

    def take(self) -> T:
        """The next thing, which must be there. Raises a fault in its turn."""
        item = self.items.popleft()
        if isinstance(item, FanlogError):
            raise item
        return item

    def close(self, reason: FanlogError) -> bool:
        """No more will come. Whether this closed it: it may have been closed before."""
        if self.closed is not None:
            return False
        self.closed = reason
        if self.wake is not None:
            self.wake()
        if self.on_close is not None:
            self.on_close()
        return True

    def check_open(self) -> None:
        """A loop ends when its follower is closed. One that begins after that is a mistake."""
        if self.closed is not None:
            raise self.closed
