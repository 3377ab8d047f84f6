"""Turns, and what happens at the end of each: what came in goes into the logs, becomes visible when
its durability has accepted it, is fanned out, and is acknowledged. One append for each partition
and turn, however many publishers took part."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Protocol

from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.producers import Producer
from fanlog.broker.messages.topics import Partition, Submission
from fanlog.broker.ports import Origin, Runtime
from fanlog.errors import FanlogError, LogFailedError
from fanlog.format.frames import ACK_ENTRY, Ack
from fanlog.format.header import BatchHeader
from fanlog.log.partition import PartitionLog
from fanlog.model import Durability
from fanlog.telemetry.histograms import TURN_US, Histogram

logger = logging.getLogger("fanlog.broker")


class SyncGroup(Protocol):
    """Group commit: makes pieces durable together."""

    pending_bytes: int

    def add(
        self, log: PartitionLog, piece: bytes, done: Callable[[FanlogError | None], None]
    ) -> None: ...
    def adopt(
        self, logs: Sequence[PartitionLog], done: Callable[[FanlogError | None], None]
    ) -> None: ...
    def kick(self) -> None: ...
    def histograms(self) -> tuple[Histogram, Histogram]:
        """How long syncs took, in µs, and how many bytes they had."""
        ...


_Synced = tuple[Partition, bytes, int, list[Submission], FanlogError | None]


class Turns:
    """`dirty` holds the partitions that took something in this turn; `Intake` fills it."""

    def __init__(
        self,
        runtime: Runtime,
        fan_out: FanOut,
        sync_group: Callable[[], SyncGroup],
        tail_total_bytes: int,
    ) -> None:
        self._runtime = runtime
        self._fan_out = fan_out
        self._sync_group = sync_group
        self.group: SyncGroup | None = None
        self._tail_total_bytes = tail_total_bytes
        self._tails: OrderedDict[Partition, None] = OrderedDict()
        self._fresh: dict[Partition, tuple[int, list[bytes]]] = {}
        self._synced: list[_Synced] = []
        self._acks: dict[Origin, list[bytes]] = {}
        self._scheduled = False
        self._relief: list[Callable[[], None]] = []
        self.dirty: dict[Partition, None] = {}
        # Listeners that gather messages of many publishers: they hand them in when the turn ends.
        self.feeders: list[Callable[[], None]] = []
        self.tail_bytes = 0
        self.published_records = 0
        self.published_bytes = 0
        self.durations = Histogram(TURN_US)
        # Hears of a turn that took longer than `slow_ns`: how long, how much of it until all was in
        # the logs, and what was shown to whom.
        self.slow: Callable[[int, int, Iterable[Partition]], None] | None = None
        self.slow_ns = 1 << 62
        self._traces = fan_out.traces
        self._sampled = self._traces.sampled

    def schedule(self) -> None:
        """Ends the turn after everything that is ready now has been read."""
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self.end)

    def take_stamped(self, partition: Partition, data: bytes, header: BatchHeader) -> None:
        """Takes a batch that another broker has stamped, as it is. It begins where the partition
        ends. It becomes visible with the turn, together with all that came in it."""
        if header.base_offset != partition.next_offset:
            raise ValueError(
                f"{partition.name} goes on at {partition.next_offset}, not {header.base_offset}."
            )
        if partition.parts is None or partition.submissions is None:
            partition.parts, partition.submissions = [], []
            partition.first_time_us = header.append_time_us
            self.dirty[partition] = None
            self.schedule()
        partition.parts.append(data)
        partition.next_offset = header.next_offset
        partition.last_time_us = max(partition.last_time_us, header.append_time_us)

    def end(self) -> None:
        begun_ns = perf_counter_ns()
        self.hand_in()
        if self._synced:
            self._settle()
        while self.dirty:
            partition, _ = self.dirty.popitem()
            self._commit(partition)
        fresh = self._fresh
        appended_ns = perf_counter_ns()
        if fresh:
            self._show()
        if self.group is not None:
            self.group.kick()
        if self._acks:
            acks, self._acks = self._acks, {}
            for origin, entries in acks.items():
                origin.acknowledge(entries)
        took_ns = perf_counter_ns() - begun_ns
        self.durations.observe(took_ns // 1000)
        if took_ns > self.slow_ns and self.slow is not None:
            self.slow(took_ns, appended_ns - begun_ns, fresh)

    def hand_in(self) -> None:
        """Takes in what listeners have gathered."""
        # What is handed in belongs to this turn, and needs no other.
        self._scheduled = True
        try:
            for feed in self.feeders:
                feed()
        finally:
            self._scheduled = False

    def pending_bytes(self) -> int:
        """Bytes that wait for the disk."""
        return 0 if self.group is None else self.group.pending_bytes

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Calls once when what was waiting for the disk has got there."""
        self._relief.append(call)

    def forget(self, partition: Partition) -> None:
        """A deleted partition: its tail no longer counts."""
        self.tail_bytes -= partition.log.tail.bytes
        self._tails.pop(partition, None)
        self.dirty.pop(partition, None)
        self._traces.forget(partition)

    def resized(self, partition: Partition, bytes_before: int) -> None:
        """Retention has changed the partition's tail."""
        self.tail_bytes += partition.log.tail.bytes - bytes_before

    def _commit(self, partition: Partition) -> None:
        parts, submissions = partition.parts, partition.submissions
        partition.parts = partition.submissions = None
        if parts is None or submissions is None:
            return
        piece = b"".join(parts)
        log = partition.log
        limits = partition.topic.limits
        before = 0 if limits is None else log.end_offset
        if piece:
            try:
                if partition.durability is Durability.FSYNC:
                    # Its first use makes the journal, which a full disk has no room for: before
                    # anything is appended.
                    self.prepare_sync()
                log.append(
                    piece, partition.next_offset, partition.first_time_us, partition.last_time_us
                )
            except Exception as fault:
                partition.next_offset = log.end_offset
                if not isinstance(fault, FanlogError):
                    logger.exception("appending to %s failed", partition.topic.name)
                    fault = LogFailedError(
                        f"The broker failed to append: {fault!r}. Restart it, and report this."
                    )
                if self._traces.following:
                    self._traces.refused(partition, log.end_offset, fault)
                submissions = self._refuse(submissions, log.end_offset, fault)
                if not submissions:
                    return
                piece = b""
            else:
                self.count_tail(partition, len(piece))
                if limits is not None:
                    limits.stored(partition.next_offset - before, len(piece))
        next_offset = partition.next_offset
        if partition.durability is not Durability.FSYNC or (not piece and self.group is None):
            # Or repeats of what an earlier start has stored, and this one has synced.
            self._accept(partition, piece, next_offset, submissions)
            return

        def synced(fault: FanlogError | None) -> None:
            self._synced.append((partition, piece, next_offset, submissions, fault))
            self.schedule()
            self._relieve()

        self._get_group().add(log, piece, synced)

    def prepare_sync(self) -> None:
        """Makes sure that pieces can be synced; raises why they can't."""
        self._get_group()

    def sync(
        self, log: PartitionLog, piece: bytes, done: Callable[[FanlogError | None], None] | None
    ) -> None:
        """Makes a piece of the broker's own durable with the next group commit."""
        tell = done or _log_fault

        def synced(fault: FanlogError | None) -> None:
            try:
                tell(fault)
            finally:
                self._relieve()

        self._get_group().add(log, piece, synced)
        self.schedule()

    def adopt(
        self, logs: Sequence[PartitionLog], done: Callable[[FanlogError | None], None]
    ) -> None:
        """Logs whose pieces are to be synced from now on: the next commit syncs their files."""
        self._get_group().adopt(logs, done)
        self.schedule()

    def _get_group(self) -> SyncGroup:
        if self.group is None:
            self.group = self._sync_group()
        return self.group

    def _settle(self) -> None:
        """What the disk has answered for since the last turn. It becomes visible here and not
        before, so that a reader that comes to the end in between is not sent it twice."""
        synced, self._synced = self._synced, []
        for partition, piece, next_offset, submissions, fault in synced:
            if fault is None:
                self._accept(partition, piece, next_offset, submissions)
            else:
                if self._traces.following:
                    self._traces.refused(partition, partition.visible_end, fault)
                repeats = self._refuse(submissions, partition.visible_end, fault)
                self._accept(partition, b"", next_offset, repeats)

    def _accept(
        self, partition: Partition, piece: bytes, next_offset: int, submissions: list[Submission]
    ) -> None:
        if piece:
            fresh = self._fresh.get(partition)
            if fresh is None:
                self._fresh[partition] = (partition.visible_end, [piece])
            else:
                fresh[1].append(piece)
            size = len(piece)
            self.published_records += next_offset - partition.visible_end
            self.published_bytes += size
            partition.topic.published_bytes += size
            partition.visible_end = next_offset
        for submission in submissions:
            if submission.acks:
                self._acks.setdefault(submission.origin, []).extend(submission.acks)

    def _show(self) -> None:
        """Fans out what has become visible, each partition's as one piece."""
        fresh, self._fresh = self._fresh, {}
        traced = self._begin_to_show(fresh) if self._sampled.hidden else None
        for partition, (base_offset, pieces) in fresh.items():
            if partition.live or partition.viewed:
                piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self._fan_out.publish(partition, piece, base_offset)
            if partition.waiters is not None:
                waiters, partition.waiters = partition.waiters, None
                for wake in waiters:
                    wake()
        self._fan_out.end_turn()
        if traced:
            start_us, readers = traced
            for partition, count in readers.items():
                self._sampled.showed(partition, fresh[partition][0], start_us, count)

    def _begin_to_show(
        self, fresh: dict[Partition, tuple[int, list[bytes]]]
    ) -> tuple[int, dict[Partition, int]]:
        """When sampled batches become visible, and to how many readers each partition with one of
        them goes."""
        readers: dict[Partition, int] = {}
        for partition in self._sampled.hidden:
            if partition in fresh:
                viewed = partition.viewed
                count = len(partition.live or ())
                readers[partition] = count + sum(map(len, viewed.values())) if viewed else count
        return self._traces.spans.now_us(), readers

    def _refuse(
        self, submissions: list[Submission], stored_end: int, fault: FanlogError
    ) -> list[Submission]:
        """Tells every publisher, newest batch first, so that its producer is taken back as far
        as the first batch that was not stored. Returns the repeats of what is stored."""
        repeats: list[Submission] = []
        for submission in submissions:
            kept = Submission(submission.origin)
            refused: list[tuple[Ack, Producer | None]] = []
            for entry, producer in zip(submission.acks, submission.producers, strict=True):
                ack = Ack._make(ACK_ENTRY.unpack(entry))
                if ack.duplicate and ack.base_offset < stored_end:
                    kept.acks.append(entry)
                    kept.producers.append(producer)
                else:
                    refused.append((ack, producer))
            for ack, producer in reversed(refused):
                if producer is not None:
                    producer.take_back(ack.first_sequence, ack.base_offset)
            for ack, producer in refused:
                expected = ack.first_sequence if producer is None else producer.next_sequence
                submission.origin.refuse(
                    ack.topic, ack.partition, ack.first_sequence, expected, fault
                )
            if kept.acks:
                repeats.append(kept)
        return repeats

    def count_tail(self, partition: Partition, size: int) -> None:
        """Keeps each tail within its topic's size, and all of them within the total: past it the
        partition that was written to longest ago gives up its tail."""
        dropped = partition.log.tail.trim(partition.topic.settings.tail_bytes)
        self.tail_bytes += size - dropped
        self._tails[partition] = None
        self._tails.move_to_end(partition)
        while self.tail_bytes > self._tail_total_bytes and len(self._tails) > 1:
            oldest, _ = self._tails.popitem(last=False)
            while oldest.log.tail.bytes:
                self.tail_bytes -= oldest.log.tail.drop_first()

    def _relieve(self) -> None:
        relief, self._relief = self._relief, []
        for call in relief:
            try:
                call()
            except Exception:
                # One that fails must not keep the others waiting.
                logger.exception("What waited for the disk failed.")


def _log_fault(fault: FanlogError | None) -> None:
    if fault is not None:
        logger.error("an entry of the broker's own was not made durable: %s", fault)
