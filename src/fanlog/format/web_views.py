"""Views over whole records: what a web subscription is sent, rendered once for all who share it.

| kind       | a piece is                                                                          |
| ---------- | ----------------------------------------------------------------------------------- |
| json       | WebSocket text frames `{"type":"messages",...}`                                     |
| binary     | WebSocket binary frames: size of the target in a byte, the target, whole batches    |
| sse        | events of one partition, each with the position behind it as its id                 |
| sse-vector | the same of several partitions: the id is marked, and `Vectors.stamp` completes it  |
| sse-stream | events of a resumable stream, up to its end                                         |

A view is of one topic, and belongs to all subscriptions with the same target and filter. The common
part is in `record_views.py`, and the views of events are in `sse_views.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol
from weakref import WeakValueDictionary

from fanlog.format.batch import split_batches
from fanlog.format.header import BatchHeader, Bytes
from fanlog.format.record_views import (
    FRAME_BYTES_MAX,
    Chunk,
    Decoded,
    RecordView,
    Where,
    gap_fields,
)
from fanlog.format.sparse import thinned
from fanlog.format.sse_views import SseVectorView, SseView, StreamView
from fanlog.format.web import Unreadable, quoted
from fanlog.format.web_filters import Filter
from fanlog.format.web_frames import binary_frame, text_frame

ViewKind = Literal["json", "binary", "sse", "sse-vector", "sse-stream"]


class ViewedTopic(Protocol):
    """A topic."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...


class JsonView(RecordView):
    """WebSocket text frames."""

    __slots__ = ("_source",)

    def __init__(self, target: str, topic: str, number: int, filter: Filter | None) -> None:
        super().__init__(target, topic, number, filter)
        filtered = "" if filter is None else f'"filter":{quoted(filter.text)},'
        self._source = f'"target":{quoted(target)},{filtered}"topic":{quoted(topic)},"partition":'

    def show(self, chunk: Chunk) -> bytes:
        where = chunk.where
        return text_frame(
            f'{{"type":"messages",{self._source}{where.partition},'
            f'"position":"{where.at(chunk.next_offset)}",'
            f'"messages":[{",".join(chunk.messages)}]}}'.encode()
        )

    def snapshot(
        self, messages: Sequence[str], where: Where, next_offset: int, *, more: bool
    ) -> bytes:
        end = '"more":true' if more else f'"more":false,"position":"{where.at(next_offset)}"'
        return text_frame(
            f'{{"type":"snapshot",{self._source}{where.partition},{end},'
            f'"messages":[{",".join(messages)}]}}'.encode()
        )

    def gap(self, header: BatchHeader, first_offset: int) -> bytes:
        fields = gap_fields(header, first_offset)
        return text_frame(f'{{"type":"gap",{self._source}{header.partition},{fields}}}'.encode())

    def position(self, header: BatchHeader) -> bytes:
        position = Where.of(header).at(header.next_offset)
        return text_frame(
            f'{{"type":"position",{self._source}{header.partition},"position":"{position}"}}'.encode()
        )


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
