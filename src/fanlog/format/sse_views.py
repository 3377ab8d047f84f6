"""Views over whole records as server-sent events: of one partition, of several, and of a resumable
stream up to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from fanlog.errors import MessagesLostError, StreamFailedError
from fanlog.format.header import BatchHeader, Bytes
from fanlog.format.record_views import Chunk, Decoded, RecordView, Where, gap_fields
from fanlog.format.requests import ERROR
from fanlog.format.streams import END, mark_of
from fanlog.format.web import Unreadable, partition_json
from fanlog.format.web_filters import Filter
from fanlog.format.web_frames import sse_event
from fanlog.format.web_positions import ID_BEGIN, ID_END

_ERROR = ERROR.encode()
_END_LINE = b"\nevent: end\n"


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
            front = self._begin[partition] = partition_json(self.topic, partition)
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
        fields = gap_fields(header, first_offset)
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
                # Not where the batch ends: the next record may be the end mark, which must be read.
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
