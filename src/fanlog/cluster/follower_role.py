"""A node that is not the primary: a replica, a connection to the primary that comes back, and an
edge in front."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from fanlog.broker.ports import ClusterPort
from fanlog.client.address import parse_url
from fanlog.client.credentials import get_login
from fanlog.client.link import tcp_dial
from fanlog.cluster.copied_reads import CopiedReads
from fanlog.cluster.follower_session import FollowerSession
from fanlog.cluster.front import ClusterFront
from fanlog.cluster.records import NodeRecord
from fanlog.cluster.replica import Replica
from fanlog.config import ClientOptions, Config
from fanlog.errors import StorageError
from fanlog.format.replication import (
    Applied,
    Follow,
    Followed,
    ReplicaEnd,
    Replicated,
    ReplicaTopic,
)
from fanlog.node import LoopRuntime
from fanlog.release import VERSION

logger = logging.getLogger("fanlog.cluster")

# A node that is about to become the primary refuses followers for a moment: who waits long between
# two attempts makes everybody wait.
_BACKOFF_SECONDS = 0.05
_BACKOFF_SECONDS_MAX = 0.25
_LOOK_SECONDS = 1.0


class FollowerRole:
    """`open`, then `follow` the present primary, then `close`.

    `incomplete` notes durably that the copy is not whole, and `whole` that it is. A position is
    not acknowledged before that.

    It has many fields, because it owns the replica, the connection to the primary, and the front
    for clients, and each may end before the others."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        options: ClientOptions,
        *,
        cluster: str,
        incarnation: str,
        complete: bool,
        incomplete: Callable[[], None],
        whole: Callable[[], None],
        suspect: bool = False,
        searched: Callable[[], None] = lambda: None,
        front: bool = True,
    ) -> None:
        self._config = config
        self._options = options
        # The id of the cluster.
        self.cluster = cluster
        self._incarnation = incarnation
        self._whole = whole
        self._incomplete = incomplete
        self._is_whole = False
        self._runtime = LoopRuntime()
        self.replica = Replica(
            folder,
            config.log,
            self._runtime,
            self._not_whole,
            complete=complete,
            suspect=suspect,
            searched=searched,
            moved=self._moved,
        )
        self.reads = CopiedReads(
            self.replica.maybe_log, self._runtime, config.log.fetch_block_bytes
        )
        self._target: NodeRecord | None = None
        self._epoch = 0
        self._following: asyncio.Task[None] | None = None
        self._session: FollowerSession | None = None
        self._looking: asyncio.Task[None] | None = None
        self._with_front = front
        self._front: ClusterFront | None = None
        # What its own clients learn about the cluster.
        self.shown_to_clients: ClusterPort | None = None
        # Committed positions, and the epoch, as the primary says them.
        self.heard: Replicated | None = None
        self.epoch_heard = 0
        # Why there is no connection to the primary; empty if there is one.
        self.problem = "It has not connected yet."

    def open(self) -> None:
        """Recovers the folder. Blocks."""
        self.replica.open()
        self._looking = asyncio.create_task(self._look_for_room())

    async def _look_for_room(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.replica.tick()
            if self._is_whole and self._session is not None and self.replica.is_damaged:
                self._session.fail(StorageError("This copy has damage, and is repaired."))

    def _not_whole(self) -> None:
        self._is_whole = False
        self._incomplete()

    @property
    def target(self) -> NodeRecord | None:
        """The primary that it follows."""
        return self._target

    # Following

    async def follow(self, node: NodeRecord, epoch: int) -> None:
        """Follows this primary from now on."""
        self.epoch_heard = max(self.epoch_heard, epoch)
        known = self._target
        if known is not None and (known.incarnation, known.address, self._epoch) == (
            node.incarnation,
            node.address,
            epoch,
        ):
            return
        await self.leave(front=self._front is None)
        self._target, self._epoch = node, epoch
        self._following = asyncio.create_task(self._keep_following(node))
        if self._front is not None:
            self._front.turn_to(node)
        elif self._with_front:
            self._front = ClusterFront(
                node,
                self._config,
                self._options,
                cluster=self.shown_to_clients,
                own_copy=self.reads,
            )

    async def _keep_following(self, node: NodeRecord) -> None:
        address = parse_url(node.address)
        backoff_seconds = _BACKOFF_SECONDS
        logged = ""
        while True:
            session = self._session = FollowerSession(
                self,
                tcp_dial(address, self._options),
                Follow(
                    self.cluster,
                    self._config.cluster.node_id,
                    self._incarnation,
                    self.epoch_heard,
                    VERSION,
                ),
                lambda: get_login(self._options),
                self._on_heard,
            )
            self.problem = "It is connecting to its primary."
            why = await session.run()
            self._session = None
            self.reads.lost()
            self.problem = str(why)
            if session.level:
                backoff_seconds, logged = _BACKOFF_SECONDS, ""
            if self.problem != logged:
                logged = self.problem
                logger.warning("The connection to the primary %s is lost: %s", node.node, why)
            await asyncio.sleep(backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, _BACKOFF_SECONDS_MAX)

    def _on_heard(self, sent: Replicated) -> None:
        self.heard = sent
        self.reads.heard(sent)
        self.problem = ""

    async def leave(self, *, front: bool = True) -> None:
        """Nothing more is taken from the primary that it followed. With `front` its ports close,
        too; otherwise clients wait there for the next primary."""
        task, self._following = self._following, None
        self._target = None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._session = None
        self.reads.lost()
        if front and self._front is not None:
            closing, self._front = self._front, None
            await closing.close()

    async def close(self, *, clean: bool = True) -> None:
        """Releases the folder."""
        await self.leave()
        if self._looking is not None:
            self._looking.cancel()
        await self.reads.pause()
        self.replica.close(clean=clean)
        self._runtime.close()

    # The session's `ReplicaPort`

    async def adopt(
        self, followed: Followed, topics: Sequence[ReplicaTopic]
    ) -> Sequence[ReplicaEnd]:
        await self.reads.pause()
        ends = await self.replica.adopt(followed, topics)
        self.reads.begin(followed.epoch, topics, ends)
        return ends

    def apply(self, sent: Replicated) -> None:
        self.replica.apply(sent)

    @property
    def applied(self) -> Applied:
        """How far it is: nowhere before the copy is whole."""
        applied = self.replica.applied
        return applied if self._is_whole else applied._replace(written=0, synced=0)

    @property
    def unsynced_position(self) -> int:
        return self.replica.unsynced_position

    def _moved(self) -> None:
        session = self._session
        if self.replica.synced and not self._is_whole:
            # From here on it is a copy up to some point, and nothing else.
            try:
                self._whole()
            except StorageError as fault:
                # The mark can't be written: it acknowledges nothing, and tries again.
                if session is not None:
                    session.fail(fault)
                return
            self._is_whole = True
        if session is None:
            return
        failure = self.replica.failure
        if failure is not None:
            session.fail(failure)
        else:
            session.report()
