"""What a member of a group has to commit: positions that were given, and those of finished
messages. A shell sends them, one commit after the other.

Law: a position is committed only while the member has its partition, and never one of a log that
the broker has lost. A failure in the background is kept, and raised by the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from fanlog.client.core.reached import Reached
from fanlog.errors import FanlogError, FencedError
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")

CommitMode = Literal["auto", "iterate", "manual"]
ReachedPositions = dict[TopicPartition, Reached]


class OffsetCommits:
    """`done` returns what may be committed, and `has` which partitions still can. `on_due` is
    called, in any thread, when a commit is due."""

    def __init__(
        self, done: Callable[[], ReachedPositions], has: Callable[[TopicPartition], bool]
    ) -> None:
        self._done = done
        self._has = has
        self.on_due: Callable[[], None] | None = None
        self._committed: ReachedPositions = {}
        self._given: ReachedPositions = {}
        # Partitions whose log changed while an offset commit was pending.
        self._parted: set[TopicPartition] = set()
        self._owed = False
        self._error: FanlogError | None = None

    def forget(self, partition: TopicPartition) -> None:
        """Forgets the last offset commit of a partition: it was left, or its position was moved."""
        self._committed.pop(partition, None)
        self._given.pop(partition, None)

    def parted(self, partition: TopicPartition) -> None:
        """The broker lost records that were read there: the pending offset commit is dropped, and
        the reader is notified separately."""
        self.forget(partition)
        self._parted.add(partition)

    # What is to be committed

    def done_soon(self) -> None:
        """Commits finished messages when its turn comes. Any thread may call it."""
        if not self._owed and self.on_due is not None:
            self._owed = True
            self.on_due()

    def want_done(self) -> None:
        """Finished messages belong to the next commit."""
        self._owed = True

    def give(self, positions: ReachedPositions) -> None:
        """These belong to the next commit."""
        self._given.update(positions)

    @property
    def is_due(self) -> bool:
        """Whether somebody wants a commit."""
        return self._owed or bool(self._given)

    def owes(self, *, done: bool) -> bool:
        """Whether there is anything to commit; with `done`, also finished messages."""
        return bool(self._given) or (done and bool(self._news()))

    def _news(self) -> ReachedPositions:
        """Finished positions since the last offset commit. Never back: an explicit commit includes
        the message in hand."""
        return {
            partition: reached
            for partition, reached in self._done().items()
            if (before := self._committed.get(partition)) is None
            or before[1:] != reached[1:]
            or before < reached
        }

    # One commit after the other

    def next(self) -> ReachedPositions:
        """What to commit now. Empty if there is nothing."""
        wanted: ReachedPositions = {}
        if self._owed:
            self._owed = False
            wanted = self._news()
        given, self._given = self._given, {}
        wanted.update(given)
        wanted = {partition: at for partition, at in wanted.items() if self._has(partition)}
        if wanted:
            self._parted.clear()
        return wanted

    def begin(self, positions: ReachedPositions) -> None:
        """A caller commits these itself: they are newer than what was given before."""
        for partition in positions:
            self._given.pop(partition, None)

    def stored(self, positions: ReachedPositions) -> None:
        """The broker has them."""
        self._committed.update(positions)

    def failed(self, positions: ReachedPositions, error: FanlogError) -> bool:
        """A commit in the background failed. Whether to send a part of it again at once: a refused
        commit stores nothing, although it may be refused for one partition only."""
        if isinstance(error, FencedError) and self._parted & positions.keys():
            rest = {p: reached for p, reached in positions.items() if p not in self._parted}
            self._given = rest | self._given
            return True
        logger.warning("an offset commit in the background failed: %s", error)
        self._error = error
        return False

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
