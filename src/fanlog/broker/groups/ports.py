"""What groups need of the broker: their own state is in this package, all else is below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.reading import Reading
from fanlog.broker.messages.subscriptions import Subscriptions
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.slices import Slices
from fanlog.broker.state.durable_names import DurableNames
from fanlog.broker.state.internal import InternalTopics
from fanlog.format.messages import JoinGroup, Position


class QueueNames(Protocol):
    """Queues, whose names no group may have."""

    def find(self, name: str) -> object | None: ...


class Memberships(Protocol):
    """The groups themselves, for what is beside them in this package."""

    def check_membership(self, wanted: JoinGroup) -> object:
        """Raises if this member can't join the group."""
        ...


class GroupPorts(Protocol):
    @property
    def catalog(self) -> Catalog: ...
    @property
    def reading(self) -> Reading: ...
    @property
    def subscriptions(self) -> Subscriptions: ...
    @property
    def durable(self) -> DurableNames: ...
    @property
    def internal(self) -> InternalTopics: ...
    @property
    def groups(self) -> Memberships: ...
    @property
    def queues(self) -> QueueNames: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def epoch(self) -> int: ...
    def check_positions(self, name: str, positions: Iterable[Position]) -> tuple[Position, ...]: ...
    def check_room_for_positions(self, new: int) -> None:
        """Raises if there is no room for so many positions more."""
        ...

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        """Resumes when a client may learn of its assignment: see `TurnStream`."""
        ...

    def open_for_reader(self, name: str) -> BrokerTopic | None: ...
