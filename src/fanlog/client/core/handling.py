"""Which message a handler gets next, what follows a failure, and how far each partition is done. No
I/O and no clock.

A **line** is a sequence that must be handled in order: a partition, or a key of one. One message of
each line is in hand at a time, and a failed one holds up its own line only. Law: all messages
before the position of a partition are done. A message that was in hand when its partition was lost
does not count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, auto
from typing import Literal

from fanlog.client.core.member_progress import MemberProgress
from fanlog.client.core.reached import Reached, reached
from fanlog.client.message import Message, MessageBatch
from fanlog.model import TopicPartition

Order = Literal["partition", "key"]
OnFailure = Literal["dead-letter", "skip", "stop"]
LineName = tuple[TopicPartition, Hashable]

# With order by key: how many messages of a partition are searched, so that a waiting key does not
# hold up others. All of them may be done again after a crash.
_AHEAD_BY_KEY = 1000


class FailureStep(Enum):
    """What follows when a handler has failed with a message."""

    RETRY = auto()
    # Its offset is not committed, and the handlers stop.
    STOP = auto()
    SKIP = auto()
    # It is a dead letter already, so it is skipped and not moved again.
    LEAVE = auto()
    DEAD_LETTER = auto()


def after_failure(
    failures: int, attempts_max: int | None, on_failure: OnFailure, *, is_dead_letter: bool
) -> FailureStep:
    """The step after a message has failed so many times. A pattern may match a dead-letter topic: a
    dead letter that fails must not become another one.

    >>> after_failure(4, 5, "dead-letter", is_dead_letter=False).name
    'RETRY'
    >>> after_failure(5, 5, "dead-letter", is_dead_letter=False).name
    'DEAD_LETTER'
    """
    if attempts_max is None or failures < attempts_max:
        return FailureStep.RETRY
    match on_failure:
        case "stop":
            return FailureStep.STOP
        case "skip":
            return FailureStep.SKIP
        case "dead-letter":
            return FailureStep.LEAVE if is_dead_letter else FailureStep.DEAD_LETTER


class Parcel:
    """A batch on its way through the handlers. `done` is called when nothing of it is left."""

    __slots__ = ("batch", "done", "left")

    def __init__(self, batch: MessageBatch, done: Callable[[], None]) -> None:
        self.batch = batch
        self.done = done
        self.left = len(batch)

    @property
    def bytes(self) -> int:
        return self.batch.batch.header.length

    def one_less(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done()

    def drop(self, count: int) -> None:
        """This number of its messages will not be handled."""
        if self.left > 0:
            self.left = max(0, self.left - count)
            if self.left == 0:
                self.done()


class MessageToHandle:
    """A message to be handled. `reason` is set when the message has to become a dead letter."""

    __slots__ = ("failures", "finished", "line", "message", "parcel", "reason", "track")

    def __init__(self, track: Track, line: LineName, message: Message, parcel: Parcel) -> None:
        self.track = track
        self.line = line
        self.message = message
        self.parcel = parcel
        self.failures = 0
        self.finished = False
        self.reason = ""

    @property
    def tp(self) -> TopicPartition:
        return self.line[0]


class Track:
    """A partition as it is read now: `end` is the position after all begun messages. `unfinished`
    has those that are not done, or not known to be, in the order of the log."""

    __slots__ = ("_feeding", "_parcel", "closed", "end", "parcels", "unfinished")

    def __init__(self, start: Reached) -> None:
        self.end = start
        # Nothing more of it is begun.
        self.closed = False
        self.parcels: deque[Parcel] = deque()
        self.unfinished: deque[MessageToHandle] = deque()
        self._parcel: Parcel | None = None
        self._feeding: Iterator[Message] = iter(())

    @property
    def position(self) -> Reached:
        while self.unfinished and self.unfinished[0].finished:
            self.unfinished.popleft()
        if not self.unfinished:
            return self.end
        first = self.unfinished[0].message
        return reached(first.batch, first.offset)

    def next(self) -> tuple[Message, Parcel] | None:
        """The next message of it, if one is here."""
        while True:
            message = next(self._feeding, None)
            if message is not None and self._parcel is not None:
                is_last = message is self._parcel.batch.messages[-1]
                offset = self._parcel.batch.next_offset if is_last else message.offset + 1
                self.end = reached(message.batch, offset)
                return message, self._parcel
            if not self.parcels:
                self._parcel = None
                return None
            self._parcel = self.parcels.popleft()
            self._feeding = iter(self._parcel.batch.messages)
            if not len(self._parcel.batch):
                # Compaction has left nothing of it, or it can't be read.
                self.end = reached(self._parcel.batch.batch, self._parcel.batch.next_offset)
                self._parcel.done()

    def drop_begun(self) -> None:
        """Nothing more is taken of a batch that was begun."""
        if self._parcel is not None:
            self._parcel.drop(sum(1 for _ in self._feeding))
            self._parcel = None
        self._feeding = iter(())

    def drop_parcels(self) -> int | None:
        """Drops messages that were not begun. Returns the offset of the first one, if there was
        any."""
        parcels, self.parcels = self.parcels, deque()
        for parcel in parcels:
            parcel.left = 0
            parcel.done()
        return parcels[0].batch.base_offset if parcels else None

    def cut_at(self, start: Reached) -> None:
        """The log is another one from `start` on: messages read behind it do not count."""
        if self._parcel is not None and self._parcel.batch.next_offset > start.offset:
            self.drop_begun()
        gone = [parcel for parcel in self.parcels if parcel.batch.next_offset > start.offset]
        for parcel in gone:
            self.parcels.remove(parcel)
            parcel.left = 0
            parcel.done()
        self.unfinished = deque(e for e in self.unfinished if e.message.offset < start.offset)
        if self._parcel is None and not self.parcels:
            self.end = start


class _Line:
    """`entry` is the message in hand, `waits` whether the first one waits to be tried again."""

    __slots__ = ("entries", "entry", "queued", "waits")

    def __init__(self) -> None:
        self.entries: deque[MessageToHandle] = deque()
        self.entry: MessageToHandle | None = None
        self.queued = False
        self.waits = False


class Desk(MemberProgress):
    """The messages between a member of a group and its handlers."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._by_key = order == "key"
        self._ahead = _AHEAD_BY_KEY if self._by_key else 1
        self._tracks: dict[TopicPartition, Track] = {}
        self._lines: dict[LineName, _Line] = {}
        self._ready: deque[LineName] = deque()
        self._in_hand: dict[TopicPartition, int] = {}
        self._parted: set[TopicPartition] = set()

    # What comes

    def put(self, tp: TopicPartition, parcel: Parcel) -> None:
        """A batch has come of a partition that is read."""
        track = self._tracks.get(tp)
        if track is None:
            parcel.done()
            return
        track.parcels.append(parcel)
        self._fill(tp, track)

    def _fill(self, tp: TopicPartition, track: Track) -> None:
        while len(track.unfinished) < self._ahead:
            found = track.next()
            if found is None:
                return
            message, parcel = found
            name: LineName = (tp, None)
            if self._by_key:
                # Messages without a key have no order among each other.
                name = (tp, message.offset if (key := message.key) is None else key)
            entry = MessageToHandle(track, name, message, parcel)
            track.unfinished.append(entry)
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = _Line()
            line.entries.append(entry)
            self._rouse(name, line)

    def _rouse(self, name: LineName, line: _Line) -> None:
        idle = line.entry is None and not line.waits and not line.queued
        if idle and line.entries:
            line.queued = True
            self._ready.append(name)
        elif idle:
            del self._lines[name]

    # What handlers do

    def take(self) -> MessageToHandle | None:
        """The next message that may be handled; lines take turns."""
        while self._ready:
            name = self._ready.popleft()
            line = self._lines[name]
            line.queued = False
            if line.entries:
                entry = line.entry = line.entries.popleft()
                self._in_hand[entry.tp] = self._in_hand.get(entry.tp, 0) + 1
                return entry
            self._rouse(name, line)
        return None

    def finish(self, entry: MessageToHandle) -> None:
        """The message in hand is done with, or given up on."""
        entry.finished = True
        entry.parcel.one_less()
        self._put_down(entry)

    def postpone(self, entry: MessageToHandle) -> bool:
        """The message in hand failed, and its line waits for it. Whether it is tried again. It is
        not if its partition is being released, or is gone."""
        line = self._put_down(entry, rouse=False)
        if not self.is_open(entry):
            entry.parcel.one_less()
            self._rouse(entry.line, line)
            return False
        line.entries.appendleft(entry)
        line.waits = True
        return True

    def resume(self, entry: MessageToHandle) -> None:
        """The wait of a postponed message is over."""
        line = self._lines.get(entry.line)
        if line is not None and line.waits and line.entries and line.entries[0] is entry:
            line.waits = False
            self._rouse(entry.line, line)

    def abandon(self, entry: MessageToHandle) -> None:
        """The message in hand is not done, and is not tried again."""
        entry.parcel.one_less()
        self._put_down(entry)

    def is_open(self, entry: MessageToHandle) -> bool:
        """Whether more of its partition is handled."""
        return self._tracks.get(entry.tp) is entry.track and not entry.track.closed

    def _put_down(self, entry: MessageToHandle, *, rouse: bool = True) -> _Line:
        line = self._lines[entry.line]
        line.entry = None
        left = self._in_hand[entry.tp] - 1
        if left:
            self._in_hand[entry.tp] = left
        else:
            del self._in_hand[entry.tp]
        track = self._tracks.get(entry.tp)
        if track is not None:
            _ = track.position
            self._fill(entry.tp, track)
        if rouse:
            self._rouse(entry.line, line)
        return line

    # What becomes of partitions

    def begin(self, tp: TopicPartition, start: Reached) -> None:
        track = self._tracks.get(tp)
        if tp in self._parted and track is not None and not track.closed:
            self._parted.discard(tp)
            self._clear_lines(tp, start.offset)
            track.cut_at(start)
            return
        self.forget(tp)
        self._tracks[tp] = Track(start)

    def cut(self, tp: TopicPartition) -> None:
        """Begins and repeats no more messages; those in hand still count."""
        track = self._tracks.get(tp)
        if track is not None:
            track.closed = True
            track.drop_begun()
            track.drop_parcels()
            self._clear_lines(tp, 0)

    def forget(self, tp: TopicPartition) -> None:
        self.cut(tp)
        self._parted.discard(tp)
        self._tracks.pop(tp, None)

    drop_hand = forget

    def disown_hand(self, tp: TopicPartition) -> None:
        self._parted.add(tp)

    def _clear_lines(self, tp: TopicPartition, first: int) -> None:
        """Nothing that waits in lines of this partition, from an offset on, is handled."""
        for name, line in list(self._lines.items()):
            if name[0] != tp or not line.entries:
                continue
            kept = [entry for entry in line.entries if entry.message.offset < first]
            for entry in list(line.entries)[len(kept) :]:
                entry.parcel.drop(1)
            line.entries = deque(kept)
            line.waits = line.waits and bool(kept)
            self._rouse(name, line)

    def cut_all(self) -> None:
        for tp in list(self._tracks):
            self.cut(tp)

    # How far it is

    def has(self, tp: TopicPartition) -> bool:
        return tp in self._tracks

    def holds(self, tp: TopicPartition) -> bool:
        return tp in self._in_hand

    def given(self, tp: TopicPartition) -> int | None:
        track = self._tracks.get(tp)
        return None if track is None else track.end.offset

    def done(self, current: Message | None) -> dict[TopicPartition, Reached]:
        return {tp: track.position for tp, track in self._tracks.items()}

    def is_drained(self, tp: TopicPartition) -> bool:
        """Whether all that has come of a partition was begun."""
        track = self._tracks.get(tp)
        return track is None or (not track.parcels and len(track.unfinished) < self._ahead)

    # Room for others

    def hoarding(self) -> TopicPartition | None:
        """The partition with the most messages that were not begun."""
        most, found = 0, None
        for tp, track in self._tracks.items():
            size = sum(parcel.bytes for parcel in track.parcels)
            if size > most:
                most, found = size, tp
        return found

    def drop_waiting(self, tp: TopicPartition) -> int | None:
        """Drops messages of a partition that were not begun. Returns the first offset."""
        track = self._tracks.get(tp)
        return None if track is None else track.drop_parcels()
