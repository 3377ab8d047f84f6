"""Growing a topic: more partitions, while everything runs.

Durable names, groups and queues are given their place in each new partition, its first record,
before there is one: whoever is away must not leave anything out. Then the new count is made
durable, and only then does anybody hear of it. A crash in between leaves places in partitions that
are not there. Nobody looks at them, and they are right when the topic grows after all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.lifecycle.durability_raise import TopicDone
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.settings import changed
from fanlog.errors import (
    FanlogError,
    InvalidArgumentError,
    LimitError,
    TopicDeletedError,
    allow_more,
)
from fanlog.format.messages import Position
from fanlog.model import TopicSettings

if TYPE_CHECKING:
    from fanlog.broker.lifecycle.ports import GrowthPorts


def wanted_growth(topic: BrokerTopic, partitions: int) -> TopicSettings | None:
    """The settings of a topic with so many partitions; None if it has as many already."""
    settings = changed("topic", topic.settings, {"partitions": partitions})
    now = len(topic.partitions)
    if partitions == now:
        return None
    if partitions < now:
        raise InvalidArgumentError(
            f"Topic {topic.name!r} has {now} partitions, and they can only grow: the messages in "
            f"the others would be lost. Create another topic with {partitions}."
        )
    if settings.cleanup == "compact":
        raise InvalidArgumentError(
            f"Topic {topic.name!r} is compacted, and can't grow: keys would go to other "
            "partitions, and their old messages would stay behind for good. Create another topic "
            f"with {partitions}, and publish what is in this one to it."
        )
    return settings


def grow(
    broker: GrowthPorts,
    topic: BrokerTopic,
    partitions: int,
    positions_max: int,
    done: TopicDone,
    *,
    prepared: frozenset[str] = frozenset(),
) -> None:
    """Gives a topic so many partitions, tells everyone, and then `done`. Raises what speaks
    against it at once; `prepared` are the queues that have their place already."""

    def again() -> None:
        grow(broker, topic, partitions, positions_max, done, prepared=prepared)

    if broker.raising.postpones(topic, again, done):
        return
    settings = wanted_growth(topic, partitions)
    if settings is None:
        done(topic)
        return
    coming = range(len(topic.partitions), settings.partitions)
    queues = broker.queues.prepare_growth(topic, coming, prepared)
    if not _commit_places(broker, topic, coming, positions_max) and not queues:
        _grow_now(broker, topic, settings)
        done(topic)
        return

    def durable(fault: FanlogError | None) -> None:
        try:
            if fault is not None:
                raise fault
            if topic.deleted:
                raise TopicDeletedError(f"Topic {topic.name!r} was deleted before it had grown.")
            # Who has come meanwhile is to have its place too.
            grow(broker, topic, partitions, positions_max, done, prepared=prepared | queues)
        except FanlogError as refused:
            done(refused)

    # A power cut must not keep the new count and lose the places.
    broker.internal.when_durable(durable)


def _grow_now(broker: GrowthPorts, topic: BrokerTopic, settings: TopicSettings) -> None:
    # What was published before comes before what will be, also to who follows all partitions.
    broker.turns.end()
    new = broker.catalog.grow(topic, settings)
    broker.events.grown(topic, new)


def _commit_places(
    broker: GrowthPorts, topic: BrokerTopic, coming: range, positions_max: int
) -> bool:
    """Commits, for all who have committed in the topic and all groups that follow it, that they
    begin with the first record. False if all have a place already."""
    durable = broker.durable
    names = [
        name
        for name in sorted(durable.names_in(topic.name) | broker.groups.following(topic))
        if any(durable.position(name, topic.name, index) is None for index in coming)
    ]
    if durable.count + len(names) * len(coming) > positions_max:
        raise LimitError(
            f"This broker holds {durable.count} positions of durable names. {len(names)} of them "
            f"follow {topic.name!r}, and would have one in each new partition: more than there "
            "may be. " + allow_more("broker.durable_positions_max")
        )
    places = tuple(Position(topic.name, index, 0, broker.epoch) for index in coming)
    for name in names:
        durable.commit([(name, places)])
    return bool(names)
