"""Batches on their way in: the hot path between a listener and the log.

For each batch the intake looks at the header, makes one checksum, checks the producer's sequence
and stamps the batch, whatever it holds. Of a compressed batch it also checks the size after
unpacking (`batch_sizes.py`). It decodes only batches for compacted topics (`checks.py`). A frame
that names the sampled records of the next batch is noted on the way (`sampled_batches.py`), so that
one call takes a whole read. Batches are collected per partition for the turn; `Turns` puts them
into the log together.

It is long because one call takes a whole read: calls between the checks would be paid for each
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import google_crc32c

from fanlog.broker.messages.batch_sizes import Sizes
from fanlog.broker.messages.checks import Checks, NotYetError, ReplacementFault, Unchecked
from fanlog.broker.messages.metering import Metering
from fanlog.broker.messages.producers import Producer, forget_longest_idle
from fanlog.broker.messages.restrictions import UNRESTRICTED, RestrictedOrigin, Restrictions
from fanlog.broker.messages.sampled_batches import Sampled
from fanlog.broker.messages.topics import BrokerTopic, Partition, Submission
from fanlog.broker.messages.turns import Turns
from fanlog.config import BrokerOptions
from fanlog.errors import (
    ChecksumError,
    FanlogError,
    FencedError,
    FormatError,
    InvalidArgumentError,
    OutOfSequenceError,
    OverloadedError,
    TopicNotFoundError,
    UnknownProducerError,
    allow_more,
)
from fanlog.format.batch import check_body
from fanlog.format.codecs import Codec
from fanlog.format.columns import KEYS, KNOWN_FLAGS, columns_bytes_min
from fanlog.format.frames import ACK_ENTRY
from fanlog.format.header import (
    BATCH_BYTES_MIN,
    CHECKSUMS,
    CLIENT_PART,
    CLIENT_PART_AT,
    CODEC_BITS,
    HEADER_BYTES,
    INCOMING,
    KIND_BATCH,
    PRIORITY_MAX,
    RECORDS_MAX,
    STAMPED,
    VERSION,
    BatchHeader,
    read_header,
)
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.format.trace_context import KIND_TRACED
from fanlog.model import PRODUCER_ID_MAX, Durability

_CODEC_MAX = max(Codec)
# An uncompressed batch is at least this long, and 4 bytes for each of its records.
_PLAIN_BYTES_MIN = HEADER_BYTES + columns_bytes_min(0)
# Stands for an unknown producer: no batch is its next one.
_NOBODY = Producer(-1, -1, 0)
_NO_PRODUCERS: dict[int, Producer] = {}
# Past producers_max a share of them goes at once, so that a stream of new ones does not look
# through all of them each time.
_FORGOTTEN_SHARE = 16


def partition_key(number: int, partition: int) -> int:
    """One integer for a partition, so that a batch finds it with a single look-up."""
    return number << 16 | partition


# The error against more delayed messages, if any; by flags, columns and count.
ScheduledFault = Callable[[int, bytes, int], FanlogError | None]


class ProducerNames(Protocol):
    """Producers with names, which `state/named_producers.py` keeps."""

    def check(self, producer_id: int, epoch: int) -> None:
        """Raises if the id belongs to a name, and this is not its newest epoch."""
        ...

    def seen_in(self, producer_id: int, partition: Partition) -> None:
        """A producer has begun to publish to a partition."""
        ...


class _Claimed(NamedTuple):
    """The producer fields of a batch."""

    producer_id: int
    epoch: int
    sequence: int
    records: int
    reserved: bool
    staged: bool
    # Its position in the bytes that are taken.
    at: int


class Intake:
    """Takes whole batches from a publisher's bytes into the partitions' turn."""

    def __init__(
        self,
        partitions: dict[int, Partition],
        turns: Turns,
        options: BrokerOptions,
        now_us: Callable[[], int],
        *,
        named: ProducerNames,
        checks: Checks,
        metering: Metering,
        sampled: Sampled,
    ) -> None:
        self._partitions = partitions
        self._turns = turns
        self._dirty = turns.dirty
        self._options = options
        self._now_us = now_us
        self._named = named
        self._sizes = Sizes(options)
        self._checks = checks
        self._metering = metering
        self._sampled = sampled
        self._scheduled_fault: ScheduledFault = _no_fault
        self.epoch = 0
        self._allowed_epoch = 0
        # Partitions with their first batch with a priority, still to be recorded.
        self.newly_ranked: list[Partition] = []

    def ask_schedule(self, fault: ScheduledFault, replacement_fault: ReplacementFault) -> None:
        """Accepts or refuses delayed messages."""
        self._scheduled_fault = fault
        self._checks.replacement_fault = replacement_fault

    def take(  # noqa: PLR0912, PLR0915 - each batch comes by here, and calls are what it costs
        self,
        data: bytes,
        at: int,
        origin: RestrictedOrigin,
        *,
        reserved: bool = False,
        staged: bool = False,
    ) -> int:
        """Takes the batches that begin at `at` and are whole; returns where it stopped.

        A refusal goes to the origin, and the rest is taken; bad bytes raise FormatError. `reserved`
        is for the broker's own producers, whose ids no client may use, and `staged` for batches of
        a committed transaction. It stops in front of a batch that is decoded in a thread first; its
        origin is `checking` then.
        """
        size, now_us = len(data), self._now_us()
        unpack, crc, find = INCOMING.unpack_from, google_crc32c.value, self._finder(origin)
        pack_head, pack_sums, pack_ack = STAMPED.pack, CHECKSUMS.pack, ACK_ENTRY.pack
        fits, partition, key, submission, parts = self._sizes.fits, None, None, None, None
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
                if kind == KIND_TRACED and self._sampled.note_next(
                    data, at, end, self._partitions.get, now_us
                ):
                    at = end
                    continue
                break
            if (
                length < (BATCH_BYTES_MIN if codec else _PLAIN_BYTES_MIN + 4 * count)
                or length & 7
                or version != VERSION
                or not 0 < count <= RECORDS_MAX
                or codec > _CODEC_MAX
                or flags & ~KNOWN_FLAGS
            ):
                codec = self._ranked(data, at, partition_key(topic, index))
            body = data[at + CLIENT_PART_AT : end]
            if crc(body) != body_crc:
                raise ChecksumError(
                    "A batch's body checksum does not fit: it was damaged on its way. Send it "
                    "again."
                )
            at = end
            if key != topic << 16 | index:
                partition = find(key := partition_key(topic, index))
                if partition is not None:
                    submission, parts = self._begin(partition, origin, now_us)
                    sound_bytes, durability = (
                        self._sound_bytes(partition, origin),
                        partition.durability,
                    )
            if partition is None or submission is None or parts is None:
                self._refuse_unknown(origin, topic, index, sequence, at - length)
                continue
            if length > sound_bytes or (codec and not fits(body, flags, count, sound_bytes)):
                claimed = _Claimed(
                    producer_id, producer_epoch, sequence, count, reserved, staged, at - length
                )
                try:
                    if self._refused(origin, partition, submission, claimed, data):
                        continue
                except NotYetError:
                    return self._sampled.not_taken(at - length)
            base_offset, producer = partition.next_offset, None
            if producer_id:
                producer = (partition.producers or _NO_PRODUCERS).get(producer_id, _NOBODY)
                if sequence != producer.next_sequence or producer_epoch != producer.epoch:
                    claimed = _Claimed(
                        producer_id, producer_epoch, sequence, count, reserved, staged, at - length
                    )
                    producer = self._next_or_answered(partition, submission, claimed)
                    if producer is None:
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

    def _ranked(self, data: bytes, at: int, key: int) -> int:
        """The codec of a batch that has a priority; its partition is noted, for queues to look.
        Anything else that is unusual about a batch raises FormatError."""
        length, _, version, _, _, _, _, _, _, packing, flags, count = INCOMING.unpack_from(data, at)
        codec, priority = packing & CODEC_BITS, packing >> 4
        if (
            length < (BATCH_BYTES_MIN if codec else _PLAIN_BYTES_MIN + 4 * count)
            or length & 7
            or version != VERSION
            or not 0 < count <= RECORDS_MAX
            or codec > _CODEC_MAX
            or priority > PRIORITY_MAX
            or flags & ~KNOWN_FLAGS
        ):
            raise FormatError(
                f"A batch header is out of bounds: length {length}, version {version}, "
                f"{count} records, codec {codec}, priority {priority}, flags {flags:#04x}."
            )
        partition = self._partitions.get(key)
        if partition is not None and partition.ranked_from is None:
            partition.ranked_from = partition.next_offset
            self.newly_ranked.append(partition)
        return codec

    def inspect(self, data: bytes, at: int, origin: Restrictions | None = None) -> BatchHeader:
        """The header of a batch that will be taken later. Every error is raised now: bad bytes as
        FormatError, the rest with the error that a publisher would get."""
        header = read_header(data, at)
        if (
            header.codec > _CODEC_MAX
            or header.priority > PRIORITY_MAX
            or header.flags & ~KNOWN_FLAGS
        ):
            raise FormatError(
                f"A batch header is out of bounds: codec {header.codec}, priority "
                f"{header.priority}, flags {header.flags:#04x}."
            )
        check_body(data, header, at)
        partition = self._partitions.get(partition_key(header.topic, header.partition))
        if partition is None:
            raise _unknown_topic(header.topic, header.partition)
        body = data[at + CLIENT_PART_AT : at + header.length]
        fault = self._fault(partition, body, header.codec, header.flags, header.record_count)
        if fault is None and origin is not None:
            fault = self._metering.maybe_fault(partition.topic, origin)
        fault = fault or self._unscheduled(partition, body, header)
        if fault is not None:
            raise type(fault)(str(fault))
        return header

    def check_columns(
        self, data: bytes, batches: Iterable[tuple[int, BatchHeader]], origin: Restrictions | None
    ) -> None:
        """Checks the columns of batches that will be taken later, if their topics are compacted.
        Raises `NotYetError` if the origin has to ask again."""
        found: list[Unchecked] = []
        origin = origin or UNRESTRICTED
        guard = origin.guard
        for at, header in batches:
            partition = self._partitions.get(partition_key(header.topic, header.partition))
            refusal = None if partition is None or not guard else guard(partition.topic.name)
            if refusal is not None:
                raise refusal
            if partition is not None and _is_read(partition.topic):
                found.append(Unchecked(data, at, header, partition.topic.name))
        for fault in self._checks.faults(origin, found) if found else ():
            if fault is not None:
                raise fault

    def _begin(
        self, partition: Partition, origin: RestrictedOrigin, now_us: int
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
        group = self._turns.group
        return group is not None and group.pending_bytes > self._options.pending_bytes_max

    def _sound_bytes(self, partition: Partition, origin: RestrictedOrigin) -> int:
        """Batches up to this length need no further check."""
        settings = partition.topic.settings
        metering = self._metering
        if (
            (metering.on and metering.touch(partition, origin) is not None)
            or partition.log.failure is not None
            or _is_read(partition.topic)
            or (self._turns.group is not None and self._overloaded())
        ):
            return 0
        return settings.message_bytes_max

    def _refused(
        self,
        origin: Restrictions,
        partition: Partition,
        submission: Submission,
        claimed: _Claimed,
        data: bytes,
    ) -> bool:
        """Checks a batch; True if it was refused. Raises `NotYetError` if the caller must offer it
        again."""
        at = claimed.at
        header = read_header(data, at)
        body = data[at + CLIENT_PART_AT : at + header.length]
        fault = self._fault(
            partition,
            body,
            header.codec,
            header.flags,
            header.record_count,
            staged=claimed.staged,
        )
        if fault is None and not claimed.reserved:
            fault = self._metering.maybe_fault(partition.topic, origin)
        if fault is None and not claimed.reserved:
            fault = self._unscheduled(partition, body, header)
        if (
            fault is None
            and _is_read(partition.topic)
            # Staged batches of a transaction were checked before.
            and not claimed.reserved
        ):
            batch = Unchecked(data, at, header, partition.topic.name)
            fault = self._checks.fault(origin, batch)
        if fault is not None:
            self._turn_away(partition, submission, claimed, fault)
        return fault is not None

    def _fault(
        self,
        partition: Partition,
        body: bytes,
        codec: int,
        flags: int,
        count: int,
        *,
        staged: bool = False,
    ) -> FanlogError | None:
        """The error against a batch, or None. `body` begins with the part that its checksum covers.
        A `staged` batch was checked before its transaction was committed: a later change of the
        topic must not remove a part of the transaction."""
        if partition.log.failure is not None:
            return partition.log.failure
        if self._overloaded():
            return OverloadedError(
                f"More than {self._options.pending_bytes_max} bytes wait for the broker's disk, "
                "which is slower than its publishers. Publish again a little later. "
                + allow_more("broker.pending_bytes_max")
            )
        if staged:
            return None
        fault = self._sizes.fault(partition.topic, body, codec, flags, count)
        if fault is not None:
            return fault
        if not flags & KEYS and partition.topic.settings.cleanup == "compact":
            return InvalidArgumentError(
                f"Topic {partition.topic.name!r} is compacted, and keeps the last message of each "
                "key: publish each message with a key."
            )
        return None

    def _unscheduled(
        self, partition: Partition, body: bytes, header: BatchHeader
    ) -> FanlogError | None:
        """The error against a batch of delayed messages, or None."""
        if partition.topic.name != SCHEDULED_TOPIC:
            return None
        columns = body[CLIENT_PART.size :]
        return self._scheduled_fault(header.flags, columns, header.record_count)

    def _finder(self, origin: RestrictedOrigin) -> Callable[[int], Partition | None]:
        """Finds the partition of a key, if this publisher may publish there."""
        allowed = origin.allowed
        if allowed is None:
            return self._partitions.get
        if allowed.epoch != self._allowed_epoch:
            allowed.renew(self._allowed_epoch)
        return allowed.__getitem__

    def ask_again(self) -> None:
        """Permissions or topics have changed: kept answers are dropped."""
        self._allowed_epoch += 1

    def _refuse_unknown(
        self, origin: RestrictedOrigin, topic: int, index: int, sequence: int, at: int
    ) -> None:
        self._sampled.not_taken(at)
        partition = self._partitions.get(partition_key(topic, index))
        guard = origin.guard
        refusal = guard(partition.topic.name) if guard and partition is not None else None
        origin.refuse(topic, index, sequence, sequence, refusal or _unknown_topic(topic, index))

    def _turn_away(
        self, partition: Partition, submission: Submission, claimed: _Claimed, fault: FanlogError
    ) -> None:
        """Refuses a batch. A repeat is still acknowledged: if it were refused, its numbers would go
        to other records, which would then look like the repeat. A refused first batch still
        registers its producer, so that the next batches have to wait for it."""
        self._sampled.not_taken(claimed.at)
        if claimed.producer_id and self._next_or_answered(partition, submission, claimed) is None:
            return
        sequence = claimed.sequence
        submission.origin.refuse(partition.topic.number, partition.index, sequence, sequence, fault)

    def _next_or_answered(
        self, partition: Partition, submission: Submission, claimed: _Claimed
    ) -> Producer | None:
        """The producer, if this batch is its next one after all; None once the batch is answered: a
        repeat with its first offset, as soon as the first is durable enough, everything else with
        an error."""
        topic, sequence, expected = partition.topic.number, claimed.sequence, 0
        try:
            producer = self._admitted(partition, claimed)
            expected = producer.next_sequence
            if sequence == expected:
                return producer
            base_offset = producer.offset_of(sequence, claimed.records)
        except (OutOfSequenceError, UnknownProducerError, FencedError) as error:
            self._sampled.not_taken(claimed.at)
            submission.origin.refuse(topic, partition.index, sequence, expected, error)
            return None
        self._sampled.not_taken(claimed.at)
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
        return None

    def _admitted(self, partition: Partition, claimed: _Claimed) -> Producer:
        """The producer of a batch; a new one, or one of a new epoch, begins with sequence 0."""
        producer_id, epoch, sequence, _, reserved, _, _ = claimed
        producers = partition.remember_producers()
        producer = producers.get(producer_id)
        if producer is not None and producer.epoch == epoch:
            return producer
        if producer_id > PRODUCER_ID_MAX and not reserved:
            raise FormatError(
                f"The producer id {producer_id} is one of the broker's own: use one up to "
                f"{PRODUCER_ID_MAX}."
            )
        self._named.check(producer_id, epoch)
        if producer is not None and epoch < producer.epoch:
            raise FencedError(
                f"Producer epoch {epoch} was superseded by {producer.epoch}: another client "
                "publishes under this id. Nothing was stored."
            )
        if sequence:
            raise UnknownProducerError(
                f"Partition {partition.name} does not know the producer of this batch, which has "
                f"sequence {sequence}: what came before it is forgotten. Begin again with 0."
            )
        # The producer of a transaction stays for a second, and replaces no other.
        if producer is None and not reserved and len(producers) >= self._options.producers_max:
            forget_longest_idle(producers, 1 + len(producers) // _FORGOTTEN_SHARE)
        producer = producers[producer_id] = Producer(epoch, 0, partition.next_offset)
        self._named.seen_in(producer_id, partition)
        return producer


def _is_read(topic: BrokerTopic) -> bool:
    """Whether the broker itself reads a topic's records, and so has to check them."""
    return topic.settings.cleanup == "compact" or topic.name == SCHEDULED_TOPIC


def _no_fault(flags: int, body: bytes, count: int) -> None:
    return None


def _unknown_topic(topic: int, index: int) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"There is no topic number {topic} with a partition {index} on this broker: the topic was "
        "deleted. If there is a new one with its name, ask for its number."
    )
