"""Views: the same messages in another wire form, rendered once and shared by all its readers.

A piece that has just become visible is rendered once for each view that live cursors have. Rendered
pieces are kept for a while, for cursors that fell behind. A listener offers the messages that it
has just decoded to publish them, so that nobody decodes the batch again in the same turn. It also
records their order, for readers of several partitions that expect one order.

A piece that takes long to decode is rendered in a thread, some batches at a time. Its readers leave
the live pass for it, and each gets it before what comes behind it.

There are views over values, and views over whole records (`format/record_views.py`): those share
the decoded batches of a turn, and never show a record before the one that a reader wants.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from fanlog.broker.messages.drop_notes import DropKind, DropNotes
from fanlog.broker.messages.topics import Partition
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.messages.wire_forms import AnyView, Values, View
from fanlog.errors import UnreadableError
from fanlog.format.batch import Batch, split_batches
from fanlog.format.codecs import UnpackLimits
from fanlog.format.header import read_header
from fanlog.format.record_views import Decoded, RecordView
from fanlog.format.web import RenderedRecords, Unreadable

logger = logging.getLogger("fanlog.broker")

_ViewKey = tuple[AnyView, int, int]
# Memory of a cache entry besides its bytes.
_ENTRY_BYTES = 400
# A partition, and the form in which a reader follows it.
ViewKey = tuple[Partition, View]


# Gets the rendering, on the loop.
Rendered = Callable[[memoryview], None]


class Renderer:
    """Makes views of pieces."""

    def __init__(self, cache_bytes_max: int, notes: DropNotes, unpacker: Unpacker) -> None:
        self._notes = notes
        self._unpacker = unpacker
        self._rendering: dict[_ViewKey, list[Rendered]] = {}
        self._runs: list[tuple[Partition, Values]] = []
        self._offered: dict[Partition, tuple[int, list[Values]]] = {}
        self._shown: dict[Partition, Values] = {}
        self._decoded: dict[Partition, tuple[bytes, Decoded]] = {}
        self._composed: dict[tuple[ViewKey, ...], tuple[bytes, int]] = {}
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[_ViewKey, tuple[int, bytes]] = OrderedDict()
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

    def values_of(self, partition: Partition, piece: bytes, base_offset: int) -> Values | None:
        """The values of a piece that reaches from `base_offset` to the visible end; None if they
        can't be had on the loop."""
        end, parts = self._offered.pop(partition, (-1, []))
        if end == partition.visible_end and sum(map(len, parts)) == end - base_offset:
            values = parts[0] if len(parts) == 1 else [v for part in parts for v in part]
        else:
            # Others have published as well: the order among the partitions is not known.
            self._runs = [run for run in self._runs if run[0] is not partition]
            if not self._unpacker.is_small(self._unpacker.decoding_bytes(piece)):
                return None
            values = self._decode(partition, piece)
        self._shown[partition] = values
        return values

    def records_of(self, partition: Partition, piece: bytes) -> Decoded | None:
        """The records of a piece of this turn, decoded once for all readers; None if that takes too
        long for the loop."""
        piece_before, decoded = self._decoded.get(partition, (b"", ()))
        if piece_before is piece:
            return decoded
        if not self._unpacker.is_small(self._unpacker.decoding_bytes(piece, records=True)):
            return None
        decoded = self._decode_records(partition, piece)
        self._decoded[partition] = (piece, decoded)
        return decoded

    def maybe_records(self, partition: Partition, piece: bytes) -> Decoded | None:
        """The records of a piece, if a view has had them decoded in this turn."""
        piece_before, decoded = self._decoded.get(partition, (b"", ()))
        return decoded if piece_before is piece else None

    def compose(self, keys: tuple[ViewKey, ...]) -> tuple[bytes, int]:
        """The messages of this turn in these views, in the order of publishing, and their number:
        for readers of several partitions. Readers with the same views share it."""
        composed = self._composed.get(keys)
        if composed is None:
            views: dict[Partition, list[View]] = {}
            for partition, view in keys:
                views.setdefault(partition, []).append(view)
            runs = [run for run in self._runs if run[0] in views]
            recorded = {partition for partition, _ in runs}
            runs += [(p, self._shown[p]) for p in views if p not in recorded]
            joined = b"".join(_rendered(views[partition], values) for partition, values in runs)
            records = sum(len(values) * len(views[partition]) for partition, values in runs)
            composed = self._composed[keys] = joined, records
        return composed

    def end_turn(self) -> None:
        self._runs.clear()
        self._offered.clear()
        self._shown.clear()
        self._decoded.clear()
        self._composed.clear()

    # What readers that are behind read back

    def count_small(self, view: AnyView, pieces: Sequence[memoryview]) -> int:
        """How many of the first pieces may be rendered on the loop together."""
        records = isinstance(view, RecordView)
        if records and view.raw:
            return len(pieces)
        work = 0
        for i, piece in enumerate(pieces):
            work += self._unpacker.decoding_bytes(piece, records=records)
            if not self._unpacker.is_small(work):
                return i
        return len(pieces)

    def render_kept(
        self, partition: Partition, view: AnyView, piece: memoryview, first_offset: int
    ) -> memoryview:
        """Renders a piece from the tail or from disk from `first_offset` on, for a reader that is
        behind. Readers that are behind together share it."""
        key = _key(partition, view, piece, first_offset)
        known = self._known(key, len(piece))
        if known is not None:
            return known
        made, unreadable = _render(partition.topic.name, view, piece, key[2], self._unpacker.limits)
        self._report(partition, unreadable)
        return self._keep(key, len(piece), made)

    def render_first(
        self,
        partition: Partition,
        view: AnyView,
        piece: memoryview,
        first_offset: int,
        done: Rendered,
    ) -> int:
        """Renders a piece's first batches in a thread. Returns the offset after them."""
        records = isinstance(view, RecordView)
        stretch, work, next_offset = self._unpacker.first_stretch(piece, records=records)
        key = _key(partition, view, stretch, first_offset)
        known = self._known(key, len(stretch))
        if known is not None:
            done(known)
            return next_offset
        waiting = self._rendering.get(key)
        if waiting is not None:
            waiting.append(done)
            return next_offset
        self._rendering[key] = [done]
        name, limits = partition.topic.name, self._unpacker.limits

        def render() -> tuple[bytes, list[Unreadable]]:
            return _render(name, view, stretch, key[2], limits)

        def rendered(result: tuple[bytes, list[Unreadable]] | Exception) -> None:
            waiting = self._rendering.pop(key)
            if isinstance(result, Exception):
                logger.error("rendering %s failed: %r", partition.name, result, exc_info=result)
                result = b"", []
            made, unreadable = result
            self._report(partition, unreadable)
            shown = self._keep(key, len(stretch), made)
            for tell in waiting:
                tell(shown)

        self._unpacker.in_thread(work, render, rendered)
        return next_offset

    def _known(self, key: _ViewKey, size: int) -> memoryview | None:
        known = self._cache.get(key)
        if known is None or known[0] != size:
            return None
        self._cache.move_to_end(key)
        return memoryview(known[1])

    def _keep(self, key: _ViewKey, size: int, rendered: bytes) -> memoryview:
        self._forget(key)
        self._cache[key] = (size, rendered)
        self._cache_bytes += len(rendered) + _ENTRY_BYTES
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            self._forget(next(iter(self._cache)))
        return memoryview(rendered)

    # Decoding

    def _decode(self, partition: Partition, piece: bytes | memoryview) -> Values:
        values, unreadable = decode_values(partition.topic.name, piece, self._unpacker.limits)
        self._report(partition, unreadable)
        return values

    def _decode_records(self, partition: Partition, piece: bytes) -> Decoded:
        decoded = decode_records(partition.topic.name, piece, self._unpacker.limits)
        self._report(partition, _unreadable_of(decoded))
        return decoded

    def _report(self, partition: Partition, unreadable: list[Unreadable]) -> None:
        """Counts records that can't be shown. A flood of them is one log line a second."""
        for found in unreadable:
            header, fault = found.batch.header, found.fault
            lost = header.record_count
            partition.topic.count().lost_records += lost
            first, next = header.base_offset, header.next_offset
            if self._notes.note(partition, first, next, DropKind.UNREADABLE, records=lost):
                logger.warning("%s is not shown in full: %s", partition.name, fault)

    def _forget(self, key: _ViewKey) -> None:
        gone = self._cache.pop(key, None)
        if gone is not None:
            self._cache_bytes -= len(gone[1]) + _ENTRY_BYTES


class LivePiece:
    """A piece that has just become visible. It is decoded for its first view."""

    __slots__ = ("_base_offset", "_decoded", "_partition", "_piece", "_renderer", "_values")

    def __init__(
        self, renderer: Renderer, partition: Partition, piece: bytes, base_offset: int
    ) -> None:
        self._renderer = renderer
        self._partition = partition
        self._piece = piece
        self._base_offset = base_offset
        self._values: Values | None = ()
        self._decoded: Decoded | None = ()

    def is_late(self, view: AnyView) -> bool:
        """Whether the piece takes too long to decode for this view to be rendered now."""
        if not isinstance(view, RecordView):
            if self._values == ():
                offset = self._base_offset
                self._values = self._renderer.values_of(self._partition, self._piece, offset)
            return self._values is None
        if view.raw:
            return False
        if self._decoded == ():
            self._decoded = self._renderer.records_of(self._partition, self._piece)
        return self._decoded is None

    def render(self, view: AnyView) -> bytes:
        """The piece in a view that is not late."""
        if not isinstance(view, RecordView):
            return view.render(self._values) if self._values else b""
        if view.raw:
            return view.render_raw(self._piece)
        assert self._decoded is not None
        return view.render_records(self._decoded, self._base_offset)


def _rendered(views: Sequence[View], values: Values) -> bytes:
    if not values:
        return b""
    if len(views) == 1:
        return views[0].render(values)
    return b"".join(view.render((value,)) for value in values for view in views)


def _key(partition: Partition, view: AnyView, piece: memoryview, first_offset: int) -> _ViewKey:
    base_offset = read_header(piece).base_offset
    # Values have no offsets: a view over them shows the whole piece.
    begin = max(base_offset, first_offset) if isinstance(view, RecordView) else base_offset
    return view, partition.index, begin


def _render(
    topic: str, view: AnyView, piece: memoryview, first_offset: int, limits: UnpackLimits
) -> tuple[bytes, list[Unreadable]]:
    """A view of a piece, and the batches that can't be shown. Any thread may call it."""
    if not isinstance(view, RecordView):
        values, unreadable = decode_values(topic, piece, limits)
        return view.render(values) if values else b"", unreadable
    if view.raw:
        return view.render_raw(piece), []
    decoded = decode_records(topic, piece, limits)
    return view.render_records(decoded, first_offset), _unreadable_of(decoded)


def _unreadable_of(decoded: Decoded) -> list[Unreadable]:
    return [records for records in decoded if isinstance(records, Unreadable)]


def decode_records(topic: str, piece: bytes | memoryview, limits: UnpackLimits) -> Decoded:
    """The records of all batches in a piece; for a batch that does not decode, the error."""
    decoded: list[RenderedRecords | Unreadable] = []
    view = memoryview(piece)
    for at, header in split_batches(piece):
        batch = Batch(view[at : at + header.length], header, topic, limits)
        try:
            decoded.append(RenderedRecords(batch))
        except UnreadableError as fault:
            decoded.append(Unreadable(batch, fault))
    return decoded


def decode_values(
    topic: str, piece: bytes | memoryview, limits: UnpackLimits
) -> tuple[Values, list[Unreadable]]:
    """The values of all batches in a piece, and the batches that do not decode: a producer's fault
    that was not noticed at intake."""
    values: list[bytes | None] = []
    unreadable: list[Unreadable] = []
    view = memoryview(piece)
    for at, header in split_batches(piece):
        batch = Batch(view[at : at + header.length], header, topic, limits)
        try:
            values += batch.values
        except UnreadableError as fault:
            unreadable.append(Unreadable(batch, fault))
    return values, unreadable
