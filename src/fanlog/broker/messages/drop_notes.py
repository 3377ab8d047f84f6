"""What readers missed, until it is written: `state/drops.py` writes it to the internal topic
`_fanlog.drops`.

To note is constant work, however often a reader misses something: notes are merged in a dict with a
bound, and what does not fit is counted in one note more. Who a reader is, and the record's bytes,
are made when notes are written.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from fanlog.broker.messages.topics import BrokerSubscription, Partition
from fanlog.broker.ports import Addressed
from fanlog.model import INTERNAL_PREFIX, GapReason

DROPS_TOPIC = INTERNAL_PREFIX + "drops"
_NAME_LENGTH_MAX = 255


class DropKind(StrEnum):
    """The kinds besides each `GapReason`. `disconnected`: the reader chose to be disconnected, and
    knows where to resume. `unreadable`: a batch does not decode, so readers of its views skip it.
    `more`: notes past `drops_pending_max`, which name no reader and no offsets."""

    DISCONNECTED = "disconnected"
    UNREADABLE = "unreadable"
    MORE = "more"


class Drop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the topic. The missed offsets are between `first` and `next` (excluded):
    `records` of them, on `times` occasions. The reader started at `begin`, and the partition ended
    at `end`: that is the range that it could have read. `kind` is a `GapReason` or a `DropKind`.
    Unknown fields are left out."""

    kind: str
    topic: str
    partition: int
    first: int
    next: int
    records: int
    times: int
    since_us: int
    until_us: int
    begin: int | None = None
    end: int | None = None
    client: str = ""
    peer: str = ""
    durable: str = ""
    group: str = ""
    queue: str = ""


class _DropNote:
    """Misses of one kind by one reader of one partition, until they are written."""

    __slots__ = ("begin", "end", "first", "next", "records", "since_us", "times", "until_us")

    def __init__(self, first: int, next: int, now_us: int) -> None:
        self.first = first
        self.next = next
        self.records = 0
        self.times = 0
        self.since_us = self.until_us = now_us
        self.begin: int | None = None
        self.end: int | None = None

    def add(self, first: int, next: int, records: int, now_us: int) -> None:
        self.first = min(self.first, first)
        self.next = max(self.next, next)
        self.records += records
        self.times += 1
        self.until_us = now_us


# A reader is its subscription; a queue is known by its name, and has many.
_Reader = BrokerSubscription | str | None
_NoteKey = tuple[Partition, _Reader, GapReason | DropKind]


class DropNotes:
    """The notes to write. The fan-out only adds notes."""

    def __init__(self, pending_max: int, now_us: Callable[[], int]) -> None:
        self._pending_max = pending_max
        self._now_us = now_us
        self._notes: dict[_NoteKey, _DropNote] = {}
        self._more: _DropNote | None = None
        # Since the start, by kind: how often readers missed something, and how many records.
        self.times: dict[str, int] = {}
        self.records: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._notes) + (self._more is not None)

    def note(
        self,
        partition: Partition,
        first: int,
        next: int,
        kind: GapReason | DropKind,
        reader: _Reader = None,
        *,
        records: int,
        begin: int | None = None,
    ) -> bool:
        """Notes that a reader missed records between `first` and `next`. True if this is the first
        note to write. Readers of the drops topic itself are left out; otherwise each of them would
        give itself more to read."""
        if partition.topic.name == DROPS_TOPIC:
            return False
        self.times[kind.value] = self.times.get(kind.value, 0) + 1
        self.records[kind.value] = self.records.get(kind.value, 0) + records
        now_us = self._now_us()
        key = (partition, reader, kind)
        note = self._notes.get(key)
        if note is None:
            if len(self._notes) >= self._pending_max:
                self._more = self._more or _DropNote(0, 0, now_us)
                self._more.add(0, 0, records, now_us)
                return False
            note = self._notes[key] = _DropNote(first, next, now_us)
            note.begin = begin
        note.add(first, next, records, now_us)
        note.end = partition.visible_end
        return note.times == 1

    def drops(self) -> list[Drop]:
        """The notes as records."""
        made = [_drop(*key, note) for key, note in self._notes.items()]
        more = self._more
        if more is not None:
            made.append(
                Drop(
                    kind=DropKind.MORE,
                    topic="",
                    partition=0,
                    first=0,
                    next=0,
                    records=more.records,
                    times=more.times,
                    since_us=more.since_us,
                    until_us=more.until_us,
                )
            )
        return made

    def clear(self) -> None:
        self._notes.clear()
        self._more = None


def _drop(
    partition: Partition, reader: _Reader, kind: GapReason | DropKind, note: _DropNote
) -> Drop:
    subscription = reader if isinstance(reader, BrokerSubscription) else None
    outlet = None if subscription is None else subscription.outlet
    return Drop(
        kind=kind,
        topic=_text(partition.topic.name),
        partition=partition.index,
        first=note.first,
        next=note.next,
        records=note.records,
        times=note.times,
        since_us=note.since_us,
        until_us=note.until_us,
        begin=note.begin,
        end=note.end,
        client="" if subscription is None else _text(subscription.client),
        peer=outlet.peer if isinstance(outlet, Addressed) else "",
        durable="" if subscription is None else _text(subscription.durable),
        group="" if subscription is None else _text(subscription.group),
        queue=_text(reader) if isinstance(reader, str) else "",
    )


def _text(name: str) -> str:
    """The name as valid JSON text: a program may have given one that is not UTF-8. A client's name
    for itself may be long."""
    return name[:_NAME_LENGTH_MAX].encode(errors="replace").decode()
