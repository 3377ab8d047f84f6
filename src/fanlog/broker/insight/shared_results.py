"""Results of long computations about the broker, shared by all callers. A dashboard asks every few
seconds, and there may be many dashboards. A result is kept for two seconds, or longer if it took
long to make, so that it takes at most a fiftieth of the loop's time. A lasting result is kept as
long as it is valid and in use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Hashable
from typing import Any, Generic, TypeVar

from fanlog.broker.ports import Runtime
from fanlog.broker.slices import Slices

T = TypeVar("T")

_KEPT_US = 2_000_000
# The lifetime of a result, as a multiple of its cost.
_REST = 50
# The maximum age of a result.
_KEPT_US_MAX = 30_000_000
# The most results kept: different searches, orders and topics.
_RESULTS_MAX = 64


class SharedResult(Generic[T]):
    """A result, and its time by `Runtime.work_us`."""

    __slots__ = ("lasts", "made_us", "spent_us", "used", "value")

    def __init__(self, value: T, made_us: int, spent_us: int) -> None:
        self.value = value
        self.made_us = made_us
        self.spent_us = spent_us
        self.used = False
        self.lasts: Callable[[T], bool] | None = None

    @property
    def rest_us(self) -> int:
        """How long it is not computed again, to spare the loop."""
        return min(_KEPT_US_MAX, _REST * self.spent_us)


class SharedResults:
    """All kept results, by key."""

    def __init__(self, slices: Slices, runtime: Runtime) -> None:
        self._slices = slices
        self._runtime = runtime
        self._kept: dict[Hashable, SharedResult[Any]] = {}
        self._making: dict[Hashable, asyncio.Task[SharedResult[Any]]] = {}

    async def get(
        self,
        key: Hashable,
        steps: Callable[[], Generator[object, None, T]],
        still_good: Callable[[T], bool] | None = None,
        *,
        lasting: bool = False,
    ) -> T:
        """The result of a key. `steps` computes it, in slices. It is computed again early if
        `still_good` returns False, but an expensive one is used for a while even then. A `lasting`
        one is kept as long as it is good."""
        kept: SharedResult[T] | None = self._kept.get(key)
        if kept is not None and (still_good is None or still_good(kept.value) or self._rests(kept)):
            kept.used = True
            # Moved to the end: the least recently requested one is evicted first.
            self._kept[key] = self._kept.pop(key)
            return kept.value
        making: asyncio.Task[SharedResult[T]] | None = self._making.get(key)
        if making is None:
            making = asyncio.get_running_loop().create_task(self._make(steps))
            self._making[key] = making
            lasts = still_good if lasting else None
            making.add_done_callback(lambda task: self._ended(key, task, lasts))
        # If one caller goes away, the others still get the result.
        return (await asyncio.shield(making)).value

    def _rests(self, kept: SharedResult[Any]) -> bool:
        """Whether it is too early to make a result again."""
        return self._runtime.work_us() < kept.made_us + kept.rest_us

    async def _make(self, steps: Callable[[], Generator[object, None, T]]) -> SharedResult[T]:
        spent_ns = 0

        def timed() -> Generator[object, None, T]:
            nonlocal spent_ns
            inner = steps()
            while True:
                # In CPU time, since a busy machine only makes it take longer.
                begun_ns = time.thread_time_ns()
                try:
                    next(inner)
                except StopIteration as done:
                    return done.value
                finally:
                    spent_ns += time.thread_time_ns() - begun_ns
                yield

        value = await self._slices.result(timed())
        return SharedResult(value, self._runtime.work_us(), spent_ns // 1000)

    def _ended(
        self,
        key: Hashable,
        task: asyncio.Task[SharedResult[Any]],
        lasts: Callable[[Any], bool] | None,
    ) -> None:
        self._making.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        made = task.result()
        made.lasts = lasts
        self._kept.pop(key, None)
        self._kept[key] = made
        for oldest in list(self._kept)[: max(0, len(self._kept) - _RESULTS_MAX)]:
            del self._kept[oldest]
        self._drop_later(key, made)

    def _drop_later(self, key: Hashable, made: SharedResult[Any]) -> None:
        seconds = max(_KEPT_US, made.rest_us) / 1e6
        asyncio.get_running_loop().call_later(seconds, self._drop, key, made)

    def _drop(self, key: Hashable, made: SharedResult[Any]) -> None:
        if self._kept.get(key) is not made:
            return
        if made.used and made.lasts is not None and made.lasts(made.value):
            made.used = False
            self._drop_later(key, made)
        else:
            del self._kept[key]
