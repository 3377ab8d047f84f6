"""The stream: everything that the broker appends, in the order in which it appends it.

A turn that appends to a topic on disk, or changes one, has a position in the stream: 1, 2, and so
on since the start. Its pieces may be shown, and take effect, when the position is committed.
There are two committed positions, because synced data must not delay the rest: `written` for
pieces that need not be synced, and `synced` for those with durability fsync.

A broker of its own commits by itself: pieces count as committed when its disk has accepted them,
and nothing is kept here. With replicas the stream holds everything back until they have it, too.
Topics in memory are not a part of the stream."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.errors import FanlogError
from fanlog.format.replication import ReplicaEvent, ReplicaPiece
from fanlog.log.scan import Owner
from fanlog.log.store import LogStore, StoredTopic
from fanlog.model import Durability

logger = logging.getLogger("fanlog.broker")


class Replicas(Protocol):
    """The followers, and the rule that says how many of them must have a turn."""

    def maybe_refusal(self) -> FanlogError | None:
        """Why nothing may be appended now: for example, too few replicas are left."""
        ...

    def holds_up(self) -> bool:
        """Whether publishers should not be read for a moment."""
        ...

    def send(self, turn: StreamTurn) -> None:
        """Sends a turn to the followers. `TurnStream.advance` may be called in here."""
        ...

    def synced(self, position: int) -> None:
        """This broker itself has synced everything up to a position."""
        ...

    def failed(self, fault: FanlogError) -> None:
        """This broker could not sync: it must not stay the primary."""
        ...

    def tombstones_end(self, partition: Partition) -> int:
        """The offset before which every connected follower has had a log's tombstones."""
        ...

    def when_confirmed(self, resume: Callable[[], None], /) -> None:
        """Resumes when the followers have said, after this call, that this broker is still the
        primary. They are asked with the next turn, or with `ask`."""
        ...

    def ask(self) -> None:
        """A turn has ended, and there is nothing to send: asks the followers if somebody waits for
        their answers."""
        ...


class StreamTurn(NamedTuple):
    """What one turn has changed: first topics, then logs."""

    position: int
    events: list[ReplicaEvent]
    pieces: list[ReplicaPiece]


class _Held(NamedTuple):
    """What waits for a synced position. At the same position, what `follows` from entries comes
    after them."""

    position: int
    follows: bool
    number: int
    resume: Callable[[], None]


class TurnStream:
    """Counts positions, and holds back what is not committed."""

    def __init__(self, replicas: Replicas | None, store: LogStore) -> None:
        self.replicas = replicas
        self.replicated = replicas is not None
        # The newest turn that has ended.
        self.position = 0
        self.written = 0
        self.synced = 0
        # Bytes that are in the log, and not committed.
        self.pending_bytes = 0
        # Called when something was committed: a turn has to end soon.
        self.on_commit: Callable[[], None] = _nothing
        self._events: list[ReplicaEvent] = []
        self._pieces: list[ReplicaPiece] = []
        # Pieces that this broker has not synced: how many, by position, the oldest first.
        self._unsynced: dict[int, int] = {}
        # Turns that are not committed, and their bytes.
        self._sizes: deque[tuple[int, int]] = deque()
        self._for_written: deque[tuple[int, Callable[[], None]]] = deque()
        self._for_synced: list[_Held] = []
        self._count = 0
        if replicas is not None:
            store.follow_changes(self._topic_changed, self._start_moved, self.check)

    # What is appended

    def check(self) -> None:
        """Raises if nothing may be appended now."""
        if self.replicas is not None:
            refusal = self.replicas.maybe_refusal()
            if refusal is not None:
                raise refusal

    @property
    def open_position(self) -> int:
        """The position of everything that was appended up to now."""
        return self.position + 1 if self._pieces or self._events else self.position

    def note(self, partition: Partition, piece: bytes, base: int) -> None:
        """A piece was appended in this turn."""
        number = partition.topic.number
        self._pieces.append(
            ReplicaPiece(number, partition.index, base, partition.next_offset, piece)
        )

    def _topic_changed(self, topic: StoredTopic, *, deleted: bool) -> None:
        if not topic.folder:
            return
        if deleted:
            event = ReplicaEvent(topic.number, deleted=True)
        else:
            event = ReplicaEvent(topic.number, topic.name, topic.settings)
        self._add_event(event)

    def _start_moved(self, owner: Owner, start: int) -> None:
        self._add_event(ReplicaEvent(owner.topic, partition=owner.partition, start=start))

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        """A job or a partition is assigned, which no two clients may have. Resumes when the client
        may learn of it."""
        if self.replicas is None:
            resume()
            return
        self.replicas.when_confirmed(resume)
        # The turn that ends next asks.
        self.on_commit()

    def tombstones_end(self, partition: Partition) -> int:
        """The offset before which tombstones may go, as far as replicas are concerned."""
        return sys.maxsize if self.replicas is None else self.replicas.tombstones_end(partition)

    def compacted(self, partition: Partition, until: int, now_us: int) -> None:
        """A log was compacted: its copies are compacted, too."""
        if self.replicas is not None:
            number, index = partition.topic.number, partition.index
            self._add_event(
                ReplicaEvent(number, partition=index, compacted_until=until, compacted_us=now_us)
            )

    def _add_event(self, event: ReplicaEvent) -> None:
        # A new topic must be known before its first piece, which may be in the same turn; and what
        # is deleted comes after its last one.
        if self._pieces:
            self.end_turn()
        self._events.append(event)
        self.on_commit()

    def end_turn(self) -> None:
        """The turn has appended all that it appends."""
        if self.replicas is None:
            return
        if not (self._pieces or self._events):
            self.replicas.ask()
            return
        self.position += 1
        turn = StreamTurn(self.position, self._events, self._pieces)
        self._events, self._pieces = [], []
        size = sum(len(piece.data) for piece in turn.pieces)
        self._sizes.append((turn.position, size))
        self.pending_bytes += size
        self.replicas.send(turn)
        self._tell_synced()

    # What waits

    def hold(
        self, durability: Durability, resume: Callable[[], None], *, position: int = -1
    ) -> None:
        """Resumes when everything that was appended up to now, or up to `position`, is
        committed."""
        position = self.open_position if position < 0 else position
        if durability is Durability.FSYNC:
            self._hold_synced(position, resume, follows=False)
        elif position <= self.written and not self._for_written:
            resume()
        else:
            self._for_written.append((position, resume))

    def after_all(self, resume: Callable[[], None]) -> None:
        """Resumes when everything up to now is committed and synced, and has taken effect."""
        self._hold_synced(self.open_position, resume, follows=True)

    def _hold_synced(self, position: int, resume: Callable[[], None], *, follows: bool) -> None:
        self._count += 1
        heappush(self._for_synced, _Held(position, follows, self._count, resume))
        if position <= self.synced:
            self._release()

    def begin_sync(self) -> int:
        """A piece of this turn waits for this broker's own sync; its position."""
        position = self.open_position
        self._unsynced[position] = self._unsynced.get(position, 0) + 1
        return position

    def end_sync(self, position: int, fault: FanlogError | None) -> None:
        """It is synced, or can't be."""
        left = self._unsynced[position] - 1
        if left:
            self._unsynced[position] = left
        else:
            del self._unsynced[position]
        if self.replicas is None:
            return
        if fault is not None:
            self.replicas.failed(fault)
        elif not left:
            self._tell_synced()

    def _tell_synced(self) -> None:
        assert self.replicas is not None
        oldest = next(iter(self._unsynced), self.position + 1)
        self.replicas.synced(min(oldest - 1, self.position))

    def advance(self, written: int, synced: int) -> None:
        """Everything up to these positions is on all replicas that must have it."""
        if written <= self.written and synced <= self.synced:
            return
        self.written = max(written, self.written)
        self.synced = max(synced, self.synced)
        sizes, everywhere = self._sizes, min(self.written, self.synced)
        pending_bytes = self.pending_bytes
        while sizes and sizes[0][0] <= everywhere:
            self.pending_bytes -= sizes.popleft()[1]
        self._release(relieved=self.pending_bytes < pending_bytes)

    def _release(self, *, relieved: bool = False) -> None:
        ready: list[Callable[[], None]] = []
        waiting = self._for_written
        while waiting and waiting[0][0] <= self.written:
            ready.append(waiting.popleft()[1])
        held = self._for_synced
        while held and held[0].position <= self.synced:
            ready.append(heappop(held).resume)
        for resume in ready:
            try:
                resume()
            except Exception:
                # One that fails must not stop the others.
                logger.exception("What waited for replicas failed.")
        if ready or relieved:
            self.on_commit()


def _nothing() -> None:
    pass
