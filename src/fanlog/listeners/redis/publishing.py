"""PUBLISH: what one read of a socket brought for a partition becomes one batch, and the replies
wait for the broker's answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from fanlog.errors import FanlogError, MessageTooLargeError
from fanlog.format.frames import ACK_ENTRY
from fanlog.format.resp_replies import Failed, encode_reply

if TYPE_CHECKING:
    from fanlog.broker.topics import Partition
    from fanlog.listeners.redis.channels import Follower
    from fanlog.listeners.redis.pubsub import PubSub
    from fanlog.listeners.redis.replies import Place, Replies


class _Gathered:
    """What came for a partition, and where the replies to it stand."""

    __slots__ = ("places", "runs")

    def __init__(self) -> None:
        self.runs: list[Sequence[bytes]] = []
        self.places: list[Place] = []


class Publishing:
    """One peer's messages on their way in."""

    __slots__ = ("_gathered", "_last_token", "_pubsub", "_replies", "_tokens")

    def __init__(self, pubsub: PubSub, replies: Replies) -> None:
        self._pubsub = pubsub
        self._replies = replies
        self._gathered: dict[Partition, _Gathered] = {}
        self._tokens: dict[int, list[Place]] = {}
        self._last_token = 0

    @property
    def pending(self) -> bool:
        """Whether the broker has not answered for everything yet."""
        return bool(self._tokens)

    @property
    def gathering(self) -> bool:
        return bool(self._gathered)

    def publish(
        self, channel: bytes, values: Sequence[bytes], by: Follower, *, shard: bool, silent: bool
    ) -> None:
        """Gathers messages; each gets a reply, unless the peer wants none."""
        try:
            partition = self._pubsub.route(channel, by, shard=shard)
            if partition is not None:
                _check_sizes(partition, values)
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
        gathered = self._gathered.get(partition)
        if gathered is None:
            gathered = self._gathered[partition] = _Gathered()
        gathered.runs.append(values)
        self._pubsub.record(partition, values)
        reply = b"" if silent else b":%d\r\n" % partition.readers * len(values)
        gathered.places.append(self._replies.owe(reply, len(values)))

    def hand_in(self, by: Follower) -> None:
        """Gives the broker what was gathered, which answers `by`."""
        gathered, self._gathered = self._gathered, {}
        for partition, some in gathered.items():
            token = self._last_token = self._last_token + 1
            self._tokens[token] = some.places
            runs = some.runs
            values = runs[0] if len(runs) == 1 else [*chain.from_iterable(runs)]
            self._pubsub.put(partition, values, by, token)
        self._replies.close()

    def acknowledged(self, entries: list[bytes]) -> None:
        for entry in entries:
            self._replies.settle(self._tokens.pop(ACK_ENTRY.unpack(entry)[4]))

    def refused(self, token: int, fault: FanlogError) -> None:
        self._replies.settle(self._tokens.pop(token), _failure(fault))


def _failure(fault: FanlogError) -> bytes:
    return encode_reply(Failed(f"ERR {fault}"), resp3=False)


def _check_sizes(partition: Partition, values: Sequence[bytes]) -> None:
    topic = partition.topic
    most, largest = topic.settings.message_bytes_max, max(map(len, values))
    if largest > most:
        raise MessageTooLargeError(
            f"The message has {largest} bytes; topic {topic.name!r} takes {most} "
            "(message_bytes_max)."
        )
