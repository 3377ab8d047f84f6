"""PUBLISH: a turn's messages for a partition, from all connections, become one batch, and the
replies wait for the broker's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fanlog.broker.messages.metering import Meter, Metering
from fanlog.broker.messages.restrictions import Unrestricted
from fanlog.errors import FanlogError, ForbiddenError, MessageTooLargeError, too_large
from fanlog.format.batch import encode_batch
from fanlog.format.channels import topic_of
from fanlog.format.frames import ACK_ENTRY
from fanlog.format.resp_replies import ErrorReply, encode_reply
from fanlog.model import Durability

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import Partition
    from fanlog.listeners.redis.replies import Owed, Replies

# At this size the gathered messages go to the broker, so that a batch is not larger than a read.
_GATHERED_BYTES_MAX = 256 * 1024
# Redis's error for a forbidden channel.
NO_CHANNEL = ErrorReply("NOPERM No permissions to access a channel")
# Memory of a message besides its bytes.
_MESSAGE_BYTES = 64


class PublishingConnection(Protocol):
    """A connection, as far as its messages need it."""

    number: int

    def settled(self) -> None:
        """The broker has answered for messages that were owed a reply together."""
        ...

    def throttle(self, seconds: float) -> None:
        """Takes no further command for this time."""
        ...


class ChannelRoutes(Protocol):
    """The channels, as far as publishing needs them."""

    gathering: Gathering

    def route(
        self, name: bytes, number: int, *, shard: bool, owner: str = ""
    ) -> Partition | None: ...
    def readers_of(self, partition: Partition) -> int: ...


# Messages of one connection to one partition, and the position of their reply.
_Run = tuple["Partition", Sequence[bytes], PublishingConnection, "Owed", int]


class Gathering(Unrestricted):
    """Messages of all connections that the broker does not have yet. They are submitted at the end
    of its turn. This is the broker's Origin for them, and answers their publishers."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        # Messages for the next `hand_in`.
        self.runs: list[_Run] = []
        self._bytes = 0
        self._tokens: dict[int, list[_Run]] = {}
        self._last_token = 0
        self._last = 0
        broker.turns.feeders.append(self.hand_in)

    def add(self, run: _Run, cost_bytes: int) -> None:
        self.runs.append(run)
        self._bytes += cost_bytes
        if self._bytes > _GATHERED_BYTES_MAX:
            self.hand_in()

    def read_over(self, number: int) -> None:
        """One read of a connection is complete. While only this connection publishes, its messages
        can share a turn with no others, and need not wait for its end."""
        turns = self._broker.turns
        if number == self._last:
            turns.end()
        else:
            self._last = number
            turns.schedule()

    def hand_in(self) -> None:
        """Submits the gathered messages, in one batch per partition."""
        if not self.runs:
            return
        runs, self.runs, self._bytes = self.runs, [], 0
        batches: dict[Partition, list[_Run]] = {}
        for run in runs:
            partition = run[0]
            if _shown_at_once(partition):
                self._broker.renderer.record(partition, run[1])
            batch = batches.get(partition)
            if batch is None:
                batches[partition] = [run]
            else:
                batch.append(run)
        for partition, batch in batches.items():
            self._put(partition, batch)

    def _put(self, partition: Partition, runs: list[_Run]) -> None:
        values = runs[0][1] if len(runs) == 1 else [value for run in runs for value in run[1]]
        token = self._last_token = self._last_token + 1
        self._tokens[token] = runs
        data = encode_batch(
            values, topic=partition.topic.number, partition=partition.index, first_sequence=token
        )
        base_offset = partition.next_offset
        self._broker.take(data, 0, self)
        if _shown_at_once(partition) and partition.next_offset == base_offset + len(values):
            self._broker.renderer.offer(partition, base_offset, values)

    # The broker's Origin

    def acknowledge(self, entries: list[bytes]) -> None:
        for entry in entries:
            for _, _, publisher, owed, _ in self._tokens.pop(ACK_ENTRY.unpack(entry)[4]):
                owed.waiting -= 1
                publisher.settled()

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None:
        failure = _failure(error)
        for _, values, publisher, owed, at in self._tokens.pop(first_sequence):
            owed.fail(at, failure * len(values))
            publisher.settled()


class RedisPublishing:
    """One peer's messages on their way in."""

    __slots__ = (
        "_gathering",
        "_guarded",
        "_meter",
        "_metering",
        "_permit",
        "_pubsub",
        "_replies",
        "pending",
    )

    def __init__(
        self, pubsub: ChannelRoutes, replies: Replies, permit: Permit, metering: Metering
    ) -> None:
        self._permit = permit
        self._guarded = permit.guarded
        self._metering = metering
        self._meter = Meter(metering, permit)
        self._pubsub = pubsub
        self._gathering = pubsub.gathering
        self._replies = replies
        # How many times the broker has not answered yet.
        self.pending = 0

    def publish(
        self,
        channel: bytes,
        values: Sequence[bytes],
        by: PublishingConnection,
        *,
        shard: bool,
        silent: bool,
    ) -> None:
        """Gathers messages; each gets a reply, unless the peer wants none."""
        try:
            owner = ""
            if self._guarded:
                _ask(self._permit, channel, shard)
                owner = self._permit.owner
            partition = self._pubsub.route(channel, by.number, shard=shard, owner=owner)
            largest = 0 if partition is None else _check_sizes(partition, values)
            if self._metering.on:
                self._charge(partition, values, by)
        except FanlogError as fault:
            if len(values) > 1 and isinstance(fault, MessageTooLargeError):
                for value in values:
                    self.publish(channel, (value,), by, shard=shard, silent=silent)
            elif not silent:
                self._replies.put(_failure(fault) * len(values))
            return
        if partition is None:
            if not silent:
                self._replies.put(b":0\r\n" * len(values))
            return
        reply = b"" if silent else b":%d\r\n" % self._pubsub.readers_of(partition) * len(values)
        owed, at = self._replies.owe(reply)
        self.pending += 1
        cost_bytes = (largest + _MESSAGE_BYTES) * len(values)
        self._gathering.add((partition, values, by, owed, at), cost_bytes)

    def _charge(
        self, partition: Partition | None, values: Sequence[bytes], by: PublishingConnection
    ) -> None:
        """Counts messages, also those without receivers. Raises RateLimitedError if their publisher
        is too far above its rate."""
        rates, topic = self._meter.rates, None if partition is None else partition.topic
        if rates is None and (topic is None or topic.limits is None):
            return
        size = sum(map(len, values))
        wait = self._metering.charge(rates, topic, len(values), size)
        if wait:
            by.throttle(wait)


def _shown_at_once(partition: Partition) -> bool:
    """Whether readers with a view get what is published in the same turn."""
    audience = partition.audience
    return (
        audience is not None
        and bool(audience.viewed)
        and partition.durability is not Durability.FSYNC
    )


def _ask(permit: Permit, channel: bytes, shard: bool) -> None:
    refusal = permit.may_publish(topic_of(channel, shard=shard))
    if refusal is not None:
        raise refusal


def _failure(fault: FanlogError) -> bytes:
    if isinstance(fault, ForbiddenError):
        return encode_reply(NO_CHANNEL, resp3=False)
    return encode_reply(ErrorReply(f"ERR {fault}"), resp3=False)


def _check_sizes(partition: Partition, values: Sequence[bytes]) -> int:
    """The size of the largest message."""
    topic = partition.topic
    most = topic.settings.message_bytes_max
    largest = len(values[0]) if len(values) == 1 else max(map(len, values))
    if largest > most:
        raise too_large(f"The message has {largest} bytes", topic.name, most)
    return largest
