"""The broker: what listeners ask, answered from the catalog, the logs and the cursors. It
decides; bytes move in `intake`, `commits` and `fanout`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from fanlog.broker.catalog import Catalog, changed_settings
from fanlog.broker.commits import Commits, SyncGroup
from fanlog.broker.durable import CURSOR_SETTINGS, CURSOR_TOPIC, DurableNames
from fanlog.broker.fanout import FanOut
from fanlog.broker.intake import Intake
from fanlog.broker.loader import Loader
from fanlog.broker.names import check_public_name
from fanlog.broker.ports import Origin, Outlet, Runtime
from fanlog.broker.subscriptions import Subscriptions
from fanlog.broker.topics import Partition, Topic
from fanlog.broker.views import Renderer
from fanlog.config import BrokerOptions, LogOptions
from fanlog.errors import FanlogError, InvalidArgumentError, LimitError, TopicNotFoundError
from fanlog.format.batch import read_header, split_batches, stamp
from fanlog.format.messages import BrokerStatus, PartitionOffset, Position
from fanlog.log.store import LogStore
from fanlog.model import DURABLE_NAME_BYTES_MAX, Start, TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.broker")

T = TypeVar("T")


class Broker:
    """The core without a network. `node.py` builds it, listeners and the embedded API use it."""

    def __init__(
        self,
        store: LogStore,
        runtime: Runtime,
        *,
        release: str,
        options: BrokerOptions,
        log_options: LogOptions,
        topic_defaults: TopicSettings,
        sync_group: Callable[[], SyncGroup],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self.release = release
        self._options = options
        self._defaults = topic_defaults
        self._started_us = runtime.now_us()
        self._loader = Loader(runtime, log_options.read_cache_bytes)
        self.renderer = Renderer(options.view_cache_bytes)
        self.fan_out = FanOut(runtime, self._loader, self.renderer)
        self.commits = Commits(runtime, self.fan_out, sync_group, log_options.tail_total_bytes)
        self.catalog = Catalog(store, options)
        self.durable = DurableNames()
        self.subscriptions = Subscriptions(self)
        self._intake = Intake(self.catalog.partitions, self.commits, options, runtime.now_us)
        self._owed: list[bytes] = []
        self.connections = 0
        self.draining = False

    # What is on disk

    def load(self) -> None:
        """Takes in what the folder holds."""
        self.catalog.load(self._store.open())
        self._intake.epoch = self._store.epoch
        topic = self.catalog.find(CURSOR_TOPIC)
        if topic is not None:
            log = topic.partitions[0].log
            offset = log.start_offset
            while offset < log.end_offset:
                block = log.read(offset, log.end_offset)
                self.durable.replay(block.data)
                offset = block.next_offset

    def housekeeping(self) -> None:
        """Retention, and readers that chose to be cut off; called by the node every so often."""
        now_us = self._runtime.now_us()
        for topic in self.catalog:
            for partition in topic.partitions:
                tail_bytes = partition.log.tail.bytes
                try:
                    partition.log.retain(now_us)
                except FanlogError as fault:
                    logger.error("retention of %s failed: %s", topic.name, fault)
                self.commits.resized(partition, tail_bytes)

    def now_us(self) -> int:
        return self._runtime.now_us()

    @property
    def epoch(self) -> int:
        return self._store.epoch

    # Publishing

    def take(self, data: bytes, at: int, origin: Origin) -> int:
        """Takes whole batches from a publisher's bytes; see `Intake.take`."""
        self.commits.schedule()
        return self._intake.take(data, at, origin)

    def congested(self) -> bool:
        """Whether so much waits for the disk that publishers should not be read for now."""
        return self.commits.pending_bytes() > self._options.pending_bytes_pause

    # Topics

    def open_topic(self, name: str, *, create: bool) -> Topic:
        topic = self.catalog.find(name)
        if topic is not None:
            return topic
        if not create or not self._options.auto_create_topics:
            return self.catalog.get(name)
        return self.create_topic(name, {})

    def create_topic(
        self, name: str, settings: dict[str, int | str], *, exist_ok: bool = False
    ) -> Topic:
        """Creates a topic; a setting that is not given is this broker's default."""
        known = self.catalog.find(name)
        chosen = changed_settings(self._defaults, settings)
        topic = self.catalog.create(check_public_name(name), chosen, exist_ok=exist_ok)
        if topic is not known:
            self.subscriptions.topic_appeared(topic)
        return topic

    def delete_topic(self, name: str) -> None:
        topic = self.catalog.get(check_public_name(name))
        self.catalog.remove(topic)
        self.commits.turn()
        self.subscriptions.topic_vanished(topic)
        for partition in topic.partitions:
            self.commits.forget(partition)
            waiters, partition.waiters = partition.waiters, None
            for wake in waiters or ():
                wake()
        forgotten = self.durable.forget_topic(name)
        try:
            if forgotten is not None:
                self._append_internal(forgotten)
        except FanlogError as fault:
            assert forgotten is not None
            logger.warning("positions in %s are to be forgotten on disk later: %s", name, fault)
            self._owed.append(forgotten)
        finally:
            self._store.delete(topic.stored)

    def describe(self, name: str) -> TopicInfo:
        return self.catalog.get(name).info()

    def list_topics(self, pattern: str, *, internal: bool) -> list[TopicInfo]:
        return [topic.info() for topic in self.catalog.matching(pattern, internal=internal)]

    # Reading

    def resume(self, outlet: Outlet) -> None:
        self.fan_out.resume(outlet)

    def fetch(
        self,
        partition: Partition,
        offset: int,
        bytes_max: int,
        done: Callable[[list[memoryview] | FanlogError], None],
    ) -> None:
        """Hands the batches from `offset` on, as many as are there now, to `done`."""
        log = partition.log
        if partition.topic.deleted:
            done(TopicNotFoundError(f"Topic {partition.topic.name!r} was deleted."))
        elif offset >= partition.visible_end:
            done([])
        elif offset >= log.tail.start_offset:
            done(log.tail.read(offset, partition.visible_end, bytes_max)[0])
        else:
            self._loader.load(
                partition,
                offset,
                lambda got: done(
                    _as_fault(got) if isinstance(got, Exception) else [_within(got.data, bytes_max)]
                ),
            )

    def when_more(self, partition: Partition, wake: Callable[[], None]) -> None:
        """Calls `wake` once when more becomes visible, or the topic goes."""
        if partition.waiters is None:
            partition.waiters = {}
        partition.waiters[wake] = None

    def no_more(self, partition: Partition, wake: Callable[[], None]) -> None:
        """Takes back a `when_more`: who waited has gone, or waited long enough."""
        if partition.waiters is not None:
            partition.waiters.pop(wake, None)

    async def find_offset(self, partition: Partition, start: Start) -> int:
        """Where `start` lies in a partition."""
        log = partition.log
        if start.kind == "earliest":
            return log.start_offset
        if start.kind == "offset":
            if start.value < 0:
                raise InvalidArgumentError(f"An offset is 0 or more, not {start.value}.")
            return start.value
        if start.kind == "time":
            found = await self.threaded(lambda: log.offset_at(start.value))
            return min(found, partition.visible_end)
        return partition.visible_end

    async def find_offsets(self, name: str, start: Start) -> tuple[PartitionOffset, ...]:
        topic = self.catalog.get(name)
        return tuple(
            [PartitionOffset(p.index, await self.find_offset(p, start)) for p in topic.partitions]
        )

    # Durable names

    def commit_positions(self, name: str, positions: Iterable[Position]) -> None:
        wanted = tuple(positions)
        if not wanted or not 1 <= len(name.encode(errors="replace")) <= DURABLE_NAME_BYTES_MAX:
            raise InvalidArgumentError(
                f"A commit needs a durable name of 1 to {DURABLE_NAME_BYTES_MAX} bytes, and at "
                "least one position."
            )
        for position in wanted:
            topic = self.catalog.get(position.topic)
            if position.offset < 0:
                raise InvalidArgumentError(f"An offset is 0 or more, not {position.offset}.")
            if not 0 <= position.partition < len(topic.partitions):
                raise InvalidArgumentError(
                    f"Topic {topic.name!r} has {len(topic.partitions)} partitions; there is no "
                    f"{position.partition}."
                )
        if self.durable.count >= self._options.durable_positions_max:
            raise LimitError(
                f"This broker holds {self.durable.count} positions of durable names, as many as "
                "durable_positions_max allows."
            )
        self._append_internal(self.durable.commit(name, wanted))

    def _append_internal(self, batch: bytes) -> None:
        if self._store.folder is None:
            return
        topic = self.catalog.create(CURSOR_TOPIC, CURSOR_SETTINGS, exist_ok=True)
        partition = topic.partitions[0]
        while self._owed:
            self._write(partition, self._owed[-1])
            self._owed.pop()
        self._write(partition, batch)
        snapshot_at = partition.log.end_offset
        if self.durable.maybe_snapshot(lambda some: self._write(partition, some)):
            partition.log.drop_before(snapshot_at)

    def _write(self, partition: Partition, batch: bytes) -> None:
        """Appends a batch of the broker's own, past the turn: it is in the log on return."""
        log = partition.log
        time_us = max(self._runtime.now_us(), log.last_time_us)
        stamped = stamp(
            batch,
            base_offset=log.end_offset,
            append_time_us=time_us,
            leader_epoch=self._store.epoch,
            topic=partition.topic.number,
        )
        before = log.tail.bytes
        log.append(stamped, log.end_offset + _record_count(batch), time_us, time_us)
        log.tail.trim(partition.topic.settings.tail_bytes)
        self.commits.resized(partition, before)
        partition.next_offset = partition.visible_end = log.end_offset
        partition.last_time_us = time_us

    # The whole

    def status(self) -> BrokerStatus:
        partitions = [p for topic in self.catalog for p in topic.partitions]
        failed = [f"{p.name}: {p.log.failure}" for p in partitions if p.log.failure is not None]
        damaged = [
            f"{p.name}: offsets {lost.first} to {lost.next - 1} are damaged on disk"
            for p in partitions
            for lost in p.log.damaged
        ]
        problems = failed + damaged
        state = "failing" if failed else "degraded" if damaged else "ok"
        return BrokerStatus(
            state="draining" if self.draining else state,
            release=self.release,
            epoch=self._store.epoch,
            uptime_seconds=(self._runtime.now_us() - self._started_us) / 1e6,
            topics=len(self.catalog),
            connections=self.connections,
            subscriptions=len(self.subscriptions),
            tail_bytes=self.commits.tail_bytes,
            pending_bytes=self.commits.pending_bytes(),
            published_records=self.commits.published_records,
            delivered_bytes=self.fan_out.delivered_bytes,
            problems=tuple(problems[:100]),
        )

    async def threaded(self, work: Callable[[], T]) -> T:
        """Awaits blocking work that runs in a thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T | Exception) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._runtime.in_thread(work, done)
        return await future


def _within(data: bytes, bytes_max: int) -> memoryview:
    """As many whole batches as fit, and one at least."""
    end = 0
    for at, header in split_batches(data):
        if end and at + header.length > bytes_max:
            break
        end = at + header.length
    # A copy where it is a part: a view would keep the whole block in memory.
    return memoryview(data if end == len(data) else data[:end])


def _as_fault(fault: Exception) -> FanlogError:
    return fault if isinstance(fault, FanlogError) else FanlogError(f"Reading failed: {fault}")


def _record_count(batch: bytes) -> int:
    return read_header(batch).record_count
