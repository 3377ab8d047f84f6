"""The audience of a partition: everybody who waits for its next messages.

There are two kinds. A cursor at the visible end gets each piece from the fan-out: the batches as
they are, or a view of them. A wake is called once, when more becomes visible or the topic goes, and
then reads by offset: a fetch, a queue, a schedule, a long poll, an edge. Law: a turn does the same
work for a partition, however many cursors share a wire form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from fanlog.broker.messages.wire_forms import AnyView

Wake = Callable[[], None]


class LiveCursor(Protocol):
    """A cursor, as far as the registry needs it."""

    live: bool
    view: AnyView | None


C = TypeVar("C", bound=LiveCursor)


class PartitionAudience(Generic[C]):
    """Cursors join at the visible end, and leave when they fall behind it."""

    __slots__ = ("live", "viewed", "wakes")

    def __init__(self) -> None:
        # Those that get batches as they are.
        self.live: dict[C, None] = {}
        # The others by their views, in the order of the views' ranks.
        self.viewed: dict[AnyView, dict[C, None]] = {}
        self.wakes: dict[Wake, None] | None = None

    def join(self, cursor: C) -> None:
        cursor.live = True
        view = cursor.view
        if view is None:
            self.live[cursor] = None
            return
        viewed = self.viewed
        if view not in viewed:
            if not viewed or next(reversed(viewed)).rank <= view.rank:
                # There may be very many: this is quicker than to sort them.
                viewed[view] = {}
            else:
                ranked = sorted([*viewed, view], key=lambda known: known.rank)
                viewed = self.viewed = {known: viewed.get(known, {}) for known in ranked}
        viewed[view][cursor] = None

    def leave(self, cursor: C) -> None:
        cursor.live = False
        view = cursor.view
        if view is None:
            self.live.pop(cursor, None)
        elif (same := self.viewed.get(view)) is not None:
            same.pop(cursor, None)
            if not same:
                del self.viewed[view]

    def cursors(self) -> Iterator[C]:
        """All of them: those of batches, then those of each view. Others may come and go between
        two of them."""
        yield from list(self.live)
        for cursors in list(self.viewed.values()):
            yield from list(cursors)

    def count(self) -> int:
        return len(self.live) + sum(map(len, self.viewed.values()))

    def add_wake(self, wake: Wake) -> None:
        if self.wakes is None:
            self.wakes = {}
        self.wakes[wake] = None

    def drop_wake(self, wake: Wake) -> None:
        if self.wakes is not None:
            self.wakes.pop(wake, None)

    def wake(self) -> None:
        """There is more, or nothing comes any more. Those who keep waiting register again."""
        wakes, self.wakes = self.wakes, None
        for wake in wakes or ():
            wake()
