"""A member of a group as a well-behaved client is one: it takes in what it is sent, each record
once and in order, commits what it is done with, and lets go when it is asked to."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.errors import FanlogError
from fanlog.format.batch import Batch
from fanlog.format.messages import Claim, Joined, JoinGroup, Position, Release, Revoke
from fanlog.model import Gap
from tests.broker.model.world import Place
from tests.broker.stage import Peer, Stage

GROUP = "g"
TARGET = "t.>"
SESSION_SECONDS = 10.0


class Reading(Protocol):
    """Who is told what consumers do; it knows what they may."""

    def granted(self, who: Consumer, place: Place, offset: int) -> None: ...
    def got(self, who: Consumer, place: Place, batch: Batch, offset: int) -> int:
        """Looks at a batch that came when `offset` was to be next; what is next now."""
        ...

    def missed(self, who: Consumer, gap: Gap) -> None: ...
    def has_committed(self, who: Consumer, positions: dict[Place, int]) -> None: ...


class Told:
    """Hears for a consumer what happens to it."""

    def __init__(self, consumer: Consumer) -> None:
        self.gap = consumer.gap
        self.joined = consumer.joined
        self.left = consumer.left
        self.notice = consumer.notice
        self.revoke = consumer.revoke
        self.ended = consumer.ended_with

    def busy(self) -> bool:
        return False


class Part(NamedTuple):
    """Where a consumer is in a partition: what it is done with, and what it has received."""

    done: int
    received: int


class Consumer(Peer):
    """`parts` is what it reads, `asked` what it is to let go of. Both it claims when it comes back
    on another connection."""

    def __init__(self, name: str, model: Reading, *, static: bool, slow: bool) -> None:
        super().__init__()
        self.name = name
        self.static = static
        self.slow = slow
        self.connected = False
        self.fenced: FanlogError | None = None
        self.epoch = 0
        # Until then a member that was lost has its membership, and what belongs to it.
        self.kept_until_us = 0
        self.numbers: dict[int, str] = {}
        self.parts: dict[Place, Part] = {}
        self.asked: dict[Place, int] = {}
        self.claims: dict[Place, int] = {}
        # The committed offsets that it knows of.
        self.known: dict[Place, int] = {}
        self.subscription: BrokerSubscription
        self.feed: BrokerSubscription | None = None
        self._model = model
        self._on: Stage

    @property
    def holds(self) -> set[Place]:
        return self.parts.keys() | self.asked.keys()

    def join(self, on: Stage, reset: str) -> None:
        """Joins, for the first time or again with what it had."""
        self._on, self.connected, self.blocked = on, True, False
        self.claims = self.asked | {place: p.received for place, p in self.parts.items()}
        wanted = JoinGroup(
            group=GROUP,
            member=self.name,
            target=TARGET,
            wildcard=True,
            reset=reset,  # type: ignore[arg-type]
            session_seconds=SESSION_SECONDS,
            static=self.static,
            epoch=self.epoch,
            claims=tuple(
                Claim(*place, at, on.core.epoch, committed=self.known[place])
                for place, at in self.claims.items()
            ),
        )
        try:
            self.subscription, self.epoch = on.core.groups.join(1, wanted, self, Told(self))
        except FanlogError as fault:
            self.ended_with(fault)
            return
        self.feed = self.subscription
        on.run()

    def disconnect(self) -> None:
        """What is on the way is lost, and so is what it was told."""
        self.connected = False
        self.taken = b""

    def forget(self) -> None:
        self.parts, self.asked, self.claims, self.known = {}, {}, {}, {}

    # What it is sent

    def receive(self) -> None:
        taken = self.batches
        self.taken = b""
        for batch in taken:
            place = (self.numbers[batch.header.topic], batch.header.partition)
            part = self.parts.get(place)
            if part is not None:
                received = self._model.got(self, place, batch, part.received)
                self.parts[place] = part._replace(received=received)

    def joined(self, joined: Joined) -> None:
        self.receive()
        self.numbers[joined.number] = joined.name
        for start in joined.starts:
            place, offset = (joined.name, start.partition), start.offset
            self._model.granted(self, place, offset)
            claim = self.claims.pop(place, None)
            # What was received before is still to be done, if it goes on behind it.
            known = self.parts.get(place)
            done = known.done if known is not None and claim == offset else offset
            self.asked.pop(place, None)
            self.parts[place] = Part(done, offset)
            self.known.setdefault(place, offset)

    def gap(self, gap: Gap, number: int) -> None:
        self.receive()
        self._model.missed(self, gap)
        place = (gap.topic, gap.partition)
        part = self.parts.get(place)
        if part is not None:
            done = gap.next if part.done == part.received else part.done
            self.parts[place] = Part(done, gap.next)

    def revoke(self, revoke: Revoke) -> None:
        self.receive()
        for partition in revoke.partitions:
            place = (revoke.topic, partition)
            part = self.parts.pop(place, None)
            self.claims.pop(place, None)
            if revoke.lost:
                self.asked.pop(place, None)
                self.known.pop(place, None)
                continue
            if part is not None:
                self.asked[place] = part.done
            if not self.slow:
                self._on.runtime.soon(lambda place=place: self.let_go(place))
        if revoke.lost:
            known = Release(revoke.topic, revoke.partitions, lost=True)
            self._on.runtime.soon(lambda: self._say(known))

    def _say(self, known: Release) -> None:
        """That it knows what it has lost."""
        if self.connected:
            self._on.core.groups.release(self.subscription, known)

    def ended_with(self, error: FanlogError) -> None:
        self.fenced = error
        self.disconnect()
        self.forget()

    # What it does

    def let_go(self, place: Place) -> None:
        """Commits what it is done with, and releases."""
        if self.connected and place in self.asked:
            self.commit({place: self.asked.pop(place)})
            self._on.core.groups.release(self.subscription, Release(place[0], (place[1],)))
            self.known.pop(place, None)

    def commit(self, positions: dict[Place, int]) -> None:
        epoch = self._on.core.epoch
        wanted = tuple(Position(*place, offset, epoch) for place, offset in positions.items())
        self._on.core.groups.commit_offsets(self.subscription, wanted)
        self.known |= positions
        self._model.has_committed(self, positions)
