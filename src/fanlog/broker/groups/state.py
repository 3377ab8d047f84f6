"""A consumer group as the broker holds it: its members, and the partitions that each has. Plain
state; `groups.py` moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fanlog.broker.ports import Reader
from fanlog.errors import FanlogError
from fanlog.format.messages import JoinGroup, Position, Revoke
from fanlog.model import GROUP_PREFIX, ResetPolicy, TopicPartition

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import BrokerSubscription, Cursor

SECOND_US = 1_000_000


class MemberReader(Reader, Protocol):
    """Notifies a member of granted and revoked partitions."""

    def revoke(self, revoke: Revoke) -> None: ...
    def busy(self) -> bool:
        """Whether it has not taken earlier notifications."""
        ...

    def ended(self, error: FanlogError) -> None:
        """The member has lost its membership, and gets nothing more."""
        ...


class ConsumerMember:
    """`subscription` and `reader` are None while the member is away; it then has until
    `away_until_us`, by the monotonic clock, to come back. `epoch` is that of its
    membership: a client that takes it over gets a higher one, the same client that comes back keeps
    it. `losses` counts how often each partition was taken from it by force, until it confirms that
    it knows: what it commits there until then was read before the loss."""

    __slots__ = (
        "away_until_us",
        "client",
        "epoch",
        "id",
        "losses",
        "owned",
        "reader",
        "session_us",
        "static",
        "subscription",
        "target",
        "wildcard",
    )

    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.epoch = 0
        self.client = ""
        self.target = ""
        self.wildcard = False
        self.static = False
        self.session_us = 0
        self.away_until_us = 0
        self.subscription: BrokerSubscription | None = None
        self.reader: MemberReader | None = None
        self.owned: dict[TopicPartition, Ownership] = {}
        self.losses: dict[TopicPartition, int] = {}

    def sit_down(
        self, wanted: JoinGroup, epoch: int, subscription: BrokerSubscription, reader: MemberReader
    ) -> None:
        self.epoch = epoch
        self.target = wanted.target
        self.wildcard = wanted.wildcard
        self.static = wanted.static
        self.session_us = int(wanted.session_seconds * SECOND_US)
        self.subscription = subscription
        self.reader = reader
        # Everything over this connection is newer than what went before.
        self.losses = {}

    def acknowledge_loss(self, tp: TopicPartition) -> None:
        left = self.losses.pop(tp, 0) - 1
        if left > 0:
            self.losses[tp] = left


class Ownership:
    """A member's partition. Without a cursor it is not started yet: it starts at `begin`, which the
    member claimed, or at the committed position. `notified` is set when the member knows of it,
    `revoke_by_us` while it is being revoked."""

    __slots__ = ("begin", "cursor", "member", "notified", "revoke_by_us")

    def __init__(self, member: ConsumerMember) -> None:
        self.member = member
        self.begin: Position | None = None
        self.cursor: Cursor | None = None
        self.notified = False
        self.revoke_by_us = 0


class ConsumerGroup:
    """`fresh` has the topics that appeared while the group existed: all of their records are read.
    `ends` has the ends of older topics when the first member came. `unpinned` has start positions
    that could not be committed.

    `target` is the assignment by member id, unless it is `stale`. To get there, `moving` has
    partitions to revoke from their owners, `freed` partitions to grant, and `returned` members to
    start again; each with the time since when. Only `own`, `disown`, `revoke` change `owned`.
    """

    __slots__ = (
        "awaits_commits",
        "ends",
        "epoch",
        "freed",
        "fresh",
        "members",
        "moving",
        "name",
        "owned",
        "rebalances",
        "reset",
        "rests_until_us",
        "returned",
        "revoking",
        "stale",
        "target",
        "unpinned",
    )

    def __init__(self, name: str, reset: ResetPolicy) -> None:
        self.name = name
        self.reset: ResetPolicy = reset
        self.epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.owned: dict[TopicPartition, Ownership] = {}
        self.revoking: dict[TopicPartition, Ownership] = {}
        self.target: dict[TopicPartition, str] = {}
        self.stale = True
        self.moving: dict[TopicPartition, int] = {}
        self.freed: dict[TopicPartition, int] = {}
        self.returned: dict[ConsumerMember, int] = {}
        self.rests_until_us = 0
        self.fresh: set[str] = set()
        self.ends: dict[TopicPartition, int] = {}
        self.unpinned: dict[TopicPartition, Position] = {}
        self.rebalances = 0
        # Whether a partition is free, and a commit of its last owner has not taken effect.
        self.awaits_commits = False

    @property
    def offsets(self) -> str:
        """The durable name that the group commits under."""
        return GROUP_PREFIX + self.name

    def present(self) -> dict[str, ConsumerMember]:
        return {m.id: m for m in self.members.values() if m.subscription is not None}

    @property
    def anyone_away(self) -> bool:
        return any(member.subscription is None for member in self.members.values())

    @property
    def unsettled(self) -> bool:
        """Whether there is something left to do."""
        return bool(self.stale or self.moving or self.freed or self.returned)

    # Who has what

    def own(self, tp: TopicPartition, member: ConsumerMember) -> Ownership:
        owned = self.owned[tp] = member.owned[tp] = Ownership(member)
        return owned

    def disown(self, tp: TopicPartition) -> Ownership | None:
        owned = self.owned.pop(tp, None)
        if owned is not None:
            del owned.member.owned[tp]
            self.revoking.pop(tp, None)
        return owned

    def revoke(self, tp: TopicPartition, by_us: int) -> None:
        owned = self.revoking[tp] = self.owned[tp]
        owned.revoke_by_us = by_us
