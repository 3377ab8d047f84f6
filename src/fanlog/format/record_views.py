"""What all views over whole records share: they choose records, cut them into chunks that fit a
frame, and say where a reader is behind each chunk. `web_views.py` lists the kinds of views.

Law: the output of a view depends on nothing but the batches, so that every process renders the same
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fanlog.format.header import BatchHeader, Bytes
from fanlog.format.web import RenderedRecords, Unreadable
from fanlog.format.web_filters import Filter
from fanlog.format.web_positions import print_position

# Clients refuse large frames; many take 1 MiB by default. A single message may be larger.
FRAME_BYTES_MAX = 256 << 10
# A filter that lets nothing through shows a position whenever the offsets pass a multiple of it.
POSITION_EVERY = 1024

Decoded = Sequence[RenderedRecords | Unreadable]


class Where(NamedTuple):
    """What positions in a partition have beside their offsets."""

    partition: int
    epoch: int
    number: int

    @classmethod
    def of(cls, header: BatchHeader) -> Where:
        return cls(header.partition, header.leader_epoch, header.topic)

    def at(self, offset: int) -> str:
        return print_position(offset, self.epoch, self.number)


class Chunk(NamedTuple):
    """Messages of one partition that go out together, and where a reader is behind them."""

    messages: Sequence[str]
    offsets: Sequence[int]
    next_offset: int
    where: Where


class RecordView:
    """A wire form of a topic's records. Views are compared by identity: `views_for` gives the same
    one to all that share it. One that is `raw` takes the batches as they are."""

    rank = 0

    __slots__ = ("__weakref__", "filter", "number", "raw", "target", "topic")

    def __init__(self, target: str, topic: str, number: int, filter: Filter | None) -> None:
        self.target = target
        self.topic = topic
        self.number = number
        self.filter = filter
        self.raw = False

    def render_raw(self, piece: Bytes) -> bytes:
        """A piece of whole batches, in a `raw` view."""
        raise NotImplementedError

    def render_records(self, decoded: Decoded, first_offset: int) -> bytes:
        """Decoded batches of one partition, without the records before an offset."""
        parts: list[bytes] = []
        messages: list[str] = []
        offsets: list[int] = []
        last: BatchHeader | None = None
        for records in decoded:
            if isinstance(records, Unreadable):
                if last is not None and messages:
                    parts += self._chunks(messages, offsets, last)
                    messages, offsets = [], []
                parts.append(self.gap(records.header, first_offset))
            else:
                self._select(records, first_offset, messages, offsets)
            last = records.header
        if last is not None and messages:
            parts += self._chunks(messages, offsets, last)
        elif last is not None and not parts and self._shows_position(decoded, last, first_offset):
            parts.append(self.position(last))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _select(
        self, records: RenderedRecords, first_offset: int, messages: list[str], offsets: list[int]
    ) -> None:
        first = records.first(first_offset)
        if self.filter is None:
            messages += records.messages[first:] if first else records.messages
            offsets += records.offsets[first:] if first else records.offsets
            return
        kept = [i for i in records.kept(self.filter) if i >= first]
        if kept:
            messages += [records.messages[i] for i in kept]
            offsets += [records.offsets[i] for i in kept]

    def _shows_position(self, decoded: Decoded, last: BatchHeader, first_offset: int) -> bool:
        """Whether a reader that gets no message gets its position. Stateless, so that all processes
        and all readers agree."""
        if self.filter is None:
            return False
        begin = max(first_offset, decoded[0].header.base_offset)
        return begin // POSITION_EVERY != last.next_offset // POSITION_EVERY

    def _chunks(
        self, messages: list[str], offsets: list[int], last: BatchHeader
    ) -> Iterator[bytes]:
        for chunk in cut(messages, offsets, last):
            yield self.show(chunk)

    def show(self, chunk: Chunk) -> bytes:
        raise NotImplementedError

    def snapshot(
        self, messages: Sequence[str], where: Where, next_offset: int, *, more: bool
    ) -> bytes:
        """A part of the latest values by key. Only the last one has a position: a reader that is
        cut off before has not got all of it."""
        raise NotImplementedError

    def gap(self, header: BatchHeader, first_offset: int) -> bytes:
        """A batch that does not decode."""
        raise NotImplementedError

    def position(self, header: BatchHeader) -> bytes:
        """Where a reader is that was sent nothing for a while."""
        raise NotImplementedError


def cut(messages: list[str], offsets: list[int], last: BatchHeader) -> Iterator[Chunk]:
    """Messages in chunks that fit a frame; the last one ends where its batch does."""
    where, begin = Where.of(last), 0
    for end in _ends(messages):
        next_offset = last.next_offset if end == len(messages) else offsets[end - 1] + 1
        yield Chunk(messages[begin:end], offsets[begin:end], next_offset, where)
        begin = end


def _ends(messages: Sequence[str]) -> Iterator[int]:
    """Behind which messages a frame ends."""
    if len(messages) + sum(map(len, messages)) > FRAME_BYTES_MAX:
        begin = size = 0
        for i, message in enumerate(messages):
            if i > begin and size + len(message) > FRAME_BYTES_MAX:
                yield i
                begin, size = i, 0
            size += len(message) + 1
    yield len(messages)


def snapshot_chunks(messages: Sequence[str]) -> Iterator[tuple[Sequence[str], bool]]:
    """The messages of each frame of a snapshot, and whether more follow. There is one at least."""
    begin = 0
    for end in _ends(messages):
        yield messages[begin:end], end < len(messages)
        begin = end


def gap_fields(header: BatchHeader, first_offset: int) -> str:
    """The gap of a batch that does not decode, as members of a JSON object."""
    where = Where.of(header)
    begin = where.at(max(first_offset, header.base_offset))
    end = where.at(header.next_offset)
    return f'"from":"{begin}","to":"{end}","reason":"unreadable"'
