"""Turns: the one way into the logs.

A turn takes in messages of publishers and entries of the broker itself. At the turn end the
messages go into the logs, one append for each partition, however many publishers took part. An
entry goes into its log at once, so that its writer learns of a full disk. From there on both are
equal. When the durability of a partition has accepted a piece, and in a cluster its replicas have
(`stream.py`), the next turn end makes it visible, applies its effects, fans it out, and
acknowledges it, in this order.

It is long because everything that is appended goes through here, with or without a sync, and with
or without replicas."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.producers import Producer
from fanlog.broker.messages.stream import TurnStream
from fanlog.broker.messages.topics import BrokerTopic, Partition, Submission
from fanlog.broker.ports import Origin, Runtime
from fanlog.errors import FanlogError, LogFailedError
from fanlog.format.frames import ACK_ENTRY, Ack
from fanlog.format.header import BatchHeader
from fanlog.log.group_commit import Done
from fanlog.log.partition import PartitionLog
from fanlog.model import Durability
from fanlog.telemetry.histograms import TURN_US, Histogram

logger = logging.getLogger("fanlog.broker")


class GroupCommitPort(Protocol):
    """Group commit: makes pieces durable together."""

    pending_bytes: int

    def add(self, log: PartitionLog, piece: bytes, done: Done) -> None: ...
    def adopt(self, logs: Sequence[PartitionLog], done: Done) -> None: ...
    def kick(self) -> None: ...
    def histograms(self) -> tuple[Histogram, Histogram]:
        """How long syncs took, in µs, and how many bytes they had."""
        ...


class _Accepted(NamedTuple):
    """A piece that the disk has answered for: of publishers, or an entry of the broker's own, for
    which `done` runs."""

    partition: Partition
    piece: bytes
    next_offset: int
    submissions: list[Submission]
    fault: FanlogError | None
    done: Done | None = None


class Turns:
    """`dirty` holds the partitions that took something in this turn; `Intake` fills it.

    It has many fields, because each step of a turn leaves its results to the next, and every batch
    passes here: an object for each step would cost every batch."""

    def __init__(
        self,
        runtime: Runtime,
        fan_out: FanOut,
        sync_group: Callable[[], GroupCommitPort],
        tail_total_bytes: int,
        stream: TurnStream,
    ) -> None:
        self._runtime = runtime
        self.stream = stream
        self._replicated = stream.replicated
        stream.on_commit = self._committed
        self._fan_out = fan_out
        self._sync_group = sync_group
        self.group: GroupCommitPort | None = None
        self._tail_total_bytes = tail_total_bytes
        self._tails: OrderedDict[Partition, None] = OrderedDict()
        self._fresh: dict[Partition, tuple[int, list[bytes]]] = {}
        self._accepted: list[_Accepted] = []
        self._afterwards: list[Callable[[], None]] = []
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
        # Called after a turn that took longer than `slow_ns`: with its time, the time to append,
        # and what was shown to how many readers.
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
        """Appends a batch that another broker has stamped, unchanged. It begins at the end of the
        partition. It becomes visible with the turn."""
        if header.base_offset != partition.next_offset:
            raise ValueError(
                f"{partition.name} continues at {partition.next_offset}, not {header.base_offset}."
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
        if self._accepted or self._afterwards:
            self._settle()
        while self.dirty:
            partition, _ = self.dirty.popitem()
            self._append_parts(partition)
        if self._replicated:
            self.stream.end_turn()
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
        """Collects the batches that listeners have gathered."""
        # Batches collected here belong to this turn, and need no other.
        self._scheduled = True
        try:
            for feed in self.feeders:
                feed()
        finally:
            self._scheduled = False

    def do_afterwards(self, call: Callable[[], None]) -> None:
        """Calls once everything that is accepted now has taken effect."""
        self._afterwards.append(call)
        self.schedule()

    def pending_bytes(self) -> int:
        """Bytes that wait for the disk, or for replicas."""
        unsynced = 0 if self.group is None else self.group.pending_bytes
        return max(unsynced, self.stream.pending_bytes)

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Calls back once when the data that waited for the disk is durable."""
        self._relief.append(call)

    def forget_topic(self, topic: BrokerTopic) -> None:
        """A deleted topic: those who wait for more of it are woken, and find that none comes."""
        for partition in topic.partitions:
            self.forget(partition)
            if partition.audience is not None:
                partition.audience.wake()

    def forget(self, partition: Partition) -> None:
        """A deleted partition: its tail no longer counts."""
        self.tail_bytes -= partition.log.tail.bytes
        self._tails.pop(partition, None)
        self.dirty.pop(partition, None)
        self._traces.forget(partition)

    def resized(self, partition: Partition, bytes_before: int) -> None:
        """Retention has changed the partition's tail."""
        self.tail_bytes += partition.log.tail.bytes - bytes_before

    def _append_parts(self, partition: Partition) -> None:
        """Appends a partition's batches of this turn."""
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
                self._append(partition, piece)
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
                if limits is not None:
                    limits.stored(partition.next_offset - before, len(piece))
        next_offset = partition.next_offset
        if partition.durability is not Durability.FSYNC or (not piece and self.group is None):
            # Or repeats of batches that an earlier start has stored and this one has synced.
            if self._replicated and partition.durability is not Durability.MEMORY:
                self._hold(_Accepted(partition, piece, next_offset, submissions, None))
            else:
                self._accept(partition, piece, next_offset, submissions)
            return
        self._sync(partition, piece, submissions, None)

    def append_entry(
        self, partition: Partition, piece: bytes, next_offset: int, done: Done
    ) -> None:
        """Appends a stamped batch of the broker's own: a ledger's entry, a loss of a reader, a line
        of the audit log. `done` runs at the end of the turn in which it has become visible, or with
        the fault if it can't become durable. Raises what keeps it out of the log; then nothing was
        written, and `done` does not run."""
        if partition.parts is not None:
            raise ValueError(f"{partition.name} takes messages of publishers in this turn.")
        partition.first_time_us = partition.last_time_us
        before, partition.next_offset = partition.next_offset, next_offset
        try:
            self._append(partition, piece)
        except BaseException:
            partition.next_offset = before
            raise
        self.schedule()
        if partition.durability is Durability.FSYNC:
            self._sync(partition, piece, [], done)
        elif self._replicated and partition.durability is not Durability.MEMORY:
            self._hold(_Accepted(partition, piece, next_offset, [], None, done))
        else:
            self._accepted.append(_Accepted(partition, piece, next_offset, [], None, done))

    def _hold(self, accepted: _Accepted, position: int = -1) -> None:
        """Accepts a piece when the replicas have it, too."""

        def accept() -> None:
            self._accepted.append(accepted)
            # This turn may be past that: a repeat of what is committed waits for nothing else.
            self.schedule()

        self.stream.hold(accepted.partition.durability, accept, position=position)

    def _committed(self) -> None:
        """Replicas have some more of the stream."""
        self.schedule()
        self.relieve()

    def _append(self, partition: Partition, piece: bytes) -> None:
        """Everything that is appended is appended here."""
        if partition.durability is Durability.FSYNC:
            # Its first use makes the journal, which a full disk has no room for: before anything
            # is appended.
            self.prepare_sync()
        replicated = self._replicated and partition.durability is not Durability.MEMORY
        if replicated:
            self.stream.check()
        base = partition.log.end_offset
        partition.log.append(
            piece, partition.next_offset, partition.first_time_us, partition.last_time_us
        )
        if replicated:
            self.stream.note(partition, piece, base)
        self.count_tail(partition, len(piece))

    def _sync(
        self, partition: Partition, piece: bytes, submissions: list[Submission], done: Done | None
    ) -> None:
        """Has a piece synced with the next group commit."""
        next_offset = partition.next_offset
        stream = self.stream if self._replicated else None
        position = stream.begin_sync() if stream is not None else 0

        def synced(fault: FanlogError | None) -> None:
            accepted = _Accepted(partition, piece, next_offset, submissions, fault, done)
            if stream is not None and fault is None:
                # The turn ends when it is committed.
                self._hold(accepted, position)
                stream.end_sync(position, None)
                return
            self._accepted.append(accepted)
            if stream is not None:
                stream.end_sync(position, fault)
            self.schedule()
            self.relieve()

        self._get_group().add(partition.log, piece, synced)

    def prepare_sync(self) -> None:
        """Makes sure that pieces can be synced; raises why they can't."""
        self._get_group()

    def adopt(self, logs: Sequence[PartitionLog], done: Done) -> None:
        """Logs whose pieces are synced from now on: the next sync includes their files."""
        self._get_group().adopt(logs, done)
        self.schedule()

    def _get_group(self) -> GroupCommitPort:
        if self.group is None:
            self.group = self._sync_group()
        return self.group

    def _settle(self) -> None:
        """Pieces that became durable since the last turn. They become visible here and not before,
        so that a reader that reaches the end in between does not get them twice."""
        accepted, self._accepted = self._accepted, []
        for partition, piece, next_offset, submissions, fault, done in accepted:
            if done is not None:
                self._settle_entry(partition, piece, next_offset, fault, done)
            elif fault is None:
                self._accept(partition, piece, next_offset, submissions)
            else:
                if self._traces.following:
                    self._traces.refused(partition, partition.visible_end, fault)
                repeats = self._refuse(submissions, partition.visible_end, fault)
                self._accept(partition, b"", next_offset, repeats)
        afterwards, self._afterwards = self._afterwards, []
        for call in afterwards:
            try:
                call()
            except Exception:
                # One that fails must not stop the others.
                logger.exception("What waited for replicas failed.")

    def _settle_entry(
        self,
        partition: Partition,
        piece: bytes,
        next_offset: int,
        fault: FanlogError | None,
        done: Done,
    ) -> None:
        """Runs the effects of an entry. They may write further entries, which belong to this
        turn."""
        if fault is None:
            self._freshen(partition, piece)
            partition.visible_end = next_offset
        try:
            done(fault)
        except Exception:
            # One that fails must not stop the others.
            logger.exception("What follows from an entry of %s failed.", partition.name)

    def _freshen(self, partition: Partition, piece: bytes) -> None:
        """Has a piece shown to readers at the end of this turn."""
        fresh = self._fresh.get(partition)
        if fresh is None:
            self._fresh[partition] = (partition.visible_end, [piece])
        else:
            fresh[1].append(piece)

    def _accept(
        self, partition: Partition, piece: bytes, next_offset: int, submissions: list[Submission]
    ) -> None:
        if piece:
            self._freshen(partition, piece)
            size = len(piece)
            self.published_records += next_offset - partition.visible_end
            self.published_bytes += size
            partition.topic.published_bytes += size
            partition.visible_end = next_offset
        for submission in submissions:
            if submission.acks:
                self._acks.setdefault(submission.origin, []).extend(submission.acks)

    def _show(self) -> None:
        """Fans out the visible pieces, one per partition."""
        fresh, self._fresh = self._fresh, {}
        traced = self._begin_to_show(fresh) if self._sampled.hidden else None
        for partition, (base_offset, pieces) in fresh.items():
            audience = partition.audience
            if audience is None:
                continue
            if audience.live or audience.viewed:
                piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self._fan_out.publish(partition, audience, piece, base_offset)
            if audience.wakes is not None:
                audience.wake()
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
                audience = partition.audience
                readers[partition] = 0 if audience is None else audience.count()
        return self._traces.spans.now_us(), readers

    def _refuse(
        self, submissions: list[Submission], stored_end: int, fault: FanlogError
    ) -> list[Submission]:
        """Answers every publisher, newest batch first, so that its producer goes back to the first
        batch that was not stored. Returns the repeats of stored batches."""
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

    def relieve(self) -> None:
        """What waited because of congestion may look again."""
        relief, self._relief = self._relief, []
        for call in relief:
            try:
                call()
            except Exception:
                # One that fails must not stop the others.
                logger.exception("What waited for the disk failed.")
