"""Raising a topic's durability from os to fsync, while it is in use.

1. A thread syncs everything that the logs hold, and the topic's new description. Until then
   messages come in, and are acknowledged, with durability os.
2. On the loop the topic's partitions become fsync ones. Before the next sync journals their first
   piece, it syncs their files once more, for what has come since. So no message is acknowledged as
   fsync while a power cut could take its predecessors.
3. When that sync is done, the request is answered.

After a crash in between, the topic has one durability or the other, and nobody was promised more.
Other changes of the topic wait until it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.errors import FanlogError, TopicDeletedError
from fanlog.model import TopicSettings

if TYPE_CHECKING:
    from fanlog.broker.messages.turns import Turns
    from fanlog.broker.ports import Runtime
    from fanlog.log.store import LogStore

TopicDone = Callable[[BrokerTopic | FanlogError], None]


class DurabilityRaise:
    """The topics whose durability is being raised, and the changes that wait for each."""

    def __init__(self, store: LogStore, turns: Turns, runtime: Runtime) -> None:
        self._store = store
        self._turns = turns
        self._runtime = runtime
        self._waiting: dict[BrokerTopic, deque[Callable[[], None]]] = {}

    def postpones(self, topic: BrokerTopic, call: Callable[[], None], done: TopicDone) -> bool:
        """Whether another change of a topic has to wait. If so, `call` makes it later, and `done`
        gets the error if it raises one."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            return False

        def later() -> None:
            try:
                if topic.deleted:
                    raise topic_deleted(topic)
                call()
            except FanlogError as fault:
                done(fault)

        waiting.append(later)
        return True

    def begin(self, topic: BrokerTopic, settings: TopicSettings, done: TopicDone) -> None:
        """Gives a topic these settings, which raise its durability from os to fsync. Raises at once
        if it can't."""
        # The journal may have to be made, for which there may be no room.
        self._turns.prepare_sync()
        self._store.track_unsynced(topic.stored)
        self._waiting[topic] = deque()

        def synced(result: Exception | None) -> None:
            fault = self._as_fault(topic, result)
            if fault is None:
                self._switch(topic, settings, done)
            else:
                self._end(topic, fault, done)

        self._runtime.in_background(lambda: self._store.save_raised(topic.stored, settings), synced)

    def _switch(self, topic: BrokerTopic, settings: TopicSettings, done: TopicDone) -> None:
        # Batches received by now are acknowledged as os.
        self._turns.end()
        self._store.raised(topic.stored, settings)
        topic.settings = settings
        for partition in topic.partitions:
            partition.durability = partition.log.durability

        def durable(fault: FanlogError | None) -> None:
            self._end(topic, fault or topic, done)

        self._turns.adopt(topic.stored.logs, durable)

    def _as_fault(self, topic: BrokerTopic, result: Exception | None) -> FanlogError | None:
        if topic.deleted:
            return topic_deleted(topic)
        if result is None or isinstance(result, FanlogError):
            return result
        return FanlogError(f"Syncing {topic.name} failed: {result!r}. Please report this.")

    def _end(self, topic: BrokerTopic, result: BrokerTopic | FanlogError, done: TopicDone) -> None:
        waiting = self._waiting.pop(topic)
        done(topic_deleted(topic) if topic.deleted else result)
        while waiting:
            waiting.popleft()()
            behind = self._waiting.get(topic)
            if behind is not None:
                # It was another one of these: the others wait for that.
                behind.extend(waiting)
                return


def topic_deleted(topic: BrokerTopic) -> TopicDeletedError:
    return TopicDeletedError(f"Topic {topic.name!r} was deleted.")
