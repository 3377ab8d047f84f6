"""A node as the primary: a broker over the folder, in the epoch of its reign.

It opens in two steps. First followers may connect, and the reign's first record goes through the
stream. When that is committed, everything before it is, and clients are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from fanlog.broker.broker_core import BrokerCore
from fanlog.cluster.damage import accept_losses, first_damage, others_have_it
from fanlog.cluster.reign import Reign
from fanlog.config import Config
from fanlog.errors import FanlogError
from fanlog.format.batch import encode_batch
from fanlog.log.damage import LOST, damaged_error
from fanlog.model import INTERNAL_PREFIX, DamagedRange, TopicSettings
from fanlog.node import LoopRuntime, Node

logger = logging.getLogger("fanlog.cluster")

REIGNS_TOPIC = INTERNAL_PREFIX + "reigns"
_REIGNS_SETTINGS = TopicSettings(durability="fsync", retention_seconds=0, segment_bytes=1 << 20)
_BEAT_SECONDS = 0.2
_OPENING = (
    "This node is about to become the primary: some replicas have not confirmed it yet. Try again."
)


class PrimaryNode(Node):
    """A broker whose stream has followers."""

    def __init__(self, folder: Path, config: Config, reign: Reign, runtime: LoopRuntime) -> None:
        super().__init__(folder, config, runtime, epoch=reign.epoch, replicas=reign)
        self._reign = reign
        self._store.read_damage_as(self._damaged)

    def _damaged(self, damaged: DamagedRange) -> FanlogError:
        """What readers of damage get, in any thread."""
        if self._reign.has_only_copy:
            # At once: a follower leaves these records out, and may be in sync before the next look.
            self._runtime.post(self._lose)
            return damaged_error(damaged)
        return damaged_error(damaged) if damaged.reason in LOST else others_have_it(damaged)

    def _lose(self) -> None:
        """Readers were told that what is damaged here is lost."""
        if self._reign.over is None:
            accept_losses(self._store)

    def look_at_damage(self) -> None:
        """Damage of the only copy is a loss, and nothing waits for its repair."""
        if self._reign.has_only_copy:
            accept_losses(self._store)

    @property
    def is_full(self) -> bool:
        """Whether its disk was full, and has no room yet."""
        return self._store.reserve.full

    @property
    def sync_failed(self) -> bool:
        """Whether a sync has failed: then nobody knows what is on the disk."""
        return self._group is not None and self._group.failure is not None

    @property
    def is_damaged(self) -> bool:
        """Whether it has found damage that other nodes may not have."""
        return bool(first_damage(self._store))

    async def release(self) -> None:
        """Releases the folder and the ports, however far a start or a stop has come."""
        try:
            await self.stop(0.0)
        except Exception:
            logger.debug("a node that had not started is released", exc_info=True)
            for task in self._tasks:
                task.cancel()
            for listener in self.listeners:
                await listener.close()
            self._runtime.close()
            self._store.close()

    def _make_core(self, defaults: TopicSettings) -> BrokerCore:
        core = super()._make_core(defaults)
        core.followers = self._reign
        core.opening = _OPENING
        self._reign.core = core
        return core


class PrimaryRole:
    """`open`, then `close`. `on_change` is called when a decision may be due."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        *,
        cluster: str,
        epoch: int,
        incarnation: str,
        needed: Collection[str],
        min_in_sync: int,
        forced: bool,
        on_change: Callable[[], None],
    ) -> None:
        runtime = LoopRuntime()
        self.reign = Reign(
            runtime, cluster, epoch, incarnation, needed, min_in_sync=min_in_sync, forced=forced
        )
        self.reign.on_change = on_change
        self.node = PrimaryNode(folder, config, self.reign, runtime)
        # Whether clients are served.
        self.serving = False
        # Whether the audit log has the forced reign of the record.
        self.forced_is_noted = False
        self._config = config
        self._beats: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        # Called when clients are served.
        self.on_serving: Callable[[PrimaryRole], None] = lambda role: None

    def open(self) -> None:
        """Recovers the folder. Blocks."""
        self.node.start()
        self.node.look_at_damage()
        reign, core = self.reign, self.node.core
        self._write_reign(core)
        self.node.listen()
        self._beats = asyncio.create_task(self._beat())
        core.internal.when_durable(self._opened)
        logger.info("The reign of epoch %d begins, as %s.", reign.epoch, reign.incarnation)

    def _write_reign(self, core: BrokerCore) -> None:
        partition = core.internal.make_kept(REIGNS_TOPIC, _REIGNS_SETTINGS)
        reign = self.reign
        batch = encode_batch([reign.incarnation.encode()], keys=[str(reign.epoch).encode()])
        core.internal.write_internal(partition, batch, None)

    def _opened(self, fault: FanlogError | None) -> None:
        """Everything in the folder is on all replicas that count."""
        if fault is not None or self.reign.over is not None:
            return
        self.node.core.opening = ""
        self._listening = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        for port, listen in (
            (self._config.redis.port, self._listen_redis),
            (self._config.web.port, self.node.listen_web),
        ):
            if port >= 0:
                try:
                    await listen()
                except FanlogError as fault:
                    logger.error("A port can't be opened: %s", fault)
        self.serving = True
        self.on_serving(self)
        logger.info("Clients are served in the reign of epoch %d.", self.reign.epoch)

    async def _listen_redis(self) -> None:
        self.node.listen_redis()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            self.node.look_at_damage()
            self.reign.tick()

    async def close(self, *, at_once: bool) -> None:
        """Ends the reign, and releases the folder. `at_once`: nothing that waits is answered any
        more, because nothing of it will be committed."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        try:
            await self.node.stop(0.0 if at_once else None)
        except Exception:
            # The folder has to be free for what comes next.
            logger.exception("a reign could not end properly")
            await self.node.release()
        if self._beats is not None:
            self._beats.cancel()
