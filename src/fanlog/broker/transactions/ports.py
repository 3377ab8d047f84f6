"""What transactions need of the broker: their own state is in this package, all else is below
it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.turns import Turns
from fanlog.broker.state.durable_names import DurableNames
from fanlog.broker.state.internal import InternalTopics
from fanlog.format.messages import Position


class TransactionPorts(Protocol):
    @property
    def catalog(self) -> Catalog: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def durable(self) -> DurableNames: ...
    @property
    def internal(self) -> InternalTopics: ...
    def check_positions(self, name: str, positions: Iterable[Position]) -> tuple[Position, ...]: ...
    def check_room(self) -> None: ...
    def congested(self) -> bool: ...
