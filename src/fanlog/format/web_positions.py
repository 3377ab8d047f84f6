"""Positions as text: what a web client keeps, and hands back to continue exactly where it was.

| form     | text                                              | used by                           |
| -------- | ------------------------------------------------- | --------------------------------- |
| position | `offset.epoch.number`                             | WebSocket, REST; SSE of one       |
|          |                                                   | partition                         |
| vector   | `topic:number:partition.offset.epoch,...;topic:…` | SSE of several partitions         |

`offset` is the next record wanted, `epoch` the log's epoch that it was reached in, and `number` the
topic's. In a vector the topic is percent-encoded, so that the text is ASCII and fits a header.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from fanlog.errors import InvalidArgumentError
from fanlog.format.header import OFFSET_MAX
from fanlog.format.messages import Position
from fanlog.model import PARTITIONS_MAX

_POSITION = re.compile(r"([0-9]{1,19})\.([0-9]{1,10})\.([0-9]{1,10})", re.ASCII)
_ENTRY = re.compile(r"([0-9]{1,4})\.([0-9]{1,19})\.([0-9]{1,10})", re.ASCII)
_UINT32_MAX = (1 << 32) - 1
# As much of a wrong text as an error repeats.
_SHOWN_MAX = 80
# Stands before and behind the part of an id that a batch knows. JSON has neither.
ID_BEGIN, ID_END = "\x00", "\x01"
_BEGIN, _END = ID_BEGIN.encode(), ID_END.encode()
# Stamped pieces that are remembered: those of a turn for the few vectors that are live.
_STAMPED_MAX = 256
_STAMPED_BYTES_MAX = 8 << 20


def print_position(offset: int, epoch: int, number: int) -> str:
    """
    >>> print_position(5, 2, 7)
    '5.2.7'
    """
    return f"{offset}.{epoch}.{number}"


def parse_position(text: str, topic: str = "", partition: int = 0) -> Position:
    """The position of a topic partition.

    >>> parse_position("5.2.7", "chat").offset
    5
    """
    found = _POSITION.fullmatch(text)
    if found is None:
        raise _bad(text, "It has the form offset.epoch.number, such as 42.3.7.")
    offset, epoch, number = map(int, found.groups())
    return _checked(text, Position(topic, partition, offset, epoch, number))


def _checked(text: str, position: Position) -> Position:
    if position.offset > OFFSET_MAX or max(position.epoch, position.number) > _UINT32_MAX:
        raise _bad(text, "A number in it is too large.")
    if position.partition >= PARTITIONS_MAX:
        raise _bad(text, f"A topic has the partitions 0 to {PARTITIONS_MAX - 1} at most.")
    return position


def _bad(text: str, why: str) -> InvalidArgumentError:
    shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
    return InvalidArgumentError(
        f"{shown!r} is not a position. {why} Use one that the server sent, unchanged."
    )


def print_positions(positions: Iterable[Position]) -> dict[str, str]:
    """Positions as they stand in JSON: `{"topic/partition": "offset.epoch.number"}`."""
    return {
        f"{p.topic}/{p.partition}": print_position(p.offset, p.epoch, p.number) for p in positions
    }


def parse_positions(positions: Mapping[str, str]) -> tuple[Position, ...]:
    """
    >>> parse_positions({"a/b/3": "5.2.7"})[0].topic
    'a/b'
    """
    found: list[Position] = []
    for key, text in positions.items():
        topic, slash, index = key.rpartition("/")
        if not slash or not topic or not (index.isascii() and index.isdigit()) or len(index) > 4:
            shown = key[:_SHOWN_MAX]
            raise InvalidArgumentError(
                f"{shown!r} names no topic partition. Write topic/partition, such as chat/0."
            )
        found.append(parse_position(text, topic, int(index)))
    return tuple(found)


def parse_event_id(text: str, topic: str = "") -> tuple[Position, ...]:
    """The positions in an SSE id: of one partition of `topic`, or a vector."""
    if ":" not in text:
        return (parse_position(text, topic),) if text else ()
    found: list[Position] = []
    for part in text.split(";"):
        name, _, rest = part.partition(":")
        number, _, entries = rest.partition(":")
        if not name or not re.fullmatch("[0-9]{1,10}", number) or not entries:
            raise _bad(text, "A part of it is not topic:number:partition.offset.epoch.")
        for entry in entries.split(","):
            fields = _ENTRY.fullmatch(entry)
            if fields is None:
                raise _bad(text, "An entry of it is not partition.offset.epoch.")
            index, offset, epoch = map(int, fields.groups())
            position = Position(unquote(name), index, offset, epoch, int(number))
            found.append(_checked(text, position))
    return tuple(found)


class _VectorEntry(NamedTuple):
    """Where in a vector one partition is, in the order of a vector."""

    name: str
    number: int
    partition: int


class Vector:
    """Positions in several partitions. Vectors with the same text are one object."""

    __slots__ = ("__weakref__", "reached", "text")

    def __init__(self, text: str, reached: dict[_VectorEntry, tuple[int, int]]) -> None:
        self.text = text
        self.reached = reached

    @property
    def positions(self) -> tuple[Position, ...]:
        return tuple(
            Position(key.name, key.partition, offset, epoch, key.number)
            for key, (offset, epoch) in self.reached.items()
        )


class Vectors:
    """All vectors of a process. Readers at the same position share the text and the stamped
    bytes."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Vector] = WeakValueDictionary()
        self._stamped: OrderedDict[
            tuple[int, ...], tuple[Sequence[object], Vector, Vector, bytes]
        ] = OrderedDict()
        self._stamped_bytes = 0

    def of(self, positions: Iterable[Position]) -> Vector:
        return self._vector(
            {_VectorEntry(p.topic, p.number, p.partition): (p.offset, p.epoch) for p in positions}
        )

    def moved(self, vector: Vector, position: Position) -> Vector:
        """The vector with another position, in the place of what it knew of that partition."""
        name, index = position.topic, position.partition
        others = {
            key: at
            for key, at in vector.reached.items()
            if (key.name, key.partition) != (name, index)
        }
        others[_VectorEntry(name, position.number, index)] = (position.offset, position.epoch)
        return self._vector(others)

    def without(self, vector: Vector, topic: str) -> Vector:
        """The vector without a topic that has gone."""
        kept = {key: at for key, at in vector.reached.items() if key.name != topic}
        return self._vector(kept)

    def stamp(self, vector: Vector, *pieces: bytes | memoryview) -> tuple[Vector, bytes]:
        """The vector behind pieces of one partition in an `sse-vector` view, and the pieces in one
        with whole ids. A reader that is behind gets many small ones: the ids of all of them have
        the same other parts, which are found once."""
        sources = [piece.obj if isinstance(piece, memoryview) else piece for piece in pieces]
        key = (id(vector), *map(id, sources))
        known = self._stamped.get(key)
        if known is not None:
            self._stamped.move_to_end(key)
            return known[2], known[3]
        after, data = self._stamp(vector, b"".join(pieces))
        # It holds the pieces and the vector, so that nothing else can get their ids.
        self._stamped[key] = (sources, vector, after, data)
        self._stamped_bytes += len(data)
        while len(self._stamped) > 1 and (
            len(self._stamped) > _STAMPED_MAX or self._stamped_bytes > _STAMPED_BYTES_MAX
        ):
            _, oldest = self._stamped.popitem(last=False)
            self._stamped_bytes -= len(oldest[3])
        return after, data

    def _stamp(self, vector: Vector, piece: bytes) -> tuple[Vector, bytes]:
        begin, last = piece.find(_BEGIN), piece.rfind(_BEGIN)
        if begin < 0:
            return vector, piece
        number, index, _ = piece[begin + 1 : piece.index(_END, begin)].split(b"/")
        own = piece[last + 1 : piece.index(_END, last)].rsplit(b"/", 1)[1].decode()
        key = self._key(vector, int(number), int(index))
        offset, epoch = map(int, own.split("."))
        after = self._vector({**vector.reached, key: (offset, epoch)})
        front, back = _around(after, key, own)
        mark = _BEGIN + b"%b/%b/" % (number, index)
        return after, piece.replace(mark, front).replace(_END, back)

    @staticmethod
    def _key(vector: Vector, number: int, index: int) -> _VectorEntry:
        for key in vector.reached:
            if key.number == number:
                return key._replace(partition=index)
        raise InvalidArgumentError(
            f"This vector does not know a topic with the number {number}: it was not joined."
        )

    def _vector(self, reached: dict[_VectorEntry, tuple[int, int]]) -> Vector:
        ordered = dict(sorted(reached.items()))
        text = _print_vector(ordered)
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = Vector(text, ordered)
        return known


def _print_vector(reached: Mapping[_VectorEntry, tuple[int, int]]) -> str:
    topics: dict[tuple[str, int], list[str]] = {}
    for key, (offset, epoch) in reached.items():
        entry = f"{key.partition}.{offset}.{epoch}"
        topics.setdefault((key.name, key.number), []).append(entry)
    return ";".join(
        f"{quote(name, safe='')}:{number}:{','.join(entries)}"
        for (name, number), entries in topics.items()
    )


def _around(vector: Vector, key: _VectorEntry, own: str) -> tuple[bytes, bytes]:
    """What stands before and behind a partition's own `offset.epoch` in a vector."""
    topic = f"{quote(key.name, safe='')}:{key.number}:"
    at = 0 if vector.text.startswith(topic) else vector.text.index(f";{topic}") + 1
    at += len(topic)
    entry = f"{key.partition}.{own}"
    while not vector.text.startswith(entry, at):
        at = vector.text.index(",", at) + 1
    begin = at + len(f"{key.partition}.")
    return vector.text[:begin].encode(), vector.text[begin + len(own) :].encode()
