"""Finds the workers of a topic: each is registered under its topic name or pattern, so that a topic
that appears later, or again, goes to the right workers."""

from __future__ import annotations

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.names import NameTree
from fanlog.broker.queues.queue import QueueWorker
from fanlog.broker.queues.rules import takes_part


class WorkersByName:
    """Workers of all queues, by topic names and patterns."""

    def __init__(self) -> None:
        self._literal: dict[str, list[QueueWorker]] = {}
        self._patterns: NameTree[QueueWorker] = NameTree()

    def add(self, worker: QueueWorker) -> None:
        if worker.wildcard:
            self._patterns.add(worker.target, worker)
        else:
            self._literal.setdefault(worker.target, []).append(worker)

    def remove(self, worker: QueueWorker) -> None:
        if worker.wildcard:
            self._patterns.remove(worker.target, worker)
            return
        same = self._literal[worker.target]
        same.remove(worker)
        if not same:
            del self._literal[worker.target]

    def any_of(self, name: str) -> bool:
        """Whether any worker wants a topic of this name."""
        return name in self._literal or any(True for _ in self._patterns.fitting(name))

    def below(self, name: str) -> list[QueueWorker]:
        """Workers that want everything below a name, but not the topic of that name."""
        return list(self._patterns.at(f"{name}.>"))

    def of(self, topic: BrokerTopic) -> list[QueueWorker]:
        """Workers that want the jobs of a topic."""
        fitting = self._patterns.fitting(topic.name)
        by_pattern = [worker for worker in fitting if takes_part(topic, worker.target)]
        return [*self._literal.get(topic.name, ()), *by_pattern]
