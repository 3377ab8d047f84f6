"""Views over whole records: what a web subscription is sent, rendered once for all who share it.

| kind       | a piece is                                                                          |
| ---------- | ----------------------------------------------------------------------------------- |
| json       | WebSocket text frames `{"type":"messages",...}`                                     |
| binary     | WebSocket binary frames: size of the target in a byte, the target, whole batches    |
| sse        | events of one partition, each with the position behind it as its id                 |
| sse-vector | the same of several partitions: the id is marked, and `Vectors.stamp` completes it  |
| sse-stream | events of a resumable stream, up to its end                                         |

A view is of one topic, and belongs to all subscriptions with the same target and filter. Its output
depends on nothing but the batches, so that every process renders the same positions.

It is long because the kinds of views share how records are cut and where positions go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec

from fanlog.errors import MessagesLostError, StreamFailedError
from fanlog.format.batch import split_batches
from fanlog.format.header import BatchHeader, Bytes
from fanlog.format.requests import ERROR
from fanlog.format.sparse import thinned
from fanlog.format.streams import END, mark_of
from fanlog.format.web import RenderedRecords, Unreadable, place_json, quoted
from fanlog.format.web_filters import Filter
from fanlog.format.web_frames import binary_frame, sse_event, text_frame
from fanlog.format.web_positions import ID_BEGIN, ID_END, print_position

ViewKind = Literal["json", "binary", "sse", "sse-vector", "sse-stream"]
# Clients refuse large frames; many take 1 MiB by default. A single message may be larger.
FRAME_BYTES_MAX = 256 << 10
# A filter that lets nothing through shows a position whenever the offsets pass a multiple of it.
POSITION_EVERY = 1024

_ERROR = ERROR.encode()
_END_LINE = b"\nevent: end\n"

Decoded = Sequence[RenderedRecords | Unreadable]


class ViewedTopic(Protocol):
    """A topic."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...


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
        """Whether a reader that is sent no message is told where it is. Stateless, so that all
        processes and all readers agree."""
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


class JsonView(RecordView):
    """WebSocket text frames."""

    __slots__ = ("_place",)

    def __init__(self, target: str, topic: str, number: int, filter: Filter | None) -> None:
        super().__init__(target, topic, number, filter)
        filtered = "" if filter is None else f'"filter":{quoted(filter.text)},'
        self._place = f'"target":{quoted(target)},{filtered}"topic":{quoted(topic)},"partition":'

    def show(self, chunk: Chunk) -> bytes:
        where = chunk.where
        return text_frame(
            f'{{"type":"messages",{self._place}{where.partition},'
            f'"position":"{where.at(chunk.next_offset)}",'
            f'"messages":[{",".join(chunk.messages)}]}}'.encode()
        )

    def snapshot(
        self, messages: Sequence[str], where: Where, next_offset: int, *, more: bool
    ) -> bytes:
        end = '"more":true' if more else f'"more":false,"position":"{where.at(next_offset)}"'
        return text_frame(
            f'{{"type":"snapshot",{self._place}{where.partition},{end},'
            f'"messages":[{",".join(messages)}]}}'.encode()
        )

    def gap(self, header: BatchHeader, first_offset: int) -> bytes:
        fields = _gap_fields(header, first_offset)
        return text_frame(f'{{"type":"gap",{self._place}{header.partition},{fields}}}'.encode())

    def position(self, header: BatchHeader) -> bytes:
        position = Where.of(header).at(header.next_offset)
        return text_frame(
            f'{{"type":"position",{self._place}{header.partition},"position":"{position}"}}'.encode()
        )


def _gap_fields(header: BatchHeader, first_offset: int) -> str:
    where = Where.of(header)
    begin = where.at(max(first_offset, header.base_offset))
    end = where.at(header.next_offset)
    return f'"from":"{begin}","to":"{end}","reason":"unreadable"'


class SseView(RecordView):
    """Events of one partition, or, `marked`, of several: then `Vectors.stamp` completes the ids."""

    __slots__ = ("_begin",)
    marked: ClassVar[bool] = False

    def __init__(self, target: str, topic: str, number: int, filter: Filter | None) -> None:
        super().__init__(target, topic, number, filter)
        self._begin: dict[int, str] = {}

    def _id(self, where: Where, next_offset: int | str) -> str:
        partition, epoch, number = where
        if self.marked:
            return f"{ID_BEGIN}{number}/{partition}/{next_offset}.{epoch}{ID_END}"
        return f"{next_offset}.{epoch}.{number}"

    def _front(self, partition: int) -> str:
        front = self._begin.get(partition)
        if front is None:
            front = self._begin[partition] = place_json(self.topic, partition)
        return front

    def show(self, chunk: Chunk) -> bytes:
        where = chunk.where
        # The parts of an id around the offset are the same for all.
        head, _, behind = self._id(where, "#").partition("#")
        head = f"id: {head}"
        begin = f"{behind}\ndata: {self._front(where.partition)}"
        ends = [offset + 1 for offset in chunk.offsets]
        ends[-1] = chunk.next_offset
        return "".join(
            [
                f"{head}{end}{begin}{message[1:]}\n\n"
                for end, message in zip(ends, _one_line_each(chunk.messages), strict=True)
            ]
        ).encode()

    def snapshot(
        self, messages: Sequence[str], where: Where, next_offset: int, *, more: bool
    ) -> bytes:
        front = self._front(where.partition)
        events = [
            f"event: snapshot\ndata: {front}{message[1:]}\n\n"
            for message in _one_line_each(messages)
        ]
        if not more:
            own = self._id(where, next_offset)
            events.append(f"id: {own}\nevent: snapshot-end\ndata: {front[:-1]}}}\n\n")
        return "".join(events).encode()

    def gap(self, header: BatchHeader, first_offset: int) -> bytes:
        front = self._front(header.partition)
        own = self._id(Where.of(header), header.next_offset)
        fields = _gap_fields(header, first_offset)
        return f"id: {own}\nevent: gap\ndata: {front}{fields}}}\n\n".encode()

    def position(self, header: BatchHeader) -> bytes:
        # Without data nothing is dispatched, but the browser remembers the id.
        return f"id: {self._id(Where.of(header), header.next_offset)}\n\n".encode()


def _one_line_each(messages: Sequence[str]) -> Sequence[str]:
    """JSON on one line each. A line end stands between tokens, never in a string: a space does."""
    together = "".join(messages)
    if "\n" not in together and "\r" not in together:
        return messages
    return [message.replace("\n", " ").replace("\r", " ") for message in messages]


class SseVectorView(SseView):
    __slots__ = ()
    marked = True


class StreamView(SseView):
    """Events of a resumable stream. The last one is its end; nothing behind it is shown."""

    __slots__ = ()

    def render_records(self, decoded: Decoded, first_offset: int) -> bytes:
        parts: list[bytes] = []
        for records in decoded:
            if isinstance(records, Unreadable):
                parts.append(self.gap(records.header, first_offset))
                break
            begin, where = records.first(first_offset), Where.of(records.header)
            marks = [mark_of(records.batch, i) for i in range(begin, len(records.offsets))]
            end = begin + marks.index(END) if END in marks else None
            kept = [begin + i for i, mark in enumerate(marks) if mark is None]
            if end is not None:
                kept = [i for i in kept if i < end]
            if kept:
                offsets = [records.offsets[i] for i in kept]
                messages = [records.messages[i] for i in kept]
                # Not where the batch ends: the next record may be the end, which is to be read.
                parts.append(self.show(Chunk(messages, offsets, offsets[-1] + 1, where)))
            if end is not None:
                own = where.at(records.offsets[end] + 1)
                said = records.batch.columns.header(end, _ERROR)
                code = "" if said is None else StreamFailedError.code
                parts.append(end_event(own, code, (said or b"").decode(errors="replace")))
                break
        return b"".join(parts)

    def gap(self, header: BatchHeader, first_offset: int) -> bytes:
        """A text with a hole is not whole: it ends."""
        begin = max(first_offset, header.base_offset)
        lost = (
            f"Offsets {begin} to {header.next_offset - 1} of {self.topic!r} will not come: their "
            "producer made a batch that does not decode."
        )
        return end_event(Where.of(header).at(begin), MessagesLostError.code, lost)


def end_event(own: str, code: str = "", message: str = "") -> bytes:
    """The last event of a resumable stream; with a `code` it has failed."""
    fault = {"code": code, "message": message} if code else None
    return sse_event(msgspec.json.encode({"error": fault}), "end", own)


def has_end(piece: Bytes) -> bool:
    """Whether a piece of a resumable stream has its end. Data is on one line: it can't say so."""
    return _END_LINE in bytes(piece)


class BinaryView(RecordView):
    """WebSocket binary frames of batches as they are; a filter makes them sparse. Clients leave out
    what is before the offset that they want, as they do with every batch."""

    __slots__ = ("_front",)

    def __init__(self, target: str, topic: str, number: int, filter: Filter | None) -> None:
        super().__init__(target, topic, number, filter)
        encoded = target.encode()
        self._front = bytes((len(encoded),)) + encoded
        self.raw = filter is None

    def render_raw(self, piece: Bytes) -> bytes:
        if len(piece) <= FRAME_BYTES_MAX:
            return binary_frame(self._front + piece) if piece else b""
        frames: list[bytes] = []
        begin = 0
        view = memoryview(piece)
        for at, header in split_batches(piece):
            if at > begin and at + header.length - begin > FRAME_BYTES_MAX:
                frames.append(binary_frame(self._front + view[begin:at]))
                begin = at
        frames.append(binary_frame(self._front + view[begin:]))
        return b"".join(frames)

    def snapshot(
        self, messages: Sequence[str], where: Where, next_offset: int, *, more: bool
    ) -> bytes:
        # Like all but messages, it is JSON.
        json = JsonView(self.target, self.topic, self.number, self.filter)
        return json.snapshot(messages, where, next_offset, more=more)

    def render_records(self, decoded: Decoded, first_offset: int) -> bytes:
        batches: list[Bytes] = []
        for records in decoded:
            header = records.header
            if isinstance(records, Unreadable) or self.filter is None:
                batches.append(records.batch.data)
                continue
            kept = records.kept(self.filter)
            if len(kept) == header.record_count:
                batches.append(records.batch.data)
            elif kept or self._shows_position([records], header, 0):
                batches.append(thinned(records.batch, kept))
        return self.render_raw(b"".join(batches))


_KINDS: dict[ViewKind, type[RecordView]] = {
    "json": JsonView,
    "binary": BinaryView,
    "sse": SseView,
    "sse-vector": SseVectorView,
    "sse-stream": StreamView,
}
_WebViewKey = tuple[ViewKind, str, str, str, int]
_views: WeakValueDictionary[_WebViewKey, RecordView] = WeakValueDictionary()

ViewMaker = Callable[[ViewedTopic], RecordView]


def views_for(kind: ViewKind, target: str, filter: Filter | None = None) -> ViewMaker:
    """What makes the view of each topic that a subscription to `target` follows."""
    made = _KINDS[kind]
    text = "" if filter is None else filter.text

    def view_of(topic: ViewedTopic) -> RecordView:
        key = (kind, target, text, topic.name, topic.number)
        view = _views.get(key)
        if view is None:
            view = _views[key] = made(target, topic.name, topic.number, filter)
        return view

    return view_of
