"""Readers that follow the end of a topic in a view, and have no positions of their own."""

from __future__ import annotations

from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Cursor
from fanlog.broker.messages.wire_forms import View


def follow(
    fan_out: FanOut,
    subscription: BrokerSubscription,
    topic: BrokerTopic,
    view: View,
    *,
    several: bool = False,
    since: int = 0,
) -> None:
    """Sets a reader to the end of a topic, in a view, or of its partitions `since` it has grown.
    One of `several` that the reader follows: what is published to them in one turn reaches it in
    one order."""
    for partition in topic.partitions[since:]:
        cursor = Cursor(subscription, partition, partition.visible_end)
        cursor.view = view
        cursor.several = several or len(topic.partitions) > 1
        fan_out.add(cursor)
        fan_out.start(cursor)


def unfollow(fan_out: FanOut, subscription: BrokerSubscription, topic: BrokerTopic) -> None:
    """Takes a reader out of one topic."""
    gone = [cursor for cursor in subscription.cursors if cursor.partition.topic is topic]
    for cursor in gone:
        fan_out.remove(cursor)
        cursor.dropped = True
        subscription.cursors.remove(cursor)
