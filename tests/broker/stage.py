"""A broker's core whose time, turns, threads and syncs the test hands out: nothing happens by
itself, and everything in an order that the test chose. Files are real."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.messages.restrictions import Unrestricted
from fanlog.broker.messages.stream import Replicas
from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Cursor
from fanlog.broker.ports import SendBuffer
from fanlog.config import BrokerOptions, LogOptions
from fanlog.config_security import AuditOptions
from fanlog.errors import FanlogError, LogFailedError
from fanlog.format.batch import Batch, encode_batch, split_batches
from fanlog.format.frames import ACK_ENTRY, Ack
from fanlog.format.messages import Joined, Notice, Subscribe
from fanlog.log.partition import PartitionLog
from fanlog.log.store import LogStore
from fanlog.model import Gap, Start, TopicSettings
from fanlog.telemetry.histograms import SYNC_BYTES, SYNC_US, Histogram

T = TypeVar("T")
BEGIN_US = 1_700_000_000_000_000


class HandRuntime:
    """`run` does what is due, one call after the other. `time_us` is the time that passes, for
    both clocks; `wall_shift_us` is how far somebody has set the wall clock off."""

    def __init__(self, time_us: int = BEGIN_US) -> None:
        self._begin_us = time_us
        self.time_us = time_us
        self.wall_shift_us = 0
        self.due: deque[Callable[[], None]] = deque()

    def now_us(self) -> int:
        return self.time_us + self.wall_shift_us

    def monotonic_us(self) -> int:
        # As after a boot: each process has another origin, and none is a wall clock's.
        return self.time_us - self._begin_us + 1_000_000

    def work_us(self) -> int:
        return self.monotonic_us()

    def soon(self, call: Callable[[], None], /) -> None:
        self.due.append(call)

    def in_thread(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def both() -> None:
            try:
                result: T | Exception = work()
            except Exception as fault:  # noqa: BLE001 - handed on, as the interface says
                result = fault
            done(result)

        self.due.append(both)

    def in_background(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self.in_thread(work, done)

    def run(self) -> None:
        while self.due:
            self.due.popleft()()


class Owning(Protocol):
    """What is given the core before it loads."""

    core: BrokerCore


Waiting = list[tuple[PartitionLog, bytes, Callable[[FanlogError | None], None]]]


class HandSync:
    """Group commit that syncs when it is told to, and fails when it is told to. `write` is what a
    sync does with its pieces, if it is to do more than to say so."""

    def __init__(self) -> None:
        self.waiting: Waiting = []
        self.pending_bytes = 0
        self.kicks = 0
        self.write: Callable[[list[tuple[PartitionLog, bytes]]], None] = lambda entries: None
        self.end_turn: Callable[[], None] = lambda: None

    def add(
        self, log: PartitionLog, piece: bytes, done: Callable[[FanlogError | None], None]
    ) -> None:
        self.waiting.append((log, piece, done))
        self.pending_bytes += len(piece)

    def adopt(
        self, logs: Sequence[PartitionLog], done: Callable[[FanlogError | None], None]
    ) -> None:
        def synced(fault: FanlogError | None) -> None:
            for log in logs if fault is None else ():
                log.sync()
            done(fault)

        self.waiting.append((logs[0], b"", synced))

    def kick(self) -> None:
        self.kicks += 1

    def histograms(self) -> tuple[Histogram, Histogram]:
        return Histogram(SYNC_US), Histogram(SYNC_BYTES)

    def sync(self, fault: FanlogError | None = None) -> None:
        """All that waits is durable, or none of it."""
        waiting, self.waiting = self.waiting, []
        self.finish(waiting, fault)

    def finish(self, some: Waiting, fault: FanlogError | None = None) -> None:
        """The same with some that have been taken out of what waits."""
        self.pending_bytes -= sum(len(piece) for _, piece, _ in some)
        entries = [(log, piece) for log, piece, _ in some if piece]
        if entries and fault is None:
            self.write(entries)
        if fault is not None:
            for log, _, _ in some:
                log.fail(fault)
        for _, _, done in some:
            done(fault)
        # What is durable takes effect with the turn that ends next.
        if some:
            self.end_turn()


class Publisher(Unrestricted):
    """An origin that remembers its answers."""

    def __init__(self, producer_id: int = 0) -> None:
        self.producer_id = producer_id
        self.acks: list[Ack] = []
        self.refusals: list[tuple[int, int, FanlogError]] = []

    def acknowledge(self, entries: list[bytes]) -> None:
        self.acks += [Ack._make(ACK_ENTRY.unpack(entry)) for entry in entries]

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None:
        self.refusals.append((first_sequence, expected_sequence, error))


class Peer:
    """A reader and its way out. `room` is what its socket still takes; None is all there is."""

    def __init__(self) -> None:
        self.blocked = False
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []
        self.room: int | None = None
        self.taken = b""
        self.kept: deque[bytes] = deque()
        self.gaps: list[Gap] = []
        self.joins: list[Joined] = []
        self.lefts: list[str] = []
        self.notices: list[Notice] = []
        self.ended: FanlogError | None = None

    def send(self, piece: SendBuffer) -> int:
        size = len(piece) if self.room is None else min(self.room, len(piece))
        if not size:
            raise BlockingIOError
        self.taken += bytes(piece[:size])
        if self.room is not None:
            self.room -= size
        return size

    def hold(self, piece: SendBuffer, sent: int) -> None:
        self.kept.append(bytes(piece[sent:]))
        self.blocked = True

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        self.feed = subscription
        for piece in pieces:
            try:
                sent = 0 if self.kept else self.send(piece)
            except BlockingIOError:
                sent = 0
            if sent < len(piece):
                self.hold(piece, sent)

    def lost(self, fault: Exception) -> None:
        raise AssertionError(fault)

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        self.ended = error
        self.blocked = True

    def gap(self, gap: Gap, number: int) -> None:
        self.gaps.append(gap)

    def joined(self, joined: Joined) -> None:
        self.joins.append(joined)

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)

    def left(self, number: int, name: str) -> None:
        self.lefts.append(name)

    def drain(self, broker: BrokerCore) -> None:
        """The peer has read everything; its socket takes as much as it wants again."""
        self.room = None
        while self.kept:
            self.taken += self.kept.popleft()
        self.blocked = False
        broker.resume(self)

    @property
    def batches(self) -> list[Batch]:
        view = memoryview(self.taken)
        return [Batch(view[at : at + h.length], h) for at, h in split_batches(self.taken)]

    @property
    def offsets(self) -> list[int]:
        return [o for batch in self.batches for o in range(batch.base_offset, batch.next_offset)]


# Ledgers whose entries are durable with the turn, unless a test wants to see what waits for them.
QUICK_LEDGERS = ("_fanlog.cursors", "_fanlog.queues", "_fanlog.producers")


class Stage:
    """The core, and what moves it."""

    def __init__(
        self,
        folder: Path | None,
        options: BrokerOptions,
        log_options: LogOptions,
        defaults: TopicSettings,
        time_us: int = BEGIN_US,
        *,
        audit: AuditOptions | None = None,
        replicas: Replicas | None = None,
        adopt: Owning | None = None,
    ) -> None:
        self.runtime = HandRuntime(time_us)
        self.sync_group = HandSync()
        self.store = LogStore(folder, log_options)
        self.core = BrokerCore(
            self.store,
            self.runtime,
            release="test",
            options=options,
            log_options=log_options,
            topic_defaults=defaults,
            sync_group=lambda: self.sync_group,
            audit=audit,
            replicas=replicas,
        )
        if adopt is not None:
            adopt.core = self.core
        self.sync_group.end_turn = self.core.turns.end
        self.core.load()
        self._subscriptions = 0
        self.quick_ledgers: tuple[str, ...] = QUICK_LEDGERS

    def publish(
        self,
        topic: str,
        values: list[bytes],
        by: Publisher | None = None,
        *,
        sequence: int = 0,
        partition: int = 0,
        epoch: int = 0,
    ) -> Publisher:
        """Hands a batch in; the turn ends with `run`."""
        origin = Publisher() if by is None else by
        data = encode_batch(
            values,
            topic=self.core.open_topic(topic, create=True).number,
            partition=partition,
            producer_id=origin.producer_id,
            producer_epoch=epoch,
            first_sequence=sequence,
        )
        assert self.core.take(data, 0, origin) == len(data)
        return origin

    def run(self) -> None:
        self.runtime.run()
        while self.sync_ledgers():
            self.runtime.run()

    def settle(self) -> None:
        """Runs and syncs until nothing is left to do."""
        self.run()
        while self.sync_group.waiting:
            self.sync_group.sync()
            self.run()

    def sync_ledgers(self) -> bool:
        """The disk is quick with some ledgers: whoever waits for them has its answer."""
        if not self.quick_ledgers:
            return False
        found = (self.core.catalog.find(name) for name in self.quick_ledgers)
        logs = {topic.partitions[0].log for topic in found if topic is not None}
        group = self.sync_group
        some = [waiting for waiting in group.waiting if waiting[0] in logs]
        if some:
            group.waiting = [waiting for waiting in group.waiting if waiting[0] not in logs]
            group.finish(some)
        return bool(some)

    def keep_journal(self) -> None:
        """A sync is one from now on: what it has made durable is so after a restart."""
        self.sync_group.write = lambda entries: self.store.get_journal().make_durable(
            entries, os.fdatasync
        )

    def grow(self, name: str, partitions: int) -> BrokerTopic:
        """Gives a topic more partitions, and what they wait for becomes durable. Nothing that
        follows from it has run on return."""
        got: list[BrokerTopic | FanlogError] = []
        self.core.grow_topic(name, partitions, got.append)
        while not got:
            if self.runtime.due:
                self.runtime.due.popleft()()
            elif not self.sync_ledgers():
                self.sync_group.sync()
        (topic,) = got
        if isinstance(topic, FanlogError):
            raise topic
        return topic

    async def subscribe(self, target: str, peer: Peer | None = None, **wanted: object) -> Peer:
        """A reader; from the first record unless told otherwise."""
        out = peer or Peer()
        self._subscriptions += 1
        wanted = {"start": Start("earliest")} | wanted
        asked = Subscribe(target=target, wildcard="*" in target or ">" in target, **wanted)  # type: ignore[arg-type]
        subscription, joined = await self.core.subscriptions.add(
            self._subscriptions, asked, out, out
        )
        out.joins += joined
        self.core.subscriptions.start(subscription)
        out.feed = subscription
        return out

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """All of a partition, as far as readers may see."""
        found = self.core.catalog.get(topic).partitions[partition]
        offset, values = found.log.start_offset, []
        while offset < found.visible_end:
            for batch in self.fetch(topic, offset, partition):
                values += batch.values
                offset = batch.next_offset
        return values

    def fetch(self, topic: str, offset: int, partition: int = 0) -> list[Batch]:
        """One fetch; raises what it brings instead."""
        found = self.core.catalog.get(topic).partitions[partition]
        got: list[list[memoryview] | FanlogError] = []
        self.core.reading.fetch(found, offset, 1 << 20, got.append)
        self.run()
        (result,) = got
        if isinstance(result, FanlogError):
            raise result
        return [
            Batch(piece[at : at + header.length], header)
            for piece in result
            for at, header in split_batches(piece)
        ]

    def counters(self, topic: str) -> dict[str, int]:
        counted = self.core.describe(topic).counters
        return {f: getattr(counted, f) for f in counted.__struct_fields__ if getattr(counted, f)}

    def fail_sync(self) -> None:
        self.sync_group.sync(LogFailedError("the disk is broken"))


def succeeded(fault: FanlogError | None) -> None:
    """Whoever waits, and expects no error."""
    assert fault is None


def no_room(*_: object) -> int:
    """A write to a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def stage(
    folder: Path | None = None,
    *,
    options: BrokerOptions | None = None,
    log_options: LogOptions | None = None,
    time_us: int = BEGIN_US,
    audit: AuditOptions | None = None,
    replicas: Replicas | None = None,
    adopt: Owning | None = None,
    **topic: object,
) -> Iterator[Stage]:
    defaults = TopicSettings(**({"durability": "memory"} if folder is None else {}) | topic)  # type: ignore[arg-type]
    options, log_options = options or BrokerOptions(), log_options or LogOptions()
    made = Stage(
        folder,
        options,
        log_options,
        defaults,
        time_us,
        audit=audit,
        replicas=replicas,
        adopt=adopt,
    )
    try:
        yield made
    finally:
        made.store.close()
