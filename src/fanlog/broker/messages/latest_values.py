"""The latest value of each key of a compacted topic, for readers that begin with it.

A topic partition has one table for all of them. It is a reader of the log like any other: a cursor
fills it from the first record on, and keeps it up as messages are published, as long as somebody
uses it. A reader is sent the table as it is at an offset, and its own cursor continues exactly
there. The snapshot is rendered once for an offset and a view.

It is long because the table, its updates and its readers have to agree on one offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.subscriptions import Subscriptions
from fanlog.broker.messages.topic_events import TopicEvents
from fanlog.broker.messages.topics import (
    BrokerSubscription,
    BrokerTopic,
    Cursor,
    Outlet,
    Partition,
)
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.messages.views import Renderer, decode_records
from fanlog.broker.slices import Slices
from fanlog.errors import (
    FanlogError,
    InvalidArgumentError,
    LimitError,
    TopicDeletedError,
    allow_more,
)
from fanlog.format.record_views import RecordView, Where, snapshot_chunks
from fanlog.format.web import RenderedRecords

if TYPE_CHECKING:
    from fanlog.broker.ports import SendBuffer
    from fanlog.format.messages import Joined, Notice
    from fanlog.format.web import Pairs
    from fanlog.model import Gap

logger = logging.getLogger("fanlog.broker")

# Memory of an entry besides its key and its message.
_ENTRY_BYTES = 400


class LatestPorts(Protocol):
    """The broker, as far as tables need it."""

    @property
    def epoch(self) -> int: ...
    @property
    def events(self) -> TopicEvents: ...
    @property
    def fan_out(self) -> FanOut: ...
    @property
    def renderer(self) -> Renderer: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def subscriptions(self) -> Subscriptions: ...
    @property
    def unpacker(self) -> Unpacker: ...
    def resume(self, outlet: Outlet) -> None: ...
    def soon(self, call: Callable[[], None]) -> None: ...


class LatestEntry(NamedTuple):
    """The latest record of a key; without a message it is deleted."""

    offset: int
    key: bytes
    message: str | None
    headers: Pairs

    @property
    def bytes(self) -> int:
        return len(self.key) + len(self.message or "") + _ENTRY_BYTES


class _Updates(NamedTuple):
    """The changes of a range of the log, and its end."""

    entries: list[LatestEntry]
    next_offset: int
    epoch: int


class _LatestTable:
    """One partition's. It is the `Outlet` of its cursor, and blocked while a thread decodes."""

    def __init__(self, tables: LatestTables, partition: Partition) -> None:
        self._tables = tables
        self._partition = partition
        self._entries: dict[bytes, LatestEntry] = {}
        self._epoch = tables.broker.epoch
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._rendered: WeakKeyDictionary[
            RecordView, tuple[tuple[int, int], asyncio.Task[list[bytes]]]
        ] = WeakKeyDictionary()
        self.bytes = 0
        self.fault: FanlogError | None = None
        # As an outlet
        self.blocked = False
        self.waiting: list[Cursor] = []
        keeper = tables.broker.subscriptions
        self.feed: BrokerSubscription | None = BrokerSubscription(
            0, keeper, self, self, partition.topic.name
        )
        self._cursor = Cursor(self.feed, partition, partition.log.start_offset)
        self.offset = self._cursor.offset

    def start(self) -> None:
        cursor = self._cursor
        cursor.behind = cursor.offset < self._partition.visible_end
        fan_out = self._tables.broker.fan_out
        fan_out.add(cursor)
        fan_out.start(cursor)

    def end(self, fault: FanlogError) -> None:
        """The table is unused, or has failed. This may happen in the middle of a pass, so its
        cursor is removed later."""
        if self.feed is None:
            return
        self.feed.closed = True
        self.feed = None
        self.blocked = True
        self.fault = fault
        self._tables.bytes -= self.bytes
        self.bytes = 0
        self._entries = {}
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(fault)
        self._tables.broker.soon(self._remove_cursor)

    def _remove_cursor(self) -> None:
        self._cursor.dropped = True
        self._tables.broker.fan_out.remove(self._cursor)

    # What readers get

    async def ready(self) -> None:
        """Waits until the table has everything that is visible now."""
        if self.fault is not None:
            raise self.fault
        end = self._partition.visible_end
        if self.offset < end:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((end, future))
            await future

    async def snapshot(self, view: RecordView) -> tuple[int, list[bytes]]:
        """The table in a view, and the offset after it."""
        await self.ready()
        # Retention may have deleted the last records of keys.
        version = (self.offset, self._partition.log.start_offset)
        known = self._rendered.get(view)
        if known is None or known[0] != version or known[1].cancelled():
            entries = [entry for entry in self._entries.values() if entry.offset >= version[1]]
            where = Where(self._partition.index, self._epoch, self._partition.topic.number)
            task = asyncio.create_task(self._render(view, entries, where, version[0]))
            known = self._rendered[view] = (version, task)
        # One reader that goes away must not take it from the others.
        return version[0], await asyncio.shield(known[1])

    async def _render(
        self, view: RecordView, entries: list[LatestEntry], where: Where, offset: int
    ) -> list[bytes]:
        filter = view.filter
        if filter is not None:
            entries = [entry for entry in entries if filter.passes_pairs(entry.key, entry.headers)]
        chunks = snapshot_chunks([entry.message or "" for entry in entries])
        pieces: list[bytes] = []
        # Many keys are many frames: others have their turns between them.
        async for messages, more in self._tables.broker.slices.each(chunks):
            pieces.append(view.snapshot(messages, where, offset, more=more))
        return pieces

    # The log's side

    @property
    def entries(self) -> dict[bytes, LatestEntry]:
        return self._entries

    def send(self, piece: SendBuffer) -> int:
        self._take([memoryview(piece)], piece)
        return len(piece)

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        self._take(pieces)

    def _take(self, pieces: list[memoryview], fresh: SendBuffer | None = None) -> None:
        broker, name = self._tables.broker, self._partition.topic.name
        unpacker = broker.unpacker
        if fresh is not None and isinstance(fresh, bytes):
            # Messages for web readers of this turn are already decoded.
            decoded = broker.renderer.maybe_records(self._partition, fresh)
            if decoded is not None:
                self._apply(_updates_of(decoded, self._epoch))
                return
        work = sum(unpacker.decoding_bytes(piece, records=True) for piece in pieces)
        limits = unpacker.limits

        def decode() -> list[_Updates]:
            return [
                _updates_of(decode_records(name, piece, limits), self._epoch) for piece in pieces
            ]

        if unpacker.is_small(work):
            for updates in decode():
                self._apply(updates)
            return
        self.blocked = True
        unpacker.in_thread(work, decode, self._decoded)

    def _decoded(self, result: list[_Updates] | Exception) -> None:
        if self.feed is None:
            return
        self.blocked = False
        if isinstance(result, Exception):
            logger.error("reading %s failed: %r", self._partition.name, result, exc_info=result)
            self._tables.drop(self, FanlogError(f"Reading the latest values failed: {result}"))
            return
        for updates in result:
            self._apply(updates)
        if not self.blocked:
            self._tables.broker.resume(self)

    def _apply(self, updates: _Updates) -> None:
        if self.feed is None:
            return
        entries, before = self._entries, self.bytes
        for entry in updates.entries:
            old = entries.pop(entry.key, None)
            if old is not None:
                self.bytes -= old.bytes
            if entry.message is not None:
                # At the end: a table is in the order of the log.
                entries[entry.key] = entry
                self.bytes += entry.bytes
        self.offset, self._epoch = updates.next_offset, updates.epoch
        self._tables.bytes += self.bytes - before
        if self._tables.bytes > self._tables.bytes_max:
            self._tables.drop(self, _too_large(self._partition.topic.name))
            return
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            reached = [future for end, future in self._waiting if end <= self.offset]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > self.offset]
            for future in reached:
                if not future.done():
                    future.set_result(None)

    def gap(self, gap: Gap, number: int) -> None:
        # The log has forgotten it, and so does a snapshot.
        self.offset = max(self.offset, gap.next)
        self._wake()

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        self._tables.drop(self, error)

    def hold(self, piece: SendBuffer, sent: int) -> None: ...
    def lost(self, fault: Exception) -> None: ...
    def joined(self, joined: Joined) -> None: ...
    def left(self, number: int, name: str) -> None: ...
    def notice(self, notice: Notice) -> None: ...


def _updates_of(decoded: Sequence[object], epoch: int) -> _Updates:
    """The changes of batches: only the last record of each key."""
    latest: dict[bytes, tuple[RenderedRecords, int]] = {}
    next_offset = 0
    for records in decoded:
        if isinstance(records, RenderedRecords):
            next_offset, epoch = records.header.next_offset, records.header.leader_epoch
            for i, key in enumerate(records.keys):
                if key is not None:
                    latest.pop(key, None)
                    latest[key] = (records, i)
        else:
            next_offset = records.header.next_offset  # type: ignore[attr-defined]
    entries = [
        LatestEntry(
            records.offsets[i],
            key,
            None if records.values[i] is None else records.messages[i],
            records.headers[i],
        )
        for key, (records, i) in latest.items()
    ]
    return _Updates(entries, next_offset, epoch)


def _too_large(topic: str) -> LimitError:
    return LimitError(
        f"The latest values of {topic!r} do not fit into the memory for them. Subscribe without "
        "`latest`, or with a topic that has fewer keys. " + allow_more("web.latest_bytes_max")
    )


class LatestUse:
    """One subscription's use of a topic's tables. `close` it when the subscription ends."""

    def __init__(self, tables: LatestTables, topic: BrokerTopic) -> None:
        self._tables = tables
        self._topic = topic
        self._closed = False

    async def ready(self) -> None:
        """Waits until the tables have everything that is visible now."""
        for table in self._tables.of(self._topic):
            await table.ready()

    async def begin(self, subscription: BrokerSubscription) -> list[bytes]:
        """The snapshot in the subscription's view. Its cursors of this topic, which have not
        started, stand behind it then."""
        pieces: list[bytes] = []
        for cursor in list(subscription.cursors):
            view = cursor.view
            if cursor.partition.topic is self._topic and isinstance(view, RecordView):
                table = self._tables.table(cursor.partition)
                offset, shown = await table.snapshot(view)
                assert not cursor.started
                cursor.offset = cursor.begin = offset
                cursor.behind = offset < cursor.partition.visible_end
                pieces += shown
        return pieces

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tables.release(self._topic)


class LatestTables:
    """All tables of a broker. `bytes` is their memory, at most `bytes_max`."""

    def __init__(self, broker: LatestPorts, bytes_max: int) -> None:
        self.broker = broker
        self.bytes_max = bytes_max
        self.bytes = 0
        self._tables: dict[Partition, _LatestTable] = {}
        self._uses: dict[BrokerTopic, int] = {}
        broker.events.subscribe(deleted=self._topic_vanished)

    def open(self, topic: BrokerTopic) -> LatestUse:
        """Begins to keep the latest values of a topic, or keeps them for one more."""
        if topic.settings.cleanup != "compact":
            raise InvalidArgumentError(
                f"Topic {topic.name!r} is not compacted, so it has no latest values. Subscribe "
                "without `latest`, or create the topic with cleanup=compact."
            )
        self._uses[topic] = self._uses.get(topic, 0) + 1
        for partition in topic.partitions:
            self.table(partition)
        return LatestUse(self, topic)

    def of(self, topic: BrokerTopic) -> list[_LatestTable]:
        return [self.table(partition) for partition in topic.partitions]

    def table(self, partition: Partition) -> _LatestTable:
        """A partition's table. A failed one is tried again: there may be room now."""
        if partition.topic.deleted:
            raise _deleted(partition.topic)
        table = self._tables.get(partition)
        if table is None:
            table = self._tables[partition] = _LatestTable(self, partition)
            table.start()
        return table

    def release(self, topic: BrokerTopic) -> None:
        count = self._uses.get(topic, 0) - 1
        if count > 0:
            self._uses[topic] = count
        else:
            self._forget(topic, _deleted(topic))

    def drop(self, table: _LatestTable, fault: FanlogError) -> None:
        """Ends a table that can't continue."""
        for partition, known in list(self._tables.items()):
            if known is table:
                del self._tables[partition]
        table.end(fault)

    def _forget(self, topic: BrokerTopic, fault: FanlogError) -> None:
        self._uses.pop(topic, None)
        for partition in topic.partitions:
            table = self._tables.pop(partition, None)
            if table is not None:
                table.end(fault)

    def _topic_vanished(self, topic: BrokerTopic) -> None:
        self._forget(topic, _deleted(topic))


def _deleted(topic: BrokerTopic) -> TopicDeletedError:
    return TopicDeletedError(
        f"Topic {topic.name!r} was deleted while its latest values were read. Subscribe again."
    )
