"""Publish and subscribe as Redis does it, over the broker's topics.

Redis hands a message on before it reads the next command; the broker ends its turn when all that is
ready has been read. So a turn is ended early where somebody could tell the difference: before a
subscription begins or ends. And a client that follows several channels gets the messages of a turn
in the order in which they were published.

It is long because it alone decides the order of messages, replies and subscriptions.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from fanlog.broker.messages.following import follow, unfollow
from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.broker.messages.wire_forms import View
from fanlog.errors import FanlogError, TopicNotFoundError
from fanlog.format.channels import maybe_channel_of, topic_of
from fanlog.format.globs import Glob
from fanlog.format.record_views import RecordView
from fanlog.identity import Verb
from fanlog.listeners.redis.channels import Channel, ChannelFollower, Pattern
from fanlog.listeners.redis.publishing import Gathering
from fanlog.model import Gap, SlowPolicy

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic, Partition
    from fanlog.config import RedisOptions
    from fanlog.format.messages import Joined, Notice

_UNHEARD_MAX = 10_000
_UNHEARD_NAME_BYTES_MAX = 255
_CHECKED_A_SECOND = 2000
# Characters of a client's name that are recorded when it misses messages.
_CLIENT_BYTES_MAX = 255


class _Untold:
    """Redis has no word for a gap, or for a topic that comes, goes or is missing: the topic counts
    gaps. And a subscription's life is its session's matter."""

    def gap(self, gap: Gap, number: int) -> None: ...
    def joined(self, joined: Joined) -> None: ...
    def left(self, number: int, name: str) -> None: ...
    def notice(self, notice: Notice) -> None: ...
    def lost(self, subscription: BrokerSubscription) -> None: ...
    def leave(self, subscription: BrokerSubscription) -> None: ...


class PubSub:
    """All channels and patterns of the listener."""

    def __init__(
        self,
        broker: BrokerCore,
        options: RedisOptions,
        *,
        create_topics: bool,
    ) -> None:
        self._broker = broker
        self._options = options
        self.gathering = Gathering(broker)
        self._create_topics = create_topics
        self._reader = _Untold()
        self._channels: dict[bool, dict[bytes, Channel]] = {False: {}, True: {}}
        self._by_topic: dict[str, Channel] = {}
        self._patterns: dict[bytes, Pattern] = {}
        self._subscriptions: dict[ChannelFollower, dict[BrokerSubscription, None]] = {}
        # Topics that were made here: since when nothing happens to them, and where they end.
        self._made: dict[BrokerTopic, tuple[float, int]] = {}
        # Channels that were published to without followers, until one comes.
        self._unheard: set[bytes] = set()
        self._unheard_at = -1
        broker.events.subscribe(
            created=self._topic_appeared, grown=self._topic_grew, deleted=self._topic_vanished
        )

    # Publishing

    def route(self, name: bytes, number: int, *, shard: bool, owner: str = "") -> Partition | None:
        """The partition for a message to the channel from this connection; None without receivers.
        If a topic is created, it belongs to `owner`."""
        channel = self._channels[shard].get(name)
        topic = None if channel is None else channel.topic
        if topic is None:
            if (
                channel is None
                and name in self._unheard
                and self._unheard_at == self._broker.subscriptions.changes
                and not shard
            ):
                return None
            topic = self._find_topic(name, channel, shard, owner)
            if topic is None:
                return None
        partitions = topic.partitions
        # All of one connection stay in one partition, and so in their order.
        return partitions[number % len(partitions)]

    def readers_of(self, partition: Partition) -> int:
        """The receivers of a message there, including those that have just started with its topic,
        where very many do."""
        return partition.readers + self._broker.subscriptions.joining(partition.topic)

    def end_turn(self) -> None:
        """Everything published so far is handed on now."""
        if self._broker.turns.dirty or self.gathering.runs:
            self._broker.turns.end()

    def _find_topic(
        self, name: bytes, channel: Channel | None, shard: bool, owner: str
    ) -> BrokerTopic | None:
        """The topic to publish to; a new one if a follower waits for it."""
        if channel is None and not shard:
            changes = self._broker.subscriptions.changes
            if changes != self._unheard_at or len(self._unheard) > _UNHEARD_MAX:
                self._unheard.clear()
                self._unheard_at = changes
        topic_name = topic_of(name, shard=shard) if channel is None else channel.topic_name
        topic = self._broker.catalog.find(topic_name)
        if topic is None:
            if channel is None and not self._is_wanted(name, topic_name, shard):
                if not shard and len(name) <= _UNHEARD_NAME_BYTES_MAX:
                    self._unheard.add(name)
                return None
            return self._create(name, topic_name, channel, shard, owner)
        self._bind(channel or self._channel(name, shard), topic)
        return topic

    def _is_wanted(self, name: bytes, topic_name: str, shard: bool) -> bool:
        if not shard and any(pattern.fits(name) for pattern in self._patterns.values()):
            return True
        return self._broker.is_awaited(topic_name)

    def _create(
        self, name: bytes, topic_name: str, channel: Channel | None, shard: bool, owner: str
    ) -> BrokerTopic:
        if not self._create_topics:
            raise TopicNotFoundError(
                f"There is no topic {topic_name!r}, and broker.auto_create_topics is off. Make it "
                f"with: fanlog topic create {shlex.quote(topic_name)}"
            )
        options = self._options
        # Registered before its topic appears: a very long name can't be derived from the topic.
        channel = channel or self._channel(name, shard)
        try:
            topic = self._broker.create_topic(
                topic_name,
                {
                    "partitions": 1,
                    "durability": "memory",
                    "retention_seconds": options.channel_retention_seconds,
                    "message_bytes_max": options.bulk_bytes_max,
                    "tail_bytes": options.channel_tail_bytes,
                },
                owner=owner,
            )
        except FanlogError:
            self._maybe_forget(channel)
            raise
        self._made[topic] = (0.0, -1)
        return topic

    # Following

    def subscribe(self, follower: ChannelFollower, name: bytes, *, shard: bool) -> bool:
        """False if the follower has the channel already."""
        channel = self._channels[shard].get(name) or self._channel(name, shard)
        if follower in channel.followers:
            return False
        self.end_turn()
        subscription = self._subscription(follower, channel.topic_name)
        channel.followers[follower] = subscription
        if channel.topic is None:
            channel.topic = self._broker.catalog.find(channel.topic_name)
        if channel.topic is not None:
            self._follow(follower, subscription, channel.topic, channel)
        return True

    def unsubscribe(self, follower: ChannelFollower, name: bytes, *, shard: bool) -> bool:
        """False if the follower does not have the channel."""
        channel = self._channels[shard].get(name)
        if channel is None or follower not in channel.followers:
            return False
        self.end_turn()
        self._end(follower, channel.followers.pop(follower))
        self._maybe_forget(channel)
        return True

    def psubscribe(self, follower: ChannelFollower, text: bytes) -> bool:
        """False if the follower has the pattern already."""
        pattern = self._patterns.get(text)
        if pattern is None:
            pattern = self._patterns[text] = Pattern(text)
        if follower in pattern.followers:
            return False
        self.end_turn()
        self._unheard.clear()
        subscription = self._subscription(follower, topic_of(text))
        pattern.followers[follower] = subscription
        for topic in self._broker.catalog:
            name = self._maybe_channel_name(topic)
            if name is not None and pattern.fits(name):
                self._match(name, topic, pattern, follower, subscription)
        return True

    def punsubscribe(self, follower: ChannelFollower, text: bytes) -> bool:
        """False if the follower does not have the pattern."""
        pattern = self._patterns.get(text)
        if pattern is None or follower not in pattern.followers:
            return False
        self.end_turn()
        subscription = pattern.followers.pop(follower)
        topics = {cursor.partition.topic for cursor in subscription.cursors}
        self._end(follower, subscription)
        for topic in topics:
            channel = self._by_topic.get(topic.name)
            if channel is not None:
                channel.matched -= 1
                channel.forget_views()
                self._maybe_forget(channel)
        if not pattern.followers:
            del self._patterns[text]
        return True

    def rebind(self, follower: ChannelFollower, channels: Iterable[tuple[bytes, bool]]) -> None:
        """The follower speaks the other RESP from now on: its views change."""
        for name, shard in channels:
            channel = self._channels[shard][name]
            subscription = channel.followers[follower]
            if channel.topic is not None:
                unfollow(self._broker.fan_out, subscription, channel.topic)
                self._follow(follower, subscription, channel.topic, channel)
        for text, pattern in self._patterns.items():
            subscription = pattern.followers.get(follower)
            if subscription is not None:
                for topic in {cursor.partition.topic for cursor in subscription.cursors}:
                    channel = self._by_topic[topic.name]
                    unfollow(self._broker.fan_out, subscription, topic)
                    self._follow(follower, subscription, topic, channel, text)

    def _subscription(self, follower: ChannelFollower, target: str) -> BrokerSubscription:
        mine = self._subscriptions.setdefault(follower, {})
        subscription = BrokerSubscription(
            0,
            self._reader,
            follower.outlet,
            self._reader,
            target,
            policy=SlowPolicy(self._options.slow_policy),
            client=follower.name[:_CLIENT_BYTES_MAX].decode(errors="replace"),
        )
        for other in mine:
            for cursor in other.cursors:
                cursor.several = True
        mine[subscription] = None
        self._broker.subscriptions.viewed_count += 1
        return subscription

    def _follow(
        self,
        follower: ChannelFollower,
        subscription: BrokerSubscription,
        topic: BrokerTopic,
        channel: Channel,
        pattern: bytes | None = None,
    ) -> None:
        several = pattern is not None or len(self._subscriptions[follower]) > 1
        view = channel.view(follower.resp3, pattern)
        follow(self._broker.fan_out, subscription, topic, view, several=several)

    def _end(self, follower: ChannelFollower, subscription: BrokerSubscription) -> None:
        subscription.closed = True
        for cursor in subscription.cursors:
            self._broker.fan_out.remove(cursor)
        subscription.cursors = []
        self._broker.subscriptions.viewed_count -= 1
        mine = self._subscriptions[follower]
        del mine[subscription]
        if not mine:
            del self._subscriptions[follower]

    # Channels and topics

    def _channel(self, name: bytes, shard: bool) -> Channel:
        channel = Channel(name, topic_of(name, shard=shard), shard=shard)
        self._channels[shard][name] = channel
        self._by_topic[channel.topic_name] = channel
        return channel

    def _maybe_channel_name(self, topic: BrokerTopic) -> bytes | None:
        """The channel that patterns may find this topic as, if there is one."""
        channel = self._by_topic.get(topic.name)
        if channel is not None:
            return None if channel.shard else channel.name
        found = maybe_channel_of(topic.name)
        return None if found is None or found[1] else found[0]

    def _maybe_forget(self, channel: Channel) -> None:
        if channel.topic is None and not channel.followers and not channel.matched:
            self._channels[channel.shard].pop(channel.name, None)
            self._by_topic.pop(channel.topic_name, None)

    def _bind(self, channel: Channel, topic: BrokerTopic) -> None:
        """The channel's topic exists: all followers read it from here on."""
        if channel.topic is topic:
            return
        channel.topic = topic
        for follower, subscription in channel.followers.items():
            self._follow(follower, subscription, topic, channel)

    def _match(
        self,
        name: bytes,
        topic: BrokerTopic,
        pattern: Pattern,
        follower: ChannelFollower,
        subscription: BrokerSubscription,
    ) -> None:
        if not follower.permit.may(Verb.SUBSCRIBE, topic.name):
            return
        channel = self._channels[False].get(name) or self._channel(name, shard=False)
        self._bind(channel, topic)
        channel.matched += 1
        self._follow(follower, subscription, topic, channel, pattern.glob.text)

    def _topic_appeared(self, topic: BrokerTopic) -> None:
        """A topic was created."""
        self._unheard.clear()
        channel = self._by_topic.get(topic.name)
        if channel is not None:
            self._bind(channel, topic)
        name = self._maybe_channel_name(topic) if self._patterns else None
        if name is None:
            return
        for pattern in self._patterns.values():
            if pattern.fits(name):
                for follower, subscription in pattern.followers.items():
                    self._match(name, topic, pattern, follower, subscription)

    def _topic_grew(self, topic: BrokerTopic, new: list[Partition]) -> None:
        """Followers of the topic follow its new partitions too, and now several of them."""
        channel = self._by_topic.get(topic.name)
        if channel is None or channel.topic is not topic:
            return
        for follower, subscription in channel.followers.items():
            self._follow_more(subscription, topic, channel.view(follower.resp3), new)
        for pattern in self._patterns.values():
            if not channel.shard and pattern.fits(channel.name):
                for follower, subscription in pattern.followers.items():
                    if not follower.permit.may(Verb.SUBSCRIBE, topic.name):
                        continue
                    view = channel.view(follower.resp3, pattern.glob.text)
                    self._follow_more(subscription, topic, view, new)

    def _follow_more(
        self, subscription: BrokerSubscription, topic: BrokerTopic, view: View, new: list[Partition]
    ) -> None:
        for cursor in subscription.cursors:
            cursor.several = True
        follow(self._broker.fan_out, subscription, topic, view, since=new[0].index)

    def _topic_vanished(self, topic: BrokerTopic) -> None:
        """A topic was deleted: its followers wait for one of that name to come again."""
        self._made.pop(topic, None)
        channel = self._by_topic.get(topic.name)
        if channel is None or channel.topic is not topic:
            return
        for subscription in channel.followers.values():
            unfollow(self._broker.fan_out, subscription, topic)
        for pattern in self._patterns.values():
            if channel.shard or not pattern.fits(channel.name):
                continue
            for subscription in pattern.followers.values():
                unfollow(self._broker.fan_out, subscription, topic)
        channel.matched = 0
        channel.topic = None
        channel.forget_views()
        self._maybe_forget(channel)

    def forget_idle(self, now: float) -> None:
        """Deletes topics that were created here and had no messages for a while, unless a native or
        web client reads them, or a follower is behind."""
        for topic in list(islice(self._made, _CHECKED_A_SECOND)):
            since, known_end = self._made.pop(topic)
            end = sum(partition.next_offset for partition in topic.partitions)
            readers = sum(partition.readers for partition in topic.partitions)
            # Redis clients that have got everything are joined again when there is more.
            live = sum(
                len(cursors)
                for partition in topic.partitions
                if partition.audience is not None
                for view, cursors in partition.audience.viewed.items()
                if not isinstance(view, RecordView)
            )
            if readers > live or end != known_end:
                since = now
            self._made[topic] = (since, end)
            if now - since > self._options.channel_idle_seconds:
                self._broker.delete_topic(topic.name)

    # What there is

    def channel_names(self, glob: Glob | None, *, shard: bool) -> list[bytes]:
        """Channels with followers of their own."""
        return [
            name
            for name, channel in self._channels[shard].items()
            if channel.followers and (glob is None or glob.matches(name))
        ]

    def follower_count(self, name: bytes, *, shard: bool) -> int:
        channel = self._channels[shard].get(name)
        return 0 if channel is None else len(channel.followers)

    def slow_counters(self) -> dict[str, int]:
        """Totals of subscribers that could not keep up, over all channels."""
        counted = [
            channel.topic.counters
            for channels in self._channels.values()
            for channel in channels.values()
            if channel.topic is not None and channel.topic.counters is not None
        ]
        return {
            "pubsub_skips": sum(counters.skips for counters in counted),
            "pubsub_skipped_messages": sum(counters.skipped_records for counters in counted),
            "pubsub_disconnects": sum(counters.disconnects for counters in counted),
        }

    @property
    def pattern_count(self) -> int:
        return len(self._patterns)
