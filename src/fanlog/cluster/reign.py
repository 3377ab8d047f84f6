"""A reign: the time of one primary. It sends the stream to the followers, and says what is
committed.

Law: nothing is committed before every incarnation has it that the primary waits for. Who that is
comes from outside (`set_needed`), and contains the in-sync set at all times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple, cast

from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.messages.stream import StreamTurn
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import FollowerPort, Runtime
from fanlog.cluster.committed import ReignState, ReplicaProgress, committed
from fanlog.cluster.follower_link import FollowerLink, FollowerOutlet
from fanlog.errors import FanlogError, InvalidArgumentError, NotSupportedError, UnavailableError
from fanlog.format.replication import Follow, Followed

logger = logging.getLogger("fanlog.cluster")


class FollowerState(NamedTuple):
    """A connected follower, for decisions and for people."""

    node: str
    incarnation: str
    level: bool
    written: int
    synced: int
    silent_us: int
    behind_bytes: int


class Reign:
    """The implementation of `Replicas` and `Followers`. The owner sets `core` before the broker
    loads its folder, and hears through `on_change` of anything that may need a decision."""

    core: BrokerCore

    def __init__(
        self,
        runtime: Runtime,
        cluster: str,
        epoch: int,
        incarnation: str,
        needed: Collection[str],
    ) -> None:
        self.runtime = runtime
        self.epoch = epoch
        self.incarnation = incarnation
        # Why it is over; None while it lasts.
        self.over: FanlogError | None = None
        # A higher epoch that somebody has named.
        self.epoch_heard = epoch
        # Why nothing may be appended; None if it may.
        self.refusal: FanlogError | None = None
        self.on_change: Callable[[], None] = _nothing
        self._cluster = cluster
        self._needed = frozenset(needed)
        self._progress: dict[str, ReplicaProgress] = {incarnation: ReplicaProgress(0, 0)}
        self._links: dict[FollowerOutlet, FollowerLink] = {}
        self._position = 0
        self._committed = ReplicaProgress(0, 0)
        self._beat = 0
        self._history = ("", "")

    # The broker's `Replicas`

    def maybe_refusal(self) -> FanlogError | None:
        return self.over or self.refusal

    def send(self, turn: StreamTurn) -> None:
        self._position = turn.position
        own = self._progress[self.incarnation]
        self._progress[self.incarnation] = ReplicaProgress(turn.position, own.synced)
        for link in list(self._links.values()):
            link.send(turn)
        self._commit()

    def synced(self, position: int) -> None:
        own = self._progress[self.incarnation]
        if position > own.synced:
            self._progress[self.incarnation] = ReplicaProgress(own.written, position)
            self._commit()

    def failed(self, fault: FanlogError) -> None:
        self.end(UnavailableError(f"This node's disk has failed: {fault}"))

    # What is committed

    @property
    def needed(self) -> frozenset[str]:
        """The incarnations that it waits for."""
        return self._needed

    def set_needed(self, needed: Collection[str]) -> None:
        """Waits for these incarnations from now on."""
        self._needed = frozenset(needed)
        self._commit()

    def _commit(self) -> None:
        if self.over is not None:
            return
        found = committed(self._progress, self._needed)
        known = self._committed
        if found.written > known.written or found.synced > known.synced:
            self._committed = ReplicaProgress(
                max(found.written, known.written), max(found.synced, known.synced)
            )
            self.core.stream.commit(*self._committed)

    @property
    def state(self) -> ReignState:
        return ReignState(self.epoch, self._position, *self._committed, self._beat)

    @property
    def waits(self) -> bool:
        """Whether something is not committed."""
        return self._committed.synced < self._position or self._committed.written < self._position

    def end(self, why: FanlogError) -> None:
        """Nothing is committed any more."""
        if self.over is None:
            self.over = why
            logger.warning("The reign of epoch %d is over: %s", self.epoch, why)
            self.on_change()

    def hear_epoch(self, epoch: int) -> None:
        """Somebody has heard of an epoch. A higher one ends this reign."""
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
        known = self._progress.get(link.incarnation, ReplicaProgress(0, 0))
        found = ReplicaProgress(
            max(known.written, min(applied.written, self._position)),
            max(known.synced, min(applied.synced, self._position)),
        )
        if found != known:
            self._progress[link.incarnation] = found
            self._commit()

    def gone(self, link: FollowerLink) -> None:
        for outlet, known in list(self._links.items()):
            if known is link:
                del self._links[outlet]
        logger.info("The node %s no longer follows.", link.node)
        self.on_change()

    # Time

    def tick(self) -> None:
        """Sends heartbeats; the owner calls it several times a second."""
        self._beat += 1
        for link in list(self._links.values()):
            link.beat()

    def followers(self) -> list[FollowerState]:
        """The connected followers."""
        now_us = self.runtime.monotonic_us()
        states: list[FollowerState] = []
        for link in self._links.values():
            progress = self._progress.get(link.incarnation, ReplicaProgress(0, 0))
            states.append(
                FollowerState(
                    link.node,
                    link.incarnation,
                    link.is_level,
                    progress.written,
                    progress.synced,
                    now_us - link.heard_us,
                    link.behind_bytes,
                )
            )
        return states


def _nothing() -> None:
    pass
