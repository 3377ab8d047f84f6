"""Growing a topic: more partitions, while everything runs.

First the positions of durable names, groups and queues are stored: each begins with the first
record of a new partition, so that an absent reader skips nothing. There may be very many: they are
written some at a time. Then the new count is made durable, and after that everybody is notified. A
crash in between leaves positions in partitions that do not exist. Nobody reads them, and they are
right when the topic does grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fanlog.broker.lifecycle.durability_raise import TopicDone
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.queues.queue import Queue
from fanlog.broker.settings import changed
from fanlog.broker.state.ledger import Done
from fanlog.errors import (
    FanlogError,
    InvalidArgumentError,
    LimitError,
    TopicDeletedError,
    allow_more,
)
from fanlog.format.messages import Position
from fanlog.log.partition import PartitionLog
from fanlog.model import TopicSettings

if TYPE_CHECKING:
    from fanlog.broker.lifecycle.ports import GrowthPorts

# New partitions whose logs are made at once.
_LOGS_AT_ONCE = 256
# Positions written at once: about a millisecond of the loop.
_STARTS_A_WRITE = 1000
_END = object()


def wanted_growth(topic: BrokerTopic, partitions: int) -> TopicSettings | None:
    """The settings of a topic with this number of partitions; None if it has that number
    already."""
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
    prepared: frozenset[Queue] = frozenset(),
    logs: Sequence[PartitionLog] = (),
) -> None:
    """Gives a topic this number of partitions, notifies everybody, and then calls `done`. Raises at
    once if it can't. `prepared` are the queues that already have their positions, and `logs` those
    of the new partitions, if they are made already."""

    def again(logs: Sequence[PartitionLog] = logs) -> None:
        grow(broker, topic, partitions, positions_max, done, prepared=prepared, logs=logs)

    if broker.raising.postpones(topic, again, done):
        return
    settings = wanted_growth(topic, partitions)
    if settings is None:
        done(topic)
        return
    coming = range(len(topic.partitions), settings.partitions)
    names = _names_without_start(broker, topic, coming, positions_max)
    queues = [queue for queue in broker.queues.growing(topic) if queue not in prepared]
    if not names and not queues:
        if len(coming) <= _LOGS_AT_ONCE or logs:
            _grow_now(broker, topic, settings, logs)
            done(topic)
        else:
            _make_logs(broker, topic, settings, again, done)
        return

    ready: set[Queue] = set()

    def durable(fault: FanlogError | None) -> None:
        try:
            if fault is not None:
                raise fault
            _check_still_there(topic)
            # Readers that came meanwhile need their positions, too.
            known = prepared.union(ready)
            grow(broker, topic, partitions, positions_max, done, prepared=known, logs=logs)
        except FanlogError as refused:
            done(refused)

    # A power cut must not keep the new count and lose the positions.
    _write_in_turns(broker, _starts(broker, topic, coming, names, queues, ready=ready), durable)


def _make_logs(
    broker: GrowthPorts,
    topic: BrokerTopic,
    settings: TopicSettings,
    again: Callable[[Sequence[PartitionLog]], None],
    done: TopicDone,
) -> None:
    """Makes the logs of very many partitions in slices, and then calls `again` with them. Nobody
    knows of them before the topic has grown."""
    logs: list[PartitionLog] = []

    def made() -> None:
        try:
            _check_still_there(topic)
            again(logs)
        except FanlogError as refused:
            done(refused)

    def steps() -> Iterator[None]:
        logs.extend((yield from broker.catalog.new_logs(topic, settings)))

    # The growth itself is work enough for a turn of its own.
    broker.slices.in_slices(steps(), lambda: broker.slices.later(made))


def _check_still_there(topic: BrokerTopic) -> None:
    if topic.deleted:
        raise TopicDeletedError(f"Topic {topic.name!r} was deleted before it had grown.")


def _write_in_turns(broker: GrowthPorts, writes: Iterator[None], done: Done) -> None:
    """Goes through `writes`, and calls `done` when the last one is durable. Each follows when the
    one before has taken effect, because all entries of one sync take effect in the same turn.
    Raises if the first one fails."""

    def more() -> None:
        try:
            written = next(writes, _END) is not _END
        except FanlogError as fault:
            done(fault)
            return
        if written:
            wait()
        else:
            done(None)

    def durable(fault: FanlogError | None) -> None:
        if fault is None:
            broker.slices.later(more)
        else:
            done(fault)

    def wait() -> None:
        broker.internal.when_durable(durable)

    next(writes, None)
    wait()


def _starts(
    broker: GrowthPorts,
    topic: BrokerTopic,
    coming: range,
    names: list[str],
    queues: list[Queue],
    *,
    ready: set[Queue],
) -> Iterator[None]:
    """Writes the first record of each new partition as the position of these names and queues, some
    at a time. Ends early if the topic has grown or is gone: then other partitions are new. Queues
    that have all of theirs are then `ready`."""
    parts = [
        coming[first : first + _STARTS_A_WRITE] for first in range(0, len(coming), _STARTS_A_WRITE)
    ]
    for_queues = ((queue, indexes) for queue in queues for indexes in parts)
    positions = [
        tuple(Position(topic.name, i, 0, broker.epoch, topic.number) for i in indexes)
        for indexes in parts
    ]
    for_names = ((name, some) for name in names for some in positions)
    # As many parts as have about this number of positions together.
    at_once = _STARTS_A_WRITE // len(parts[0])
    while True:
        if topic.deleted or len(topic.partitions) != coming.start:
            return
        queued = list(islice(for_queues, at_once))
        for queue, indexes in queued:
            broker.queues.write_starts(queue, topic, indexes)
            if indexes is parts[-1]:
                ready.add(queue)
        named = list(islice(for_names, at_once - len(queued)))
        if not queued and not named:
            return
        # One that was deleted meanwhile must not come back.
        known = [(name, some) for name, some in named if _follows(broker, name, topic)]
        if known:
            broker.durable.commit_positions(known)
        yield


def _follows(broker: GrowthPorts, name: str, topic: BrokerTopic) -> bool:
    """Whether a name still needs a start in new partitions. One that is being deleted is looked at
    again when that has taken effect."""
    if broker.durable.is_forgotten(name):
        return False
    return broker.durable.is_in(name, topic.name) or name in broker.groups.following(topic)


def _grow_now(
    broker: GrowthPorts,
    topic: BrokerTopic,
    settings: TopicSettings,
    logs: Sequence[PartitionLog],
) -> None:
    # Readers of all partitions get what was published before the growth first.
    broker.turns.end()
    new = broker.catalog.grow(topic, settings, logs)
    broker.events.grown(topic, new)


def _names_without_start(
    broker: GrowthPorts, topic: BrokerTopic, coming: range, positions_max: int
) -> list[str]:
    """The names that have committed in the topic, and the groups that follow it, as far as they
    have no position in the new partitions. The last partition gets its position last."""
    durable = broker.durable
    names = [
        name
        for name in sorted(durable.names_in(topic.name) | broker.groups.following(topic))
        if durable.position(name, topic.name, coming[-1]) is None
    ]
    if durable.count + len(names) * len(coming) > positions_max:
        raise LimitError(
            f"This broker holds {durable.count} positions of durable names. {len(names)} of them "
            f"follow {topic.name!r}, and would have one in each new partition, which is above the "
            "limit. " + allow_more("broker.durable_positions_max")
        )
    return names
