"""Batches on their way in: the hot path between a listener and the log.

Per batch, whatever it holds: one look at the header, one checksum, one check of the producer's
sequence, one stamp. Batches are collected per partition for the turn; `Commits` puts them into
the log together.
"""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

from fanlog.broker.commits import Commits
from fanlog.broker.ports import Origin
from fanlog.broker.producers import Producer
from fanlog.broker.topics import Partition, Submission
from fanlog.config import BrokerOptions
from fanlog.errors import (
    ChecksumError,
    FanlogError,
    FormatError,
    MessageTooLargeError,
    OutOfSequenceError,
    OverloadedError,
    TopicNotFoundError,
)
from fanlog.format.batch import (
    BATCH_BYTES_MIN,
    CHECKSUMS,
    CLIENT_PART_AT,
    HEADER_BYTES,
    INCOMING,
    KIND_BATCH,
    RECORDS_MAX,
    STAMPED,
    VERSION,
)
from fanlog.format.codecs import Codec
from fanlog.format.columns import KNOWN_FLAGS
from fanlog.format.frames import ACK_ENTRY
from fanlog.model import Durability

_CODEC_MAX = max(Codec)
_BATCH_OVERHEAD_BYTES = 4096
# Half of what the field holds, so that no producer can ever count past its end.
_SEQUENCE_MAX = (1 << 63) - 1


def partition_key(number: int, partition: int) -> int:
    """One integer for a partition, so that a batch finds it with a single look-up."""
    return number << 16 | partition


class Intake:
    """Takes whole batches from a publisher's bytes into the partitions' turn."""

    def __init__(
        self,
        partitions: dict[int, Partition],
        commits: Commits,
        options: BrokerOptions,
        now_us: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._dirty = commits.dirty
        self._pending_bytes = commits.pending_bytes
        self._options = options
        self._now_us = now_us
        self.epoch = 0

    def take(self, data: bytes, at: int, origin: Origin) -> int:
        """Takes the batches that begin at `at` and are whole; returns where it stopped.

        A refusal goes to the origin and the rest goes on; bad bytes raise FormatError.
        """
        size = len(data)
        now_us = self._now_us()
        unpack, crc, partitions = INCOMING.unpack_from, google_crc32c.value, self._partitions
        pack_head, pack_sums, pack_ack = STAMPED.pack, CHECKSUMS.pack, ACK_ENTRY.pack
        partition = key = submission = parts = None
        epoch, sound_bytes, durability = self.epoch, 0, Durability.MEMORY
        while size - at >= HEADER_BYTES:
            (
                length,
                kind,
                version,
                producer_epoch,
                topic,
                producer_id,
                sequence,
                body_crc,
                index,
                codec,
                flags,
                count,
            ) = unpack(data, at)
            end = at + length
            if kind != KIND_BATCH or end > size:
                break
            if (
                length < BATCH_BYTES_MIN
                or length & 7
                or version != VERSION
                or not 0 < count <= RECORDS_MAX
                or codec > _CODEC_MAX
                or flags & ~KNOWN_FLAGS
            ):
                raise FormatError(
                    f"A batch header is out of bounds: length {length}, version {version}, "
                    f"{count} records, codec {codec}, flags {flags:#04x}."
                )
            body = data[at + CLIENT_PART_AT : end]
            if crc(body) != body_crc:
                raise ChecksumError(
                    "A batch's body checksum does not fit: it was damaged on its way."
                )
            at = end
            if key != topic << 16 | index:
                partition = partitions.get(key := partition_key(topic, index))
                if partition is not None:
                    submission, parts = self._begin(partition, origin, now_us)
                    sound_bytes, durability = self._sound_bytes(partition), partition.durability
            if partition is None or submission is None or parts is None:
                self._refuse_unknown(origin, topic, index, sequence)
                continue
            if length > sound_bytes:
                fault = self._fault(partition, length, count)
                if fault is not None:
                    claimed = (producer_epoch, sequence, count)
                    self._turn_away(partition, submission, producer_id, claimed, fault)
                    continue
            base_offset = partition.next_offset
            producer = None
            if producer_id:
                producer = self._producer(partition, producer_id, producer_epoch, sequence)
                if sequence != producer.next_sequence or producer_epoch != producer.epoch:
                    self._repeat(partition, submission, producer, (producer_epoch, sequence, count))
                    continue
                if base_offset == producer.run_next:
                    producer.run_next = base_offset + count
                    producer.next_sequence = sequence + count
                else:
                    producer.extend(count, base_offset, self._options.producer_runs_max)
            time_us = partition.last_time_us
            head = pack_head(
                length,
                KIND_BATCH,
                VERSION,
                producer_epoch,
                topic,
                epoch,
                base_offset,
                time_us,
                producer_id,
                sequence,
            )
            parts += (head, pack_sums(crc(head), body_crc), body)
            partition.next_offset = base_offset + count
            submission.acks.append(
                pack_ack(topic, index, durability, 0, sequence, base_offset, time_us)
            )
            submission.producers.append(producer)
        return at

    def _begin(
        self, partition: Partition, origin: Origin, now_us: int
    ) -> tuple[Submission, list[bytes]]:
        """Opens the partition's turn, if it is not open, for this publisher."""
        parts, submissions = partition.parts, partition.submissions
        partition.last_time_us = max(partition.last_time_us, now_us)
        if parts is None or submissions is None:
            parts, submissions = partition.parts, partition.submissions = [], []
            partition.first_time_us = partition.last_time_us
            self._dirty[partition] = None
        if not submissions or submissions[-1].origin is not origin:
            submissions.append(Submission(origin))
        return submissions[-1], parts

    def _overloaded(self) -> bool:
        return self._pending_bytes() > self._options.pending_bytes_max

    def _sound_bytes(self, partition: Partition) -> int:
        """The length up to which a batch needs no look at what might be wrong with it."""
        if partition.log.failure is not None or self._overloaded():
            return 0
        return partition.topic.settings.message_bytes_max

    def _fault(self, partition: Partition, length: int, count: int) -> FanlogError | None:
        if partition.log.failure is not None:
            return partition.log.failure
        if self._overloaded():
            return OverloadedError(
                f"More than {self._options.pending_bytes_max} bytes wait for the disk "
                "(pending_bytes_max). Publish again later."
            )
        most = partition.topic.settings.message_bytes_max
        if count == 1 and length > most + _BATCH_OVERHEAD_BYTES:
            return MessageTooLargeError(
                f"The message has about {length} bytes; topic {partition.topic.name!r} takes "
                f"{most} (message_bytes_max)."
            )
        return None

    def _refuse_unknown(self, origin: Origin, topic: int, index: int, sequence: int) -> None:
        error = TopicNotFoundError(
            f"There is no topic number {topic} with a partition {index} on this broker. "
            "It may have been deleted: open the topic again."
        )
        origin.refuse(topic, index, sequence, sequence, error)

    def _producer(
        self, partition: Partition, producer_id: int, producer_epoch: int, sequence: int
    ) -> Producer:
        producers = partition.producers
        if producers is None:
            producers = partition.producers = {}
        producer = producers.get(producer_id)
        if producer is None:
            if sequence > _SEQUENCE_MAX:
                raise FormatError(f"A producer's numbers can't begin with {sequence}.")
            if len(producers) >= self._options.producers_max:
                _forget_idle(producers)
            producer = Producer(producer_epoch, sequence, partition.next_offset)
            producers[producer_id] = producer
        elif producer_epoch > producer.epoch:
            producer.epoch = producer_epoch
        return producer

    def _turn_away(
        self,
        partition: Partition,
        submission: Submission,
        producer_id: int,
        claimed: tuple[int, int, int],
        fault: FanlogError,
    ) -> None:
        """Refuses a batch. A repeat is answered all the same: refused, its numbers would be given
        to other records, which would then pass for the repeat. And a refused first batch still
        says where a producer's numbers begin, so that what follows is not taken before it."""
        producer_epoch, sequence, _ = claimed
        if producer_id:
            producer = self._producer(partition, producer_id, producer_epoch, sequence)
            if sequence != producer.next_sequence or producer_epoch != producer.epoch:
                self._repeat(partition, submission, producer, claimed)
                return
        submission.origin.refuse(partition.topic.number, partition.index, sequence, sequence, fault)

    def _repeat(
        self,
        partition: Partition,
        submission: Submission,
        producer: Producer,
        claimed: tuple[int, int, int],
    ) -> None:
        """Answers a batch that is not the producer's next: with the offset of its first time,
        once that is as safe as an acknowledgement must be, or with an error."""
        producer_epoch, sequence, count = claimed
        topic = partition.topic.number
        try:
            if producer_epoch < producer.epoch:
                raise OutOfSequenceError(
                    f"Producer epoch {producer_epoch} was superseded by {producer.epoch}: "
                    "another client publishes under this id."
                )
            base_offset = producer.offset_of(sequence, count)
        except OutOfSequenceError as error:
            submission.origin.refuse(
                topic, partition.index, sequence, producer.next_sequence, error
            )
            return
        submission.acks.append(
            ACK_ENTRY.pack(
                topic,
                partition.index,
                partition.durability,
                1,
                sequence,
                base_offset,
                partition.last_time_us,
            )
        )
        submission.producers.append(None)


def _forget_idle(producers: dict[int, Producer]) -> None:
    """Forgets those that published longest ago: several at once, so that a stream of new ones
    does not look through all of them each time."""
    by_idleness = sorted(producers, key=lambda known: producers[known].run_next)
    for known in by_idleness[: 1 + len(producers) // 16]:
        del producers[known]
