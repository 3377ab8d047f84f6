"""Changes of very many positions of one name, which commit all or none of them.

A change is prepared in slices, written as one batch, and takes effect in slices once that is
durable. Until it has, each of its positions is pending. Whatever else is committed under the name
comes before it or after it: a change that is being prepared is written first, and one that is
taking effect leaves out what newer entries have set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fanlog.format.large_batch import LargeBatch
from fanlog.format.messages import Position

TopicAndPartition = tuple[str, int]


class LargeChange:
    """New positions of a name by topic and partition; None drops one. `todo` are those that have
    not taken effect."""

    def __init__(
        self, name: str, todo: dict[TopicAndPartition, Position | None], *, forgets: bool
    ) -> None:
        self.name = name
        self.todo = todo
        self.forgets = forgets
        self.batch = LargeBatch()
        self.keys: set[bytes] = set()
        # What prepares and writes it.
        self.steps: Iterator[None] = iter(())


class LargeChanges:
    """All of them, in the order of their requests."""

    def __init__(self) -> None:
        self._every: list[LargeChange] = []
        self.preparing: list[LargeChange] = []
        # Those that are durable, in the order of the log.
        self.taking_in: list[LargeChange] = []

    def begin(self, change: LargeChange) -> None:
        self._every.append(change)
        self.preparing.append(change)

    def end(self, change: LargeChange) -> None:
        self._every.remove(change)
        if change in self.taking_in:
            self.taking_in.remove(change)

    def of(self, name: str) -> list[LargeChange]:
        return [change for change in self._every if change.name == name]

    def finish_preparing(self, names: Collection[str]) -> None:
        """Writes the changes of these names that are not written yet."""
        for change in list(self.preparing):
            if change.name in names:
                for _ in change.steps:
                    pass

    def is_pending(self, name: str, at: TopicAndPartition) -> bool:
        return any(change.name == name and at in change.todo for change in self._every)

    def names_in(self, topic: str) -> set[str]:
        """The names that will have positions in a topic."""
        return {
            change.name
            for change in self._every
            if not change.forgets and any(at[0] == topic for at in change.todo)
        }

    def forgets(self, name: str) -> bool:
        return any(change.forgets and change.name == name for change in self._every)

    def overtake(self, name: str, at: TopicAndPartition, before: LargeChange | None = None) -> None:
        """A position has taken effect that was written after these changes, or those `before`
        another one."""
        for change in self.taking_in:
            if change is before:
                return
            if change.name == name:
                change.todo.pop(at, None)
