"""What changes to topics need of the broker: the parts that a topic has something in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from fanlog.broker.groups.groups import GroupCoordinator
from fanlog.broker.lifecycle.compaction import Compactions
from fanlog.broker.lifecycle.durability_raise import DurabilityRaise
from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.topic_events import TopicEvents
from fanlog.broker.messages.turns import Turns
from fanlog.broker.queues.queues import Queues
from fanlog.broker.slices import Slices
from fanlog.broker.state.durable_names import DurableNames
from fanlog.broker.state.internal import InternalTopics
from fanlog.broker.state.named_producers import NamedProducers

T = TypeVar("T")


class TruncationPorts(Protocol):
    @property
    def turns(self) -> Turns: ...
    @property
    def events(self) -> TopicEvents: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def deleting(self) -> asyncio.Lock: ...
    async def threaded(self, work: Callable[[], T]) -> T: ...


class HousekeepingPorts(Protocol):
    @property
    def catalog(self) -> Catalog: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def events(self) -> TopicEvents: ...
    @property
    def producers(self) -> NamedProducers: ...
    @property
    def compactions(self) -> Compactions: ...
    @property
    def slices(self) -> Slices: ...
    def delete_topic(self, name: str) -> None: ...


class GrowthPorts(Protocol):
    @property
    def catalog(self) -> Catalog: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def events(self) -> TopicEvents: ...
    @property
    def durable(self) -> DurableNames: ...
    @property
    def internal(self) -> InternalTopics: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def queues(self) -> Queues: ...
    @property
    def raising(self) -> DurabilityRaise: ...
    @property
    def epoch(self) -> int: ...
