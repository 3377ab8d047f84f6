"""A Fanlog broker as the upstream of an edge: one connection, with one subscription for each topic
or pattern that is followed here, for any number of readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from fanlog.broker.messages.loader import BlockDone
from fanlog.broker.messages.topics import Partition
from fanlog.broker.names import check_target
from fanlog.client.aio import Client
from fanlog.config import EdgeOptions
from fanlog.edge.core import EdgeCore
from fanlog.edge.feeder import Feeder
from fanlog.edge.mirror import mirror_log
from fanlog.edge.references import References, TopicReference
from fanlog.errors import (
    ClosedError,
    DamagedError,
    FanlogError,
    LinkError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from fanlog.format import messages
from fanlog.format.batch import check_batch, split_batches
from fanlog.format.frames import FETCHED_HEAD, FrameKind
from fanlog.log.partition import Block
from fanlog.model import Start

logger = logging.getLogger("fanlog.edge")

_BLOCK_BYTES = 256 * 1024
# The wait after a failed attempt.
_PAUSE_SECONDS = 0.2
# The longest wait of a new reader for messages published before it came.
_LEVEL_SECONDS = 2.0


class FanlogUpstream:
    """Answers the requests of an edge's core from a Fanlog broker."""

    def __init__(self, core: EdgeCore, client: Client, options: EdgeOptions) -> None:
        self._core = core
        self._client = client
        self._references = References(self._begin, self._finish, options.linger_seconds)
        self._feeders: dict[TopicReference, Feeder] = {}
        self._fetches = asyncio.Semaphore(options.fetches_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._level: asyncio.Task[None] | None = None
        self._closed = False

    # Following

    async def follow(self, target: str, wildcard: bool) -> None:
        check_target(target, wildcard=wildcard)
        if await self._references.follow(TopicReference(target, wildcard)):
            try:
                await self._levelled()
            except BaseException:
                self.unfollow(target, wildcard)
                raise

    def hold(self, target: TopicReference) -> bool:
        """The same at once, for a followed target. False if it is not followed."""
        return self._references.hold(target)

    def unfollow(self, target: str, wildcard: bool) -> None:
        self._references.unfollow(TopicReference(target, wildcard))

    async def _begin(self, target: TopicReference) -> None:
        feeder = self._feeders[target] = Feeder(
            self._core.mirror,
            self._client.take_number(),
            target.name,
            wildcard=target.wildcard,
            greeted=self.greeted,
            ended=self._feeder_ended,
            many=lambda feeder: self._in_task(self._look_for_missing(feeder)),
        )
        await self._client.attach(feeder)

    def _finish(self, target: TopicReference) -> None:
        """No reader has come back: unsubscribes upstream."""
        feeder = self._feeders.pop(target, None)
        if feeder is not None:
            self._core.mirror.let_go(feeder)
            self._in_task(self._client.detach(feeder))

    def _feeder_ended(self, feeder: Feeder, error: FanlogError) -> None:
        """Upstream has ended a subscription that readers here still need: subscribes again."""
        if not self._closed and not isinstance(error, ClosedError):
            logger.warning("%s is not followed upstream for now: %s", feeder.target, error)
            self._in_task(self._attach_again(feeder))

    async def _attach_again(self, feeder: Feeder) -> None:
        target = TopicReference(feeder.target, feeder.wildcard)
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            if self._feeders.get(target) is not feeder:
                return
            try:
                await self._client.attach(feeder)
                return
            except FanlogError as fault:
                logger.info("%s is not followed yet: %s", feeder.target, fault)

    async def _look_for_missing(self, feeder: Feeder) -> None:
        """Which of very many topics have gone during an outage: the answer did not say."""
        connection = self._core.mirror.connection
        try:
            topics = await self._client.topics(feeder.target)
        except FanlogError as fault:
            logger.info("the deleted topics of %s are not known yet: %s", feeder.target, fault)
            return
        if self._core.mirror.connection is connection:
            self._core.mirror.missing(feeder, (topic.name for topic in topics))

    def greeted(self) -> None:
        """Upstream has identified itself since the last request."""
        welcome = self._client.welcome
        if welcome is not None:
            self._core.mirror.connection = welcome
            self._core.take_over(welcome.epoch, welcome.release)

    # Known positions of readers

    async def _levelled(self) -> None:
        """Returns when everything that upstream has sent up to now is here. Requests of one turn of
        the loop share one round trip. If upstream is away, readers get what the mirror has."""
        if not self._client.connected:
            return
        if self._level is None:
            self._level = asyncio.create_task(self._ask_level())
        await asyncio.shield(self._level)

    async def _ask_level(self) -> None:
        await asyncio.sleep(0)
        self._level = None
        try:
            async with asyncio.timeout(_LEVEL_SECONDS):
                await self._client.ask(FrameKind.PING, messages.Goodbye())
        except (TimeoutError, FanlogError) as fault:
            logger.debug("readers begin before upstream has answered: %s", fault)

    async def catch_up(self, wanted: messages.Subscribe) -> None:
        for position in wanted.resume or ():
            known = self._core.mirror.find(position.topic)
            if known is None or position.number not in (0, known.topic.number):
                continue
            if not 0 <= position.partition < len(known.topic.partitions):
                continue
            partition = known.topic.partitions[position.partition]
            if position.offset > partition.visible_end:
                await self._reach(partition, position.offset)

    async def _reach(self, partition: Partition, offset: int) -> None:
        """Waits until the mirrored partition reaches `offset`, if upstream has it."""
        ends = await self._ask_offsets(partition, Start("latest"))
        if offset > ends.get(partition.index, 0):
            return
        try:
            async with asyncio.timeout(_LEVEL_SECONDS):
                await self._core.reading.until_visible(partition, offset)
        except TimeoutError:
            # The mirror is far behind: its readers get the rest from upstream.
            self._core.mirror.skip(partition, offset)

    async def find_offset(self, partition: Partition, start: Start) -> int:
        log = mirror_log(partition)
        if start.kind == "offset":
            await self._reach(partition, start.value)
            return start.value
        found_here = await self._find_here(partition, start)
        if found_here is not None:
            return min(found_here, partition.visible_end)
        try:
            found = await self._ask_offsets(partition, start)
        except LinkError:
            if start.kind != "earliest":
                raise
            return log.start_offset
        offset = found.get(partition.index, 0)
        if start.kind == "earliest":
            log.begins_at = max(log.begins_at, offset)
        return min(offset, partition.visible_end)

    async def _find_here(self, partition: Partition, start: Start) -> int | None:
        """Where a start lies, if the own copy can tell."""
        copy, number = self._core.own_copy, partition.topic.number
        if copy is None or start.kind not in ("earliest", "time"):
            return None
        first = copy.start_of(number, partition.index)
        if self._core.copy_with(number, partition.index, first) is None:
            return None
        log = mirror_log(partition)
        log.begins_at = max(log.begins_at, first)
        if start.kind == "earliest":
            return log.begins_at
        return await copy.offset_at(number, partition.index, start.value)

    async def _ask_offsets(self, partition: Partition, start: Start) -> dict[int, int]:
        return await self._client.find_offsets(partition.topic.name, start)

    # History

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None:
        """Fetches batches from upstream that the mirror does not have, for as long as it takes: its
        readers stay. The answer is passed on."""

        async def read() -> None:
            result = await self._read_here(partition, offset, bytes_wanted)
            if result is None:
                async with self._fetches:
                    result = await self._fetch(partition, offset, max(bytes_wanted, _BLOCK_BYTES))
            done(result)

        self._in_task(read())

    async def _read_here(
        self, partition: Partition, offset: int, bytes_wanted: int
    ) -> Block | None:
        number = partition.topic.number
        copy = self._core.copy_with(number, partition.index, offset)
        if copy is None or partition.topic.deleted:
            return None
        found = await copy.read(number, partition.index, offset, bytes_wanted)
        if found is None:
            return None
        log = mirror_log(partition)
        log.begins_at = max(log.begins_at, found.start_offset)
        return _before(found.block, partition.visible_end)

    async def _fetch(self, partition: Partition, offset: int, size: int) -> Block | Exception:
        wanted = messages.Fetch(partition.topic.number, partition.index, offset, bytes_max=size)
        while True:
            if partition.topic.deleted:
                # After an outage another topic may have its number.
                return OffsetOutOfRangeError(f"{partition.name} is gone.")
            try:
                payload = await self._client.ask(FrameKind.FETCH, wanted)
                block = _maybe_block(payload, partition)
            except ClosedError as fault:
                return fault
            except (LinkError, RequestTimeoutError) as fault:
                logger.info("history of %s is requested again: %s", partition.name, fault)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except OffsetOutOfRangeError as fault:
                await self._learn_begin(partition)
                return fault
            except DamagedError as fault:
                return fault
            except (PartitionNotFoundError, TopicNotFoundError) as fault:
                # It was deleted, and that is on its way to us.
                await asyncio.sleep(_PAUSE_SECONDS)
                return OffsetOutOfRangeError(str(fault))
            except FanlogError as fault:
                return fault
            if block is not None:
                await self._core.reading.until_visible(partition, block.next_offset)
                return block
            # Upstream has lost batches that were here, and will report it.
            await asyncio.sleep(_PAUSE_SECONDS)
            return OffsetOutOfRangeError(f"{partition.name} has no offset {offset} upstream.")

    async def _learn_begin(self, partition: Partition) -> None:
        try:
            found = await self._client.find_offsets(partition.topic.name, "earliest")
        except FanlogError as fault:
            logger.info("where %s begins is not known: %s", partition.name, fault)
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        log = mirror_log(partition)
        log.begins_at = max(log.begins_at, found.get(partition.index, 0))

    # Life

    def _in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("the edge's own work failed", exc_info=fault)

    @property
    def subscriptions(self) -> int:
        """The number of partitions upstream."""
        return len(self._references)

    async def close(self) -> None:
        self._closed = True
        await self._references.close()
        for task in list(self._tasks):
            task.cancel()


def _before(block: Block, end: int) -> Block | None:
    """The batches of a block that begin before `end`: later ones come by themselves."""
    if block.next_offset <= end:
        return block
    at, next_offset = 0, -1
    for begin, header in split_batches(block.data):
        if header.base_offset >= end:
            break
        at, next_offset = begin + header.length, header.next_offset
    return Block(block.data[:at], block.base_offset, next_offset) if at else None


def _maybe_block(payload: bytes, partition: Partition) -> Block | None:
    """The batches of an answer that begin before the end of the mirror: later ones come by
    themselves. None if there are none."""
    view = memoryview(payload)[FETCHED_HEAD.size :]
    _, begins_at, _ = FETCHED_HEAD.unpack_from(payload)
    log = mirror_log(partition)
    log.begins_at = max(log.begins_at, begins_at)
    at, first, next_offset = 0, -1, -1
    while at < len(view):
        header = check_batch(view, at)
        if header.base_offset >= partition.visible_end:
            break
        first = header.base_offset if first < 0 else first
        next_offset = header.next_offset
        at += header.length
    return Block(view[:at], first, next_offset) if at else None
