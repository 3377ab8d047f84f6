"""Transactions on a hand-driven broker: what a client's frames would ask, asked directly."""

from __future__ import annotations

from fanlog.broker.transactions.transactions import TICKET_BYTES
from fanlog.errors import FanlogError
from fanlog.format.batch import encode_batch
from fanlog.format.messages import (
    BeginTransaction,
    CommitTransaction,
    GroupOffsets,
    TransactionCommitted,
)
from tests.broker.stage import Stage


class Outcomes(list[TransactionCommitted | FanlogError]):
    """What was answered to commits."""

    @property
    def only(self) -> TransactionCommitted:
        (outcome,) = self
        if isinstance(outcome, FanlogError):
            raise outcome
        return outcome


class Staging:
    """One client's part in a transaction."""

    def __init__(
        self,
        on: Stage,
        id: str = "",
        *,
        ticket: str = "",
        stager: int = 7,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._on = on
        self._stager = stager
        self._number = 0
        self.begun = on.core.transactions.begin(BeginTransaction(id, timeout_seconds, ticket))
        self.ticket = self.begun.ticket
        assert len(bytes.fromhex(self.ticket)) == TICKET_BYTES

    def batch(self, topic: str, values: list[bytes], partition: int = 0) -> bytes:
        data = encode_batch(
            list(values),
            topic=self._on.core.open_topic(topic, create=True).number,
            partition=partition,
            producer_id=self._stager,
            first_sequence=self._number,
        )
        self._number += 1
        return data

    def stage(self, topic: str, *values: bytes, partition: int = 0) -> None:
        self.send(self.batch(topic, list(values), partition))

    def send(self, data: bytes) -> None:
        self._on.core.transactions.stage(self.ticket, data)

    def commit(
        self, id: str = "", offsets: tuple[GroupOffsets, ...] = (), tickets: tuple[str, ...] = ()
    ) -> Outcomes:
        """Asks; what is answered comes into the list."""
        outcomes = Outcomes()
        wanted = CommitTransaction(self.ticket, id, offsets, tickets)
        self._on.core.transactions.commit(wanted, outcomes.append)
        return outcomes

    def abort(self) -> None:
        self._on.core.transactions.abort(self.ticket)


def settle(on: Stage) -> None:
    """Runs and syncs until nothing is left to do."""
    on.run()
    while on.sync_group.waiting:
        on.sync_group.sync()
        on.run()


def checkpoint(on: Stage) -> None:
    """A second later, and all that follows from it."""
    on.runtime.time_us += 1_100_000
    on.core.tick()
    settle(on)


def producers_of(on: Stage, topic: str, partition: int = 0) -> set[int]:
    return set(on.core.catalog.get(topic).partitions[partition].producers or ())
