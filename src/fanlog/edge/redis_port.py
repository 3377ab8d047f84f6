"""Redis clients on an edge of a Fanlog broker: subscriptions read the mirrors, and messages go
upstream through the edge's client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Origin
from fanlog.edge.references import TopicReference
from fanlog.errors import FanlogError, TopicNotFoundError
from fanlog.format.batch import Batch
from fanlog.format.channels import pattern_over, topic_of
from fanlog.format.frames import ACK_ENTRY, Ack, FrameKind
from fanlog.format.header import read_header
from fanlog.format.messages import CreateTopic
from fanlog.format.patterns import is_pattern
from fanlog.format.resp_replies import ErrorReply
from fanlog.listeners.redis.channels import ChannelFollower
from fanlog.listeners.redis.pubsub import PubSub
from fanlog.listeners.redis.server import RedisConnection, RedisListener
from fanlog.listeners.redis.session import RedisSession
from fanlog.log.mirror import MirrorLog
from fanlog.log.opening import StoredTopic
from fanlog.log.scan import Owner
from fanlog.model import TopicSettings

if TYPE_CHECKING:
    from fanlog.client.aio import Client
    from fanlog.config import RedisOptions
    from fanlog.edge.core import EdgeCore
    from fanlog.edge.fanlog_upstream import FanlogUpstream
    from fanlog.format.resp import Command

logger = logging.getLogger("fanlog.edge")

# Partitions that gather messages of one topic. All messages of a connection use the same one.
_GATHERING_PER_TOPIC = 8
# Gathering partitions that are kept. Those dropped are made again when they are needed.
_GATHERING_MAX = 10_000
_FOLLOWING = {b"SUBSCRIBE": b"s", b"PSUBSCRIBE": b"p", b"SSUBSCRIBE": b"h"}


class _Outbox:
    """Publishes messages of Redis clients upstream. It replaces the core's intake."""

    def __init__(self, client: Client, options: RedisOptions) -> None:
        self._client = client
        self._options = options
        self._gathering: dict[tuple[str, int], Partition] = {}
        self._names: dict[int, tuple[str, int]] = {}
        self._number = 0
        self._last: dict[int, asyncio.Task[None]] = {}

    def partition(self, name: str, number: int) -> Partition:
        """The partition that gathers a connection's messages to a topic."""
        key = (name, number % _GATHERING_PER_TOPIC)
        known = self._gathering.pop(key, None)
        if known is None:
            self._make_room()
            self._number += 1
            settings = TopicSettings(message_bytes_max=self._options.bulk_bytes_max)
            stored = StoredTopic(name, self._number, settings)
            stored.logs.append(MirrorLog(settings, Owner(self._number, 0)))
            known = BrokerTopic(stored).partitions[0]
            self._names[self._number] = key
        # The most recently used is last: it may still gather messages.
        self._gathering[key] = known
        return known

    def _make_room(self) -> None:
        """Drops the partition that was unused for longest, unless its messages are on their way."""
        if len(self._gathering) >= _GATHERING_MAX:
            key, oldest = next(iter(self._gathering.items()))
            if oldest.topic.number not in self._last:
                del self._gathering[key], self._names[oldest.topic.number]

    def take(self, data: bytes, at: int, origin: Origin) -> int:
        header = read_header(data, at)
        end = at + header.length
        values = Batch(data[at:end], header).values
        number, before = header.topic, self._last.get(header.topic)
        task = asyncio.create_task(
            self._publish(
                number, self._names[number], values, header.first_sequence, origin, before=before
            )
        )
        self._last[number] = task
        task.add_done_callback(lambda _: self._done(number, task))
        return end

    def _done(self, number: int, task: asyncio.Task[None]) -> None:
        if self._last.get(number) is task:
            del self._last[number]

    async def _publish(
        self,
        number: int,
        way: tuple[str, int],
        values: Sequence[bytes | None],
        token: int,
        origin: Origin,
        *,
        before: asyncio.Task[None] | None,
    ) -> None:
        name, index = way
        try:
            if before is not None:
                await asyncio.wait({before})
            partitions = await self._partitions(name)
            if partitions:
                await asyncio.gather(
                    *(
                        self._client.publish(name, value, partition=index % partitions)
                        for value in values
                    )
                )
        except FanlogError as fault:
            origin.refuse(number, 0, token, token, fault)
            return
        origin.acknowledge([ACK_ENTRY.pack(*Ack(number, 0, 0, 0, token, 0, 0))])

    async def _partitions(self, name: str) -> int:
        """The number of a topic's partitions. As at the broker, the topic is created if a reader
        waits for it; otherwise it is 0, and the message is dropped."""
        options = self._options
        channel: dict[str, int | str] = {
            "partitions": 1,
            "durability": "memory",
            "retention_seconds": options.channel_retention_seconds,
            "message_bytes_max": options.bulk_bytes_max,
            "tail_bytes": options.channel_tail_bytes,
        }
        wanted = CreateTopic(name, channel, exist_ok=True, compare=(), awaited=True)
        try:
            await self._client.ask(FrameKind.CREATE_TOPIC, wanted)
        except TopicNotFoundError:
            return 0
        return (await self._client.open_topic(name)).settings.partitions


class EdgePubSub(PubSub):
    """Channels of an edge."""

    def __init__(
        self, core: EdgeCore, options: RedisOptions, upstream: FanlogUpstream, client: Client
    ) -> None:
        super().__init__(core, options, create_topics=False)
        self._outbox = _Outbox(client, options)
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()
        core.publisher = self._outbox.take

    def route(self, name: bytes, number: int, *, shard: bool, owner: str = "") -> Partition | None:
        partition = self._outbox.partition(topic_of(name, shard=shard), number)
        partition.readers = self.follower_count(name, shard=shard)
        return partition

    def subscribe(self, follower: ChannelFollower, name: bytes, *, shard: bool) -> bool:
        begun = super().subscribe(follower, name, shard=shard)
        if begun:
            self._hold(TopicReference(topic_of(name, shard=shard), False))
        return begun

    def unsubscribe(self, follower: ChannelFollower, name: bytes, *, shard: bool) -> bool:
        ended = super().unsubscribe(follower, name, shard=shard)
        if ended:
            self._upstream.unfollow(topic_of(name, shard=shard), False)
        return ended

    def psubscribe(self, follower: ChannelFollower, text: bytes) -> bool:
        begun = super().psubscribe(follower, text)
        if begun:
            self._hold(pattern_target(text))
        return begun

    def punsubscribe(self, follower: ChannelFollower, text: bytes) -> bool:
        ended = super().punsubscribe(follower, text)
        if ended:
            self._upstream.unfollow(*pattern_target(text))
        return ended

    def _hold(self, target: TopicReference) -> None:
        """The channel is usually followed already: its session has waited for that."""
        if not self._upstream.hold(target):
            self.in_task(self._upstream.follow(*target))

    def in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.warning("a channel is not followed upstream: %s", fault)

    @property
    def upstream(self) -> FanlogUpstream:
        return self._upstream


class EdgeRedisSession(RedisSession):
    """A peer whose subscriptions start when upstream sends their messages: after the confirmation,
    none is missed."""

    def __init__(self, pubsub: EdgePubSub, *arguments: Any, **options: Any) -> None:
        super().__init__(pubsub, *arguments, **options)
        self._edge = pubsub
        self._preparing: list[bytes] | None = None
        self._prepared: list[TopicReference] = []

    def _obey(self, words: Command) -> None:
        kind = _FOLLOWING.get(words[0].upper()) if words else None
        if kind is None or self.queue is not None or not self.trusted or len(words) < 2:
            super()._obey(words)
            return
        if self._preparing is not words and not self._prepared:
            self._preparing = words
            self._waits = True
            self._todo.appendleft(words)
            self._edge.in_task(self._prepare(kind, words))
            return
        if not self._prepared:
            # It was woken for another reason: its target is not followed yet.
            self._waits = True
            self._todo.appendleft(words)
            return
        prepared, self._prepared, self._preparing = self._prepared, [], None
        super()._obey(words)
        self._let_go(prepared)

    async def _prepare(self, kind: bytes, words: Command) -> None:
        targets = list(dict.fromkeys(_target(kind, name) for name in words[1:]))
        held: list[TopicReference] = []
        try:
            for target in targets:
                await self._edge.upstream.follow(*target)
                held.append(target)
        except FanlogError as fault:
            self._let_go(held)
            held = []
            if self._todo and self._todo[0] is words:
                self._todo.popleft()
            self._preparing = None
            self.say(ErrorReply(f"ERR {fault}"))
        if self._closed:
            self._let_go(held)
            return
        self._prepared = held
        self._waits = False
        self.outlet.proceed_soon()

    def _let_go(self, targets: Sequence[TopicReference]) -> None:
        for target in targets:
            self._edge.upstream.unfollow(*target)

    def closed(self) -> None:
        super().closed()
        prepared, self._prepared = self._prepared, []
        self._let_go(prepared)


class EdgeRedisListener(RedisListener):
    """The Redis listener of an edge."""

    def __init__(
        self, core: EdgeCore, *arguments: Any, upstream: FanlogUpstream, client: Client
    ) -> None:
        super().__init__(core, *arguments, create_topics=False)
        self._core = core
        self._upstream = upstream
        self._client = client

    def make_pubsub(self) -> PubSub:
        return EdgePubSub(self._core, self._redis, self._upstream, self._client)

    def make_session(self, connection: RedisConnection, peer: str, local: str) -> RedisSession:
        assert isinstance(self.pubsub, EdgePubSub)
        return EdgeRedisSession(
            self.pubsub, self.state, connection, self._pipeline, peer=peer, local=local
        )


def pattern_target(text: bytes) -> TopicReference:
    """The target to follow for a Redis pattern."""
    over = pattern_over(text)
    return TopicReference(over, is_pattern(over))


def _target(kind: bytes, name: bytes) -> TopicReference:
    if kind == b"p":
        return pattern_target(name)
    return TopicReference(topic_of(name, shard=kind == b"h"), False)
