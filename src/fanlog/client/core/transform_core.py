"""A transformation without I/O: which messages share a transaction, when it ends, and what follows
when it fails. `transactions/transform.py` reads, calls the function and publishes.

Law: the positions that an attempt commits are those of the messages whose results it has, and of
nothing else. A partition goes to another member only when the attempt that has messages of it is
over.
"""

from __future__ import annotations

from collections.abc import Iterable

from fanlog.client.core.transaction_core import MemberAtStart, ReadingMember, position_after
from fanlog.client.message import Message
from fanlog.errors import FencedError, InvalidArgumentError, TransactionNotFoundError
from fanlog.format.messages import Position
from fanlog.format.patterns import fits
from fanlog.model import TopicPartition

# How often `until` is called while no message comes.
_LOOK_SECONDS = 0.1
# After them the work is done again from the last transaction commit.
REPEATED = (FencedError, TransactionNotFoundError)


def check_target(source: str, target: str) -> None:
    """Raises if the results would be read again."""
    if fits(target, source):
        raise InvalidArgumentError(
            f"The source {source!r} includes {target!r}: results would be read again, without end. "
            "Choose another target."
        )


def first_wait_seconds(now: float, idle_at: float | None, *, looks: bool) -> float | None:
    """How long to wait for the first message of an attempt; None: until it comes, and 0: no longer.
    At `idle_at` it has been quiet for long enough. `looks`: somebody wants to be asked in between
    whether it is enough."""
    wait_seconds = _LOOK_SECONDS if looks else None
    if idle_at is None:
        return wait_seconds
    left_seconds = max(0.0, idle_at - now)
    return left_seconds if wait_seconds is None else min(left_seconds, wait_seconds)


class TransformAttempt:
    """One transaction: some messages, their results, and the group's new offsets. It begins with a
    first message."""

    __slots__ = ("_hurried", "_in_hand", "_records_max", "_taken", "count", "member")

    def __init__(self, member: ReadingMember, first: Message, records_max: int) -> None:
        # Whose offsets are committed: this membership's, and no later one's.
        self.member = MemberAtStart(member)
        # Messages whose results it has.
        self.count = 0
        self._records_max = records_max
        self._taken: dict[TopicPartition, Position] = {}
        self._hurried = False
        self.take(first)

    def take(self, message: Message) -> None:
        """The function processes this message now."""
        self._in_hand = TopicPartition(message.topic, message.partition)
        self.member.reads(self._in_hand)

    def finish(self, message: Message) -> None:
        """The results of the message in hand are staged."""
        self._taken[self._in_hand] = position_after(message)
        self.count += 1

    @property
    def is_full(self) -> bool:
        """Whether it takes no more messages."""
        return self._hurried or self.count >= self._records_max

    def hurry_for(self, tps: Iterable[TopicPartition]) -> bool:
        """These partitions go to other members. Whether they wait for this attempt, which takes no
        more messages then."""
        concerned = not (self._taken.keys() | {self._in_hand}).isdisjoint(tps)
        self._hurried = self._hurried or concerned
        return concerned

    @property
    def positions(self) -> tuple[Position, ...]:
        """Where the group continues once it is committed."""
        return tuple(self._taken.values())
