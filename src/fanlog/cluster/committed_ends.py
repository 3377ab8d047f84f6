"""Up to which offset each log of a follower is committed, from what the primary says. No I/O.

A frame with a position brings the pieces of that turn: they are committed when the position is.
Pieces without a position come while the follower is behind. They may be of the turn that was open
at the primary when it read them, one further than the position that follows. That turn has ended
when two heartbeats have come since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from fanlog.format.replication import ReplicaEnd, Replicated
from fanlog.log.scan import Owner

_BEATS = 2

_LogEnds = dict[Owner, int]


class _Unplaced(NamedTuple):
    """Ends whose position is not known yet, and the heartbeat at which they came."""

    beat: int
    ends: _LogEnds


class CommittedEnds:
    """Of one reign after the other."""

    def __init__(self) -> None:
        self._committed: dict[int, dict[int, int]] = {}
        self._found: _LogEnds = {}
        self._unplaced: deque[_Unplaced] = deque()
        self._waiting: deque[tuple[int, _LogEnds]] = deque()

    def end_of(self, topic: int, partition: int) -> int:
        """The records of a log before this offset are committed."""
        return self._committed.get(topic, {}).get(partition, 0)

    def begin(self, ends: Iterable[ReplicaEnd]) -> None:
        """The follower has been compared with a primary. Its logs end there now. What was
        committed stays so."""
        found = {Owner(end.topic, end.partition): end.end for end in ends}
        for topic, partitions in list(self._committed.items()):
            kept = {
                partition: min(end, found[Owner(topic, partition)])
                for partition, end in partitions.items()
                if Owner(topic, partition) in found
            }
            self._committed[topic] = kept
        self._found = found
        self._unplaced.clear()
        self._waiting.clear()

    def heard(self, sent: Replicated) -> None:
        """A frame was taken in."""
        for event in sent.events:
            if event.deleted:
                self._committed.pop(event.number, None)
        if self._found:
            self._unplaced.append(_Unplaced(sent.beat, self._found))
            self._found = {}
        pieces = {Owner(piece.topic, piece.partition): piece.next for piece in sent.pieces}
        if sent.position:
            ends: _LogEnds = {}
            while self._unplaced and self._unplaced[0].beat + _BEATS <= sent.beat:
                ends |= self._unplaced.popleft().ends
            ends |= pieces
            if ends:
                self._waiting.append((sent.position, ends))
        elif pieces:
            if not self._unplaced or self._unplaced[-1].beat != sent.beat:
                self._unplaced.append(_Unplaced(sent.beat, {}))
            self._unplaced[-1].ends.update(pieces)
        self._advance(min(sent.written, sent.synced))

    def _advance(self, position: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            for owner, end in waiting.popleft()[1].items():
                known = self._committed.setdefault(owner.topic, {})
                known[owner.partition] = max(end, known.get(owner.partition, 0))
