"""Answers that several dashboards share. What costs much to find out is found out once for all who
ask within a few seconds.

Law: however many ask, and however often, finding out takes a small part of the loop's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

# An answer is good for so long, or for so many times what it took, up to a bound.
_GOOD_SECONDS = 2.0
_TIMES = 30.0
_GOOD_SECONDS_MAX = 10.0


@dataclass(slots=True)
class _Kept(Generic[T]):
    task: asyncio.Task[T]
    begun: float
    good_until: float = float("inf")


class Shared(Generic[T]):
    """One answer for each owner, such as a listener. It is forgotten when it is too old."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[object, _Kept[T]] = WeakKeyDictionary()

    async def get(self, owner: object, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer that is kept, or a new one. Who goes away leaves it to the others."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(owner)
        if kept is None or loop.time() >= kept.good_until:
            kept = self._kept[owner] = _Kept(loop.create_task(find()), loop.time())
            mine = kept
            mine.task.add_done_callback(lambda task: self._found(owner, mine))
        return await asyncio.shield(kept.task)

    def forget(self, owner: object) -> None:
        """Something has changed that whoever changed it wants to see."""
        self._kept.pop(owner, None)

    def _found(self, owner: object, kept: _Kept[T]) -> None:
        if kept.task.cancelled() or kept.task.exception() is not None:
            self._drop(owner, kept)
            return
        loop = kept.task.get_loop()
        took = loop.time() - kept.begun
        good = min(max(_GOOD_SECONDS, _TIMES * took), _GOOD_SECONDS_MAX)
        kept.good_until = loop.time() + good
        loop.call_later(good, self._drop, owner, kept)

    def _drop(self, owner: object, kept: _Kept[T]) -> None:
        if self._kept.get(owner) is kept:
            del self._kept[owner]
