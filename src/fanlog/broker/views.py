"""Views: the same messages in another wire form, rendered once and shared by all its readers.

A piece that has just become visible is rendered once for each view that live cursors have; for
those that fell behind, rendered pieces are kept a while. What a listener has just taken apart to
publish it is offered here, so that nobody has to take the batch apart again in the same turn; and
it is recorded in which order it came, for readers of several partitions who are used to one order.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fanlog.broker.cursors import Cursor, Subscription
from fanlog.broker.drops import DropKind, DropNotes
from fanlog.errors import FormatError
from fanlog.format.batch import Batch, read_header, split_batches

if TYPE_CHECKING:
    from fanlog.broker.fanout import FanOut
    from fanlog.broker.topics import Partition, Topic

logger = logging.getLogger("fanlog.broker")

Values = Sequence[bytes | None]


class View(Protocol):
    """A wire form. Views of one partition are sent in the order of their `rank`."""

    rank: int

    def render(self, values: Values) -> bytes: ...


_Key = tuple[View, int, int]
# What an entry of the cache costs beside its bytes.
_ENTRY_BYTES = 400
# A partition, and the form in which a reader follows it.
Place = tuple["Partition", View]


class Renderer:
    """Makes views of pieces."""

    def __init__(self, cache_bytes_max: int, notes: DropNotes) -> None:
        self._notes = notes
        self._runs: list[tuple[Partition, Values]] = []
        self._offered: dict[Partition, tuple[int, list[Values]]] = {}
        self._shown: dict[Partition, Values] = {}
        self._composed: dict[tuple[Place, ...], bytes] = {}
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[_Key, tuple[int, bytes]] = OrderedDict()
        self._cache_bytes = 0

    # What has just been published

    def record(self, partition: Partition, values: Values) -> None:
        """Messages of this turn, in the order in which a listener read them for all partitions."""
        self._runs.append((partition, values))

    def offer(self, partition: Partition, base_offset: int, values: Values) -> None:
        """The values of a batch that this turn puts into the partition at `base_offset`."""
        known = self._offered.get(partition)
        if known is None or known[0] != base_offset:
            self._offered[partition] = (base_offset + len(values), [values])
        else:
            known[1].append(values)
            self._offered[partition] = (base_offset + len(values), known[1])

    def values_of(self, partition: Partition, piece: bytes, base_offset: int) -> Values:
        """The values of a piece that reaches from `base_offset` to the visible end."""
        end, parts = self._offered.pop(partition, (-1, []))
        if end == partition.visible_end and sum(map(len, parts)) == end - base_offset:
            values = parts[0] if len(parts) == 1 else [v for part in parts for v in part]
        else:
            # Others have published as well: the order among the partitions is not known.
            self._runs = [run for run in self._runs if run[0] is not partition]
            values = decode_values(partition, piece, self._notes)
        self._shown[partition] = values
        return values

    def compose(self, places: tuple[Place, ...]) -> bytes:
        """What the turn has shown in these views, in the order in which it was published: for
        readers of several, who share it if they have the same."""
        composed = self._composed.get(places)
        if composed is None:
            views: dict[Partition, list[View]] = {}
            for partition, view in places:
                views.setdefault(partition, []).append(view)
            runs = [run for run in self._runs if run[0] in views]
            recorded = {partition for partition, _ in runs}
            runs += [(p, self._shown[p]) for p in views if p not in recorded]
            composed = b"".join(_rendered(views[partition], values) for partition, values in runs)
            self._composed[places] = composed
        return composed

    def end_turn(self) -> None:
        self._runs.clear()
        self._offered.clear()
        self._shown.clear()
        self._composed.clear()

    # What readers that are behind read back

    def render_kept(self, partition: Partition, view: View, piece: memoryview) -> memoryview:
        """A view of a piece from the tail or from disk, for a reader that is behind. Those that
        are behind together share it."""
        key = (view, partition.index, read_header(piece).base_offset)
        known = self._cache.get(key)
        if known is not None and known[0] == len(piece):
            self._cache.move_to_end(key)
            return memoryview(known[1])
        values = decode_values(partition, piece, self._notes)
        rendered = view.render(values) if values else b""
        self._forget(key)
        self._cache[key] = (len(piece), rendered)
        self._cache_bytes += len(rendered) + _ENTRY_BYTES
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            self._forget(next(iter(self._cache)))
        return memoryview(rendered)

    def _forget(self, key: _Key) -> None:
        gone = self._cache.pop(key, None)
        if gone is not None:
            self._cache_bytes -= len(gone[1]) + _ENTRY_BYTES


def _rendered(views: Sequence[View], values: Values) -> bytes:
    if not values:
        return b""
    if len(views) == 1:
        return views[0].render(values)
    return b"".join(view.render((value,)) for value in values for view in views)


def decode_values(partition: Partition, piece: bytes | memoryview, notes: DropNotes) -> Values:
    """The values of all batches in a piece. One whose columns do not fit together is a producer's
    fault that nobody saw on the way in: its records are counted as lost."""
    values: list[bytes | None] = []
    view = memoryview(piece)
    for at, header in split_batches(piece):
        try:
            values += Batch(view[at : at + header.length], header).values
        except FormatError as fault:
            lost = header.record_count
            partition.topic.count().lost_records += lost
            first, next = header.base_offset, header.next_offset
            notes.note(partition, first, next, DropKind.UNREADABLE, records=lost)
            logger.warning(
                "offsets %d to %d of %s can't be shown: %s",
                header.base_offset,
                header.next_offset - 1,
                partition.name,
                fault,
            )
    return values


def follow(
    fan_out: FanOut,
    subscription: Subscription,
    topic: Topic,
    view: View,
    *,
    several: bool = False,
    since: int = 0,
) -> None:
    """Sets a reader to the end of a topic, in a view, or of its partitions `since` it has grown.
    One of `several` that the reader follows: what is published to them in one turn reaches it in
    one order."""
    for partition in topic.partitions[since:]:
        cursor = Cursor(subscription, partition, partition.visible_end)
        cursor.view = view
        cursor.several = several or len(topic.partitions) > 1
        cursor.started = True
        partition.readers += 1
        subscription.cursors.append(cursor)
        fan_out.pump(cursor)


def unfollow(fan_out: FanOut, subscription: Subscription, topic: Topic) -> None:
    """Takes a reader out of one topic."""
    gone = [cursor for cursor in subscription.cursors if cursor.partition.topic is topic]
    for cursor in gone:
        fan_out.remove(cursor)
        cursor.dropped = True
        subscription.cursors.remove(cursor)
