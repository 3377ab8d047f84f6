"""One transaction without I/O: its state, the offsets that are committed with it, and its requests.
What is staged for it is in `staging.py`.

Law: a transaction ends once. After that nothing is staged, and it is never committed again.

| state     | meaning                                                          |
| --------- | ---------------------------------------------------------------- |
| NEW       | the broker was not asked for a ticket                            |
| OPEN      | messages and offsets may be added                                |
| COMMITTED | the broker has said so                                           |
| ABORTED   | taken back, or given up: if nobody says so, its time runs out    |
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Protocol

import msgspec

from fanlog.client.arguments import checked
from fanlog.client.core.reached import reached
from fanlog.client.message import Message
from fanlog.errors import FencedError, InvalidArgumentError
from fanlog.format.messages import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    GroupOffsets,
    Position,
    TransactionBegun,
    TransactionCommitted,
    decode,
)
from fanlog.model import TopicPartition

Taken = Message | Iterable[Message | Position] | None


class TransactionState(Enum):
    NEW = auto()
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


class CommittingMember(Protocol):
    """A group's member, whose positions a transaction can commit."""

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets: ...


class ReadingMember(CommittingMember, Protocol):
    """A group's member whose messages are processed in a transaction."""

    def times_came(self, tp: TopicPartition) -> int: ...


class MemberAtStart:
    """A member as it was when an attempt began. If it has lost that membership since, and joined
    again, the messages that it read before belong to others. The same goes for messages of a
    partition that it has lost since, even if it has the partition again."""

    def __init__(self, member: ReadingMember) -> None:
        self._member = member
        self._offsets = member.offsets_for_commit(())
        self._came: dict[TopicPartition, int] = {}

    def reads(self, tp: TopicPartition) -> None:
        """A message of this partition was taken."""
        self._came.setdefault(tp, self._member.times_came(tp))

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets:
        self._member.offsets_for_commit(positions or ())
        if any(self._member.times_came(tp) != came for tp, came in self._came.items()):
            raise FencedError(
                "A partition went to another member before the results were stored. Nothing "
                "was stored; the other member does the work again."
            )
        return msgspec.structs.replace(self._offsets, positions=positions or ())


def position_after(message: Message) -> Position:
    """Where a reader of this message continues."""
    after = reached(message.batch, message.offset + 1)
    return Position(message.topic, message.partition, *after)


def furthest_positions(taken: Taken) -> tuple[Position, ...] | None:
    """The positions after these messages, or these positions: the furthest of each partition. None
    stands for everything that was taken."""
    if taken is None:
        return None
    furthest: dict[tuple[str, int], Position] = {}
    for one in (taken,) if isinstance(taken, Message) else taken:
        position = one if isinstance(one, Position) else position_after(one)
        tp = (position.topic, position.partition)
        if tp not in furthest or furthest[tp].offset < position.offset:
            furthest[tp] = position
    return tuple(furthest.values())


class TransactionCore:
    """`wanted` asks to begin it or, with a ticket, to join one that others have begun."""

    def __init__(self, wanted: BeginTransaction) -> None:
        self.wanted = wanted
        self.state = TransactionState.NEW
        self.result: TransactionCommitted | None = None
        self._begun: TransactionBegun | None = None
        self._offsets: dict[tuple[str, str], GroupOffsets] = {}
        self._members: dict[tuple[str, str], CommittingMember] = {}

    @property
    def is_shared(self) -> bool:
        """Whether others have begun it: it ends when one of them says so."""
        return bool(self.wanted.ticket)

    @property
    def is_over(self) -> bool:
        return self.state in (TransactionState.COMMITTED, TransactionState.ABORTED)

    def begun(self, payload: bytes) -> TransactionBegun:
        """The broker's answer to `wanted`."""
        self._begun = decode(TransactionBegun, payload)
        self.state = TransactionState.OPEN
        return self._begun

    def details(self) -> TransactionBegun:
        """Its ticket and id. Raises if it has not begun."""
        if self._begun is None:
            raise InvalidArgumentError(
                "The transaction has not begun: open it in a `with` block, or call begin()."
            )
        return self._begun

    def check_unfinished(self) -> TransactionBegun:
        """Raises if nothing can be staged: before the beginning, and after the end."""
        if self.is_over:
            done = self.state.name.lower()
            raise InvalidArgumentError(f"The transaction was {done}: begin another.")
        return self.details()

    # Offsets

    def commit_offsets(
        self, member: CommittingMember, positions: tuple[Position, ...] | None
    ) -> None:
        """Adds positions of a member; the last of each partition counts."""
        offsets = member.offsets_for_commit(positions)
        key = (offsets.group, offsets.member)
        before = () if key not in self._offsets else self._offsets[key].positions
        tps = {(p.topic, p.partition): p for p in (*before, *offsets.positions)}
        self._offsets[key] = msgspec.structs.replace(offsets, positions=tuple(tps.values()))
        self._members[key] = member

    # The end

    def committing(self, id: str, tickets: Iterable[str]) -> CommitTransaction:
        """The request to commit it, when all is staged. Raises if a member has lost a partition
        since its positions were added: it may have come back since."""
        begun = self.check_unfinished()
        for key, member in self._members.items():
            member.offsets_for_commit(self._offsets[key].positions)
        offsets = tuple(self._offsets.values())
        return checked(CommitTransaction(begun.ticket, id or begun.id, offsets, tuple(tickets)))

    def committed(self, payload: bytes) -> TransactionCommitted:
        """The broker's answer to `committing`."""
        self.result = decode(TransactionCommitted, payload)
        self.state = TransactionState.COMMITTED
        return self.result

    def aborting(self) -> AbortTransaction:
        """The request to take everything back. It counts as aborted from now on."""
        begun = self.check_unfinished()
        self.state = TransactionState.ABORTED
        return AbortTransaction(begun.ticket)

    def give_up(self) -> None:
        """There is no connection for the abort: the broker aborts it when its time runs out."""
        self.state = TransactionState.ABORTED
