"""Members of a group on a stage: what each was told, and what it says."""

from __future__ import annotations

from typing import Any

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.errors import FanlogError
from fanlog.format.messages import Claim, JoinGroup, Position, Release, Revoke, Seek
from fanlog.model import Start
from tests.broker.stage import Peer, Stage

Place = tuple[str, int]
SECOND_US = 1_000_000


class Told:
    """Hands on to a member what it is told."""

    def __init__(self, member: Member) -> None:
        self.gap = member.gap
        self.joined = member.joined
        self.left = member.left
        self.notice = member.notice
        self.revoke = member.revoke
        self.ended = member.evicted
        self.busy = lambda: member.busy


class Member(Peer):
    """A member and all that it was told. It lets go at once unless it is `slow`."""

    def __init__(self, on: Stage, name: str, *, group: str = "g", slow: bool = False) -> None:
        super().__init__()
        self.on = on
        self.name = name
        self.group = group
        self.slow = slow
        self.busy = False
        self.epoch = 0
        self.has: dict[Place, int] = {}
        # The committed offsets that it knows of, as claims have them.
        self.known: dict[Place, int] = {}
        self.claimed: set[Place] = set()
        self.asked: list[Place] = []
        self.lost_places: list[Place] = []
        self.evicted_with: FanlogError | None = None
        self.subscription: BrokerSubscription

    def join(self, target: str = "t", **wanted: Any) -> Member:
        given: dict[str, Any] = {"reset": "earliest", "epoch": self.epoch} | wanted
        request = JoinGroup(
            group=self.group, member=self.name, target=target, wildcard=">" in target, **given
        )
        self.subscription, self.epoch = self.on.core.groups.join(1, request, self, Told(self))
        self.feed: BrokerSubscription | None = self.subscription
        self.on.run()
        return self

    def lose(self) -> None:
        self.on.core.groups.lost(self.subscription)
        self.on.run()

    def leave(self) -> None:
        self.on.core.groups.leave(self.subscription)
        self.on.run()

    def come_back(self, **wanted: Any) -> Member:
        epoch = self.on.core.epoch
        claims = tuple(
            Claim(*place, at, epoch, committed=self.known[place]) for place, at in self.has.items()
        )
        self.claimed, self.has = set(self.has), {}
        return self.join(claims=claims, **wanted)

    def commit(self, offset: int, partition: int = 0, topic: str = "t") -> None:
        position = Position(topic, partition, offset, self.on.core.epoch)
        self.on.core.groups.commit_offsets(self.subscription, (position,))
        self.known[topic, partition] = offset

    def release(self, *partitions: int, topic: str = "t") -> None:
        self.on.core.groups.release(self.subscription, Release(topic, partitions))
        self.on.run()

    def acknowledge(self, revoke: Revoke) -> None:
        """Says that it knows what it has lost."""
        known = Release(revoke.topic, revoke.partitions, lost=True)
        self.on.runtime.soon(lambda: self.on.core.groups.release(self.subscription, known))

    async def seek(self, start: Start, **wanted: Any) -> tuple[Position, ...]:
        moved = await self.on.core.groups.seek(self.subscription, Seek(start=start, **wanted))
        self.on.run()
        return moved

    @property
    def partitions(self) -> list[int]:
        return sorted(partition for _, partition in self.has)

    def joined(self, joined: Any) -> None:
        super().joined(joined)
        for start in joined.starts:
            self.has[joined.name, start.partition] = start.offset
            if (joined.name, start.partition) not in self.claimed:
                self.known[joined.name, start.partition] = start.offset

    def left(self, number: int, name: str) -> None:
        super().left(number, name)
        self.has = {place: at for place, at in self.has.items() if place[0] != name}

    def revoke(self, revoke: Revoke) -> None:
        places = [(revoke.topic, partition) for partition in revoke.partitions]
        for place in places:
            self.has.pop(place, None)
            self.claimed.discard(place)
        if revoke.lost:
            self.lost_places += places
            if not self.slow:
                self.acknowledge(revoke)
        else:
            self.asked += places
            if not self.slow:
                release = Release(revoke.topic, revoke.partitions)
                self.on.runtime.soon(
                    lambda: self.on.core.groups.release(self.subscription, release)
                )

    def evicted(self, error: FanlogError) -> None:
        self.evicted_with = error


def later(on: Stage, seconds: float) -> None:
    """Time passes, and the broker looks at its clock."""
    on.runtime.time_us += int(seconds * SECOND_US)
    on.core.tick()
    on.run()
