"""A reign: the time of one primary. It sends the stream to the followers, and says what is
committed.

Law: nothing is committed before every incarnation has it that the primary waits for. Who that is
comes from outside (`set_needed`), and contains the in-sync set at all times."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection
from typing import cast

from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.messages.stream import StreamTurn
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import FollowerPort, Runtime
from fanlog.cluster.committed_position import committed
from fanlog.cluster.follower_link import FollowerLink, FollowerOutlet, ReignState
from fanlog.cluster.records import nodes_of
from fanlog.cluster.rounds import Rounds
from fanlog.cluster.views import AckedPositions, FollowerReport
from fanlog.errors import FanlogError, InvalidArgumentError, NotSupportedError, UnavailableError
from fanlog.format.replication import Follow, Followed

logger = logging.getLogger("fanlog.cluster")


class Reign:
    """The implementation of `Replicas` and `Followers`. The owner sets `core` before the broker
    loads its folder. `on_change` is called when a decision is needed soon.

    It has many fields, because all that stops or delays a commit is here: the in-sync set, its
    progress, and why a reign holds or is over."""

    core: BrokerCore

    def __init__(
        self,
        runtime: Runtime,
        cluster: str,
        epoch: int,
        incarnation: str,
        needed: Collection[str],
        *,
        min_in_sync: int = 1,
        forced: bool = False,
    ) -> None:
        self.runtime = runtime
        self.epoch = epoch
        self.incarnation = incarnation
        # Why it is over; None while it lasts.
        self.over: FanlogError | None = None
        # A higher epoch that a peer has named.
        self.epoch_heard = epoch
        # Why nothing may be appended; None if it may.
        self.refusal: FanlogError | None = None
        self.on_change: Callable[[], None] = _nothing
        self._cluster = cluster
        # Nothing is committed for a moment: another node may be about to become the primary.
        self.suspended = False
        # Publishers are not read for a moment, so that followers get level.
        self.holding = False
        self._needed = frozenset(needed)
        self._min_in_sync = min_in_sync
        # An operator has begun it.
        self._forced = forced
        # When each follower last got further.
        self._advanced: dict[str, float] = {}
        self._waiting_since: float | None = None
        self._progress: dict[str, AckedPositions] = {incarnation: AckedPositions(0, 0)}
        self._links: dict[FollowerOutlet, FollowerLink] = {}
        self._position = 0
        self._committed = AckedPositions(0, 0)
        self._rounds = Rounds()

    # The broker's `Replicas`

    def maybe_refusal(self) -> FanlogError | None:
        return self.over or self.refusal

    def holds_up(self) -> bool:
        return self.holding

    def send(self, turn: StreamTurn) -> None:
        if self._rounds.wanted:
            # This turn's frames ask.
            self._rounds.begin()
        self._position = turn.position
        own = self._progress[self.incarnation]
        self._progress[self.incarnation] = AckedPositions(turn.position, own.synced)
        if self._waiting_since is None:
            self._waiting_since = self._now()
        for link in list(self._links.values()):
            link.send(turn)
        self._advance()
        self._confirm()

    def synced(self, position: int) -> None:
        own = self._progress[self.incarnation]
        if position > own.synced:
            self._progress[self.incarnation] = AckedPositions(own.written, position)
            self._advance()

    def failed(self, fault: FanlogError) -> None:
        self.end(UnavailableError(f"This node's disk has failed: {fault}"))

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        if self.over is None:
            self._rounds.wait(resume)

    def ask(self) -> None:
        if self._rounds.wanted:
            self.tick()
            self._confirm()

    def _confirm(self) -> None:
        """Resumes those whose round is answered by all of the in-sync set."""
        if self.over is not None or self.suspended or not self._rounds.awaited:
            return
        others = self._needed - {self.incarnation}
        answers = {link.incarnation: link.applied.beat for link in self._links.values()}
        newest = min((answers.get(one, 0) for one in others), default=self._rounds.newest)
        for resume in self._rounds.answered(newest):
            self.runtime.soon(resume)

    def tombstones_end(self, partition: Partition) -> int:
        passed = (link.tombstones_end(partition) for link in self._links.values())
        return min(passed, default=sys.maxsize)

    # What is committed

    @property
    def needed(self) -> frozenset[str]:
        """The incarnations that it waits for."""
        return self._needed

    @property
    def has_only_copy(self) -> bool:
        """An operator has chosen this copy, and nobody else has all of it yet."""
        return self._forced and self._needed <= {self.incarnation}

    def set_needed(self, needed: Collection[str], min_in_sync: int) -> None:
        """Waits for these incarnations from now on."""
        self._needed, self._min_in_sync = frozenset(needed), min_in_sync
        too_few = len(nodes_of(self._needed)) < min_in_sync
        self.refusal = None
        if too_few:
            self.refusal = UnavailableError(
                f"{len(nodes_of(self._needed))} of {min_in_sync} replicas are in sync: the cluster "
                "stores nothing until more are. Try again."
            )
        self._advance()
        self._confirm()

    def resume_commits(self) -> None:
        """The other node has not become the primary."""
        self.suspended = self.holding = False
        self._advance()
        self._confirm()
        self.core.turns.relieve()

    def _advance(self) -> None:
        if self.over is not None or self.suspended:
            return
        found = committed(self._progress, self._needed, self._min_in_sync)
        known = self._committed
        if found.written > known.written or found.synced > known.synced:
            self._committed = AckedPositions(
                max(found.written, known.written), max(found.synced, known.synced)
            )
            self._waiting_since = self._now() if self.waits else None
            # No decision is due at once: that would be one for each publish.
            self.core.stream.advance(*self._committed)

    @property
    def state(self) -> ReignState:
        return ReignState(self.epoch, self._position, *self._committed, self._rounds.newest)

    @property
    def committed(self) -> AckedPositions:
        return self._committed

    @property
    def end_position(self) -> AckedPositions:
        """The newest position."""
        return AckedPositions(self._position, self._position)

    @property
    def waiting_since(self) -> float | None:
        """Since when something waits to be committed; None: nothing does."""
        return self._waiting_since

    def _now(self) -> float:
        return self.runtime.monotonic_us() / 1e6

    @property
    def waits(self) -> bool:
        """Whether something is not committed."""
        return self._committed.synced < self._position or self._committed.written < self._position

    def end(self, why: FanlogError) -> None:
        """Nothing is committed any more."""
        if self.over is None:
            self.over = why
            self.core.deposed = True
            logger.warning("The reign of epoch %d is over: %s", self.epoch, why)
            self.on_change()

    def hear_epoch(self, epoch: int) -> None:
        """A peer has named an epoch. A higher one ends this reign."""
        if epoch > self.epoch:
            self.epoch_heard = max(epoch, self.epoch_heard)
            self.end(UnavailableError("Another node is the primary now. Try again there."))

    # The broker's `Followers`

    def follow(self, wanted: Follow, outlet: object) -> tuple[Followed, FollowerPort]:
        if wanted.cluster != self._cluster:
            raise InvalidArgumentError(
                f"The node {wanted.node} belongs to the cluster {wanted.cluster!r}, and this one "
                f"to {self._cluster!r}. Check the settings of both."
            )
        self.hear_epoch(wanted.epoch)
        if self.over is not None:
            raise self.over
        if not hasattr(outlet, "stream"):
            raise NotSupportedError("Only a node with a connection of its own can follow.")
        connection = cast("FollowerOutlet", outlet)
        for link in list(self._links.values()):
            if link.node == wanted.node:
                link.evict(UnavailableError(f"The node {wanted.node} has connected again."))
        link = FollowerLink(self, connection, wanted.node, wanted.incarnation)
        self._links[connection] = link
        self.on_change()
        logger.info("The node %s follows, as %s.", wanted.node, wanted.incarnation)
        history, restored_from = self.core.history
        return Followed(self.epoch, history, restored_from), link

    def resume(self, outlet: object) -> None:
        link = self._links.get(cast("FollowerOutlet", outlet))
        if link is not None:
            link.resume()

    # What links need

    def topics(self) -> list[BrokerTopic]:
        return [topic for topic in self.core.catalog if topic.stored.folder]

    def find_partition(self, topic: int, partition: int) -> Partition | None:
        return self.core.catalog.find_partition(topic, partition)

    def heard(self, link: FollowerLink) -> None:
        applied = link.applied
        self.hear_epoch(applied.epoch)
        if applied.epoch != self.epoch:
            return
        self._confirm()
        known = self._progress.get(link.incarnation, AckedPositions(0, 0))
        found = AckedPositions(
            max(known.written, min(applied.written, self._position)),
            max(known.synced, min(applied.synced, self._position)),
        )
        if found != known:
            self._progress[link.incarnation] = found
            self._advanced[link.incarnation] = self._now()
            self._advance()

    def gone(self, link: FollowerLink) -> None:
        for outlet, known in list(self._links.items()):
            if known is link:
                del self._links[outlet]
        logger.info("The node %s no longer follows.", link.node)
        self.on_change()

    # Time

    def tick(self) -> None:
        """Sends heartbeats; the owner calls it several times a second."""
        self._rounds.begin()
        for link in list(self._links.values()):
            link.beat()

    def reports(self) -> tuple[FollowerReport, ...]:
        """The connected followers, for decisions."""
        return tuple(
            FollowerReport(
                incarnation=link.incarnation,
                level=link.is_level and link.applied.epoch == self.epoch,
                # What it has said on this connection: whoever connects again may have less.
                acked=AckedPositions(
                    min(link.applied.written, self._position),
                    min(link.applied.synced, self._position),
                ),
                acked_at=self._advanced.get(link.incarnation, 0.0),
            )
            for link in self._links.values()
        )

    def behind_bytes(self) -> dict[str, int]:
        """About how much each connected follower lacks, by incarnation."""
        return {link.incarnation: link.behind_bytes for link in self._links.values()}


def _nothing() -> None:
    pass
