"""Delayed messages on their way out, as batches for the partitions that they go to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import NamedTuple

from fanlog.broker.messages.intake import partition_key
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.schedule.records import DelayedRecord
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec, codec_named
from fanlog.format.dead_letters import Death, death_headers
from fanlog.format.keys import partition_of
from fanlog.format.schedules import (
    DUE,
    NONCE_BYTES,
    RUN_PREFIX,
    SCHEDULE,
    Delayed,
    due_text,
    due_us_of,
)
from fanlog.model import KIB

# Letters of delayed messages that their topic does not take.
DEAD_TOPIC = "dead.scheduled"
_REASON_CHARACTERS_MAX = 4096
# A larger batch is not compressed: its unpacked size could be such a multiple that it is refused.
_PACKED_BYTES_MAX = 512 * KIB


class DueMessage(NamedTuple):
    """A message as its topic gets it, and the record that it waited in."""

    record: DelayedRecord
    delayed: Delayed
    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes]

    @property
    def id(self) -> bytes:
        return self.record.key[NONCE_BYTES:]

    @property
    def own_bytes(self) -> int:
        """What its publisher gave."""
        own = self.delayed
        return (
            len(own.value or b"")
            + len(own.key or b"")
            + sum(map(len, (own.headers or {}).values()))
        )

    @property
    def bytes(self) -> int:
        size = len(self.value or b"") + len(self.key or b"")
        return size + sum(len(name) + len(content) for name, content in self.headers.items())


def message_of(record: DelayedRecord, delayed: Delayed) -> DueMessage:
    due_us = due_us_of(record.time_us, record.append_time_us)
    headers = {**(delayed.headers or {}), DUE: due_text(due_us)}
    if delayed.repeat is not None:
        headers[SCHEDULE] = record.key[NONCE_BYTES + len(RUN_PREFIX) :]
    return DueMessage(record, delayed, delayed.value, delayed.key, headers)


def dead_letter_of(message: DueMessage, reason: str, now_us: int) -> DueMessage:
    """The same as a dead letter, which `fanlog dead replay` puts back."""
    record, delayed = message.record, message.delayed
    death = Death(
        topic=delayed.topic,
        partition=max(0, delayed.partition),
        offset=record.offset,
        queue="schedule",
        reason=reason[:_REASON_CHARACTERS_MAX],
        deliveries=0,
        time=dt.datetime.fromtimestamp(now_us / 1e6, tz=dt.UTC),
        key=delayed.key,
        null=delayed.value is None,
        priority=delayed.priority,
    )
    headers = {**message.headers, **death_headers(death)}
    return message._replace(value=message.value or b"", key=death.letter_key, headers=headers)


def pick_partition(topic: BrokerTopic, message: DueMessage) -> Partition:
    """Where a message goes: as its publisher said, as its key says, or in turn."""
    partitions = topic.partitions
    wanted = message.delayed.partition
    if 0 <= wanted < len(partitions):
        return partitions[wanted]
    if message.key is not None:
        return partitions[partition_of(message.key, len(partitions))]
    return partitions[message.record.offset % len(partitions)]


def encode_messages(
    partition: Partition,
    messages: list[DueMessage],
    producer_id: int,
    now_us: int,
    *,
    first_sequence: int = 0,
    priority: int = 0,
) -> bytes:
    """A batch for one partition. A column that no message uses is left out."""
    keyed = any(message.key is not None for message in messages)
    times = [message.delayed.event_time_us for message in messages]
    timed = any(time_us is not None for time_us in times)
    policy = partition.topic.settings.compression
    if sum(message.bytes for message in messages) > _PACKED_BYTES_MAX:
        policy = "producer"
    return encode_batch(
        [message.value for message in messages],
        keys=[message.key for message in messages] if keyed else None,
        headers=[message.headers for message in messages],
        event_times_us=[now_us if t is None else t for t in times] if timed else None,
        codec=Codec.NONE if policy == "producer" else codec_named(policy),
        topic=partition.topic.number,
        partition=partition.index,
        producer_id=producer_id,
        first_sequence=first_sequence,
        priority=priority,
    )


def key_of(partition: Partition) -> int:
    return partition_key(partition.topic.number, partition.index)
