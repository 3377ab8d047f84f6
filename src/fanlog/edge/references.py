"""Targets that are followed upstream: each once, however many readers follow it here. A target ends
a short while after its last reader has left, because readers often return soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple


class TopicReference(NamedTuple):
    """A topic, or a pattern."""

    name: str
    wildcard: bool


class _Followed:
    __slots__ = ("count", "ending", "opening")

    def __init__(self, opening: asyncio.Task[None]) -> None:
        self.opening = opening
        self.count = 0
        self.ending: asyncio.TimerHandle | None = None

    @property
    def failed(self) -> bool:
        opening = self.opening
        return opening.done() and (opening.cancelled() or opening.exception() is not None)

    def take(self) -> None:
        """Counts one more follower."""
        self.count += 1
        if self.ending is not None:
            self.ending.cancel()
            self.ending = None


class References:
    """`begin` follows a target, and `end` stops following it."""

    def __init__(
        self,
        begin: Callable[[TopicReference], Awaitable[None]],
        end: Callable[[TopicReference], None],
        linger_seconds: float,
    ) -> None:
        self._begin = begin
        self._end = end
        self._linger_seconds = linger_seconds
        self._followed: dict[TopicReference, _Followed] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, target: TopicReference) -> bool:
        return target in self._followed

    def targets(self) -> list[TopicReference]:
        return list(self._followed)

    async def follow(self, target: TopicReference) -> bool:
        """Returns when the target is there; whether it was before."""
        followed = self._followed.get(target)
        if followed is None or followed.failed:
            self._forget(target)
            followed = self._followed[target] = self._open(target)
        followed.take()
        was_there = followed.opening.done()
        if not was_there:
            try:
                await asyncio.shield(followed.opening)
            except BaseException:
                # It may have been started again meanwhile: that one is not ours.
                if self._followed.get(target) is followed:
                    self.unfollow(target)
                raise
        return was_there

    def hold(self, target: TopicReference) -> bool:
        """Follows a target that is there, at once. False if it is not."""
        followed = self._followed.get(target)
        if followed is None or followed.failed or not followed.opening.done():
            return False
        followed.take()
        return True

    def _open(self, target: TopicReference) -> _Followed:
        async def begin() -> None:
            await self._begin(target)

        followed = _Followed(asyncio.create_task(begin()))

        def opened(_: asyncio.Task[None]) -> None:
            if followed.failed and self._followed.get(target) is followed:
                self._forget(target)

        followed.opening.add_done_callback(opened)
        return followed

    def _forget(self, target: TopicReference) -> None:
        """It could not be opened: its next follower tries again."""
        if self._followed.pop(target, None) is not None:
            self._end(target)

    def unfollow(self, target: TopicReference) -> None:
        followed = self._followed.get(target)
        if followed is None or not followed.count:
            return
        followed.count -= 1
        if not followed.count and not self._closed:
            loop = asyncio.get_running_loop()
            followed.ending = loop.call_later(self._linger_seconds, self._over, target, followed)

    def _over(self, target: TopicReference, followed: _Followed) -> None:
        """No user has come back."""
        if self._followed.get(target) is followed:
            del self._followed[target]
            followed.opening.cancel()
            self._end(target)

    async def close(self) -> None:
        self._closed = True
        opening = [followed.opening for followed in self._followed.values()]
        for followed in self._followed.values():
            if followed.ending is not None:
                followed.ending.cancel()
            followed.opening.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
