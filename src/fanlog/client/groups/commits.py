"""A member's offset commits: at most one is pending, and later ones are sent together. A failure in
the background is logged, and raised by the next call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fanlog.client.core.reached import Reached
from fanlog.errors import FanlogError, FencedError
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")

SendPositions = Callable[[dict[TopicPartition, Reached]], Awaitable[None]]


class GroupCommits:
    """`send` commits, `done` returns what may be committed, and `has` which partitions still
    can."""

    def __init__(
        self,
        send: SendPositions,
        done: Callable[[], dict[TopicPartition, Reached]],
        has: Callable[[TopicPartition], bool],
    ) -> None:
        self._send = send
        self._done = done
        self._has = has
        self._one = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._committed: dict[TopicPartition, Reached] = {}
        self._given: dict[TopicPartition, Reached] = {}
        # Partitions whose log changed while an offset commit was pending.
        self._parted: set[TopicPartition] = set()
        self._owed = False
        self._error: FanlogError | None = None

    def start(self) -> None:
        """Notes the loop that commits run on."""
        self._loop = asyncio.get_running_loop()

    def forget(self, place: TopicPartition) -> None:
        """Forgets the last offset commit of a partition: it was left, or its position was moved."""
        self._committed.pop(place, None)
        self._given.pop(place, None)

    def parted(self, place: TopicPartition) -> None:
        """The broker lost records that were read there: the pending offset commit is dropped, and
        the reader is notified separately."""
        self.forget(place)
        self._parted.add(place)

    # In the background

    def done_soon(self) -> None:
        """Commits finished messages when its turn comes. Any thread may call it."""
        if not self._owed and self._loop is not None:
            self._owed = True
            self._loop.call_soon_threadsafe(self._wake)

    def soon(self, reached: dict[TopicPartition, Reached]) -> None:
        """Commits these."""
        self._given.update(reached)
        self._wake()

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._owed or self._given:
            async with self._one:
                await self._commit_wanted()

    async def flush(self, *, done: bool) -> None:
        """Commits waiting positions, and if wanted finished ones; a failure is kept."""
        self._owed = self._owed or done
        async with self._one:
            await self._commit_wanted()

    async def _commit_wanted(self) -> None:
        wanted = self._wanted()
        if not wanted:
            return
        self._parted.clear()
        try:
            await self._send(wanted)
        except FanlogError as error:
            if isinstance(error, FencedError) and self._parted & wanted.keys():
                # Nothing of it was committed. The rest goes out again.
                rest = {place: at for place, at in wanted.items() if place not in self._parted}
                self._given = rest | self._given
                await self._commit_wanted()
                return
            logger.warning("an offset commit in the background failed: %s", error)
            self._error = error
        else:
            self._committed.update(wanted)

    def owes(self, *, done: bool) -> bool:
        """Whether there is anything to commit."""
        return bool(self._given) or (done and bool(self._news()))

    def _news(self) -> dict[TopicPartition, Reached]:
        """Finished positions since the last offset commit. Never back: an explicit commit includes
        the message in hand."""
        return {
            place: reached
            for place, reached in self._done().items()
            if (before := self._committed.get(place)) is None
            or before[1:] != reached[1:]
            or before < reached
        }

    def _wanted(self) -> dict[TopicPartition, Reached]:
        wanted: dict[TopicPartition, Reached] = {}
        if self._owed:
            self._owed = False
            wanted = self._news()
        given, self._given = self._given, {}
        wanted.update(given)
        return {place: reached for place, reached in wanted.items() if self._has(place)}

    # In the foreground

    async def now(self, reached: dict[TopicPartition, Reached]) -> None:
        """Commits these, and returns when they are."""
        self.raise_error()
        async with self._one:
            for place in reached:
                self._given.pop(place, None)
            if reached:
                await self._send(reached)
                self._committed.update(reached)

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
