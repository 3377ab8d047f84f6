"""What queues need of the broker: their own state is in this package, all else is below it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.drop_notes import DropNotes
from fanlog.broker.messages.reading import Reading
from fanlog.broker.messages.restrictions import RestrictedOrigin
from fanlog.broker.messages.subscriptions import Subscriptions
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.messages.tracing import Traces
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.slices import Slices
from fanlog.broker.state.durable_names import DurableNames
from fanlog.broker.state.internal import InternalTopics


class GroupNames(Protocol):
    """Groups, whose names no queue may have."""

    def find(self, name: str) -> object | None: ...


class DeadLetterPorts(Protocol):
    """What moves dead letters: it reads jobs, and publishes them to another topic."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def reading(self) -> Reading: ...
    @property
    def unpacker(self) -> Unpacker: ...
    def create_topic(
        self,
        name: str,
        settings: dict[str, int | str],
        *,
        exist_ok: bool,
        compare: Collection[str] | None,
    ) -> BrokerTopic: ...
    def take(self, data: bytes, at: int, origin: RestrictedOrigin) -> int: ...
    def now_us(self) -> int: ...


class QueuePorts(DeadLetterPorts, Protocol):
    @property
    def subscriptions(self) -> Subscriptions: ...
    @property
    def drop_notes(self) -> DropNotes: ...
    @property
    def traces(self) -> Traces: ...
    @property
    def durable(self) -> DurableNames: ...
    @property
    def internal(self) -> InternalTopics: ...
    @property
    def groups(self) -> GroupNames: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def epoch(self) -> int: ...
    @property
    def replicated(self) -> bool:
        """Whether another broker may become the primary."""
        ...

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        """Resumes when a client may learn of its assignment: see `TurnStream`."""
        ...

    def open_for_reader(self, name: str) -> BrokerTopic | None: ...
