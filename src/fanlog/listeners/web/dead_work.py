"""Replays or deletes dead letters, some at a time.

Law: one transaction stores the job and deletes its dead letter, so that a crash repeats neither.
Concurrent replays of a topic take turns, and check again before each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fanlog.broker.names import check_public_name
from fanlog.client.dead_letters import position_of
from fanlog.errors import FanlogError, RequestError, TopicNotFoundError
from fanlog.identity import Verb
from fanlog.listeners.recheck import recheck_permit
from fanlog.listeners.web.dead_matches import DeadLetterFilter, DeadLetterPositions
from fanlog.listeners.web.dead_reading import read_letters

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.client.aio import Client
    from fanlog.client.dead_letters import DeadLetter
    from fanlog.client.transactions.transaction import Transaction
    from fanlog.listeners.web.dead_index import DeadLetterIndex

DeadLetterPosition = tuple[int, int]


class WorkReport(Protocol):
    """The caller's progress report. It raises an error to stop the work."""

    def of(self, total: int) -> None: ...
    def progress(self, done: int = 0, failed: int = 0, error: str = "") -> None: ...


class Edit(NamedTuple):
    """An edited job to publish instead."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes] | None


class DeadLetterWork:
    """One replay, or one deletion. `replay`: the jobs go back, to their topics or `to` another.
    A dead letter that can't be replayed raises an error, or counts as `failed`."""

    def __init__(
        self,
        broker: BrokerCore,
        client: Client,
        index: DeadLetterIndex,
        permit: Permit,
        *,
        replay: bool,
        to: str = "",
        edit: Edit | None = None,
        tolerant: bool = False,
    ) -> None:
        self._broker = broker
        self._client = client
        self._index = index
        self._permit = permit
        self._replay = replay
        self._to = to
        self._edit = edit
        self._tolerant = tolerant

    async def those_that_fit(self, wanted: DeadLetterFilter) -> DeadLetterPositions:
        return await self._index.positions(wanted)

    def those_named(self, ids: Sequence[str]) -> DeadLetterPositions:
        positions = DeadLetterPositions()
        positions.add(sorted({position_of(id) for id in ids}))
        return positions

    async def run(
        self, positions: DeadLetterPositions, report: WorkReport
    ) -> list[DeadLetterPosition]:
        """Does the work. Returns the positions without a dead letter."""
        report.of(len(positions))
        missing: list[DeadLetterPosition] = []
        for some in positions.some():
            missing += await self._some(some, report)
        return missing

    async def _some(
        self, positions: list[DeadLetterPosition], report: WorkReport
    ) -> list[DeadLetterPosition]:
        """Does one group, under the lock of its topic."""
        index = self._index
        async with index.settling:
            self._ask_again()
            await index.ready()
            there = [position for position in positions if index.table.find(*position) is not None]
            found: set[DeadLetterPosition] = set()
            async for letters in read_letters(self._broker, index.topic, there):
                found.update(position_of(letter.id) for letter in letters)
                await self._settle(letters, report)
            # The next reader must see that they are gone.
            await index.ready()
        return [position for position in positions if position not in found]

    def _ask_again(self) -> None:
        """The work may take minutes, so check the permission again, and stop without it."""
        fault = recheck_permit(self._broker.gate, self._permit)
        if fault is not None:
            raise fault
        self._permit.ask(Verb.MANAGE, self._index.topic.name)

    async def _settle(self, letters: list[DeadLetter], report: WorkReport) -> None:
        possible: list[DeadLetter] = []
        for letter in letters:
            fault = self._refusal(letter)
            if fault is None:
                possible.append(letter)
            elif self._tolerant:
                report.progress(failed=1, error=f"{letter.id}: {fault}")
            else:
                raise fault
        if not possible:
            return
        try:
            await self._transact(possible)
        except RequestError as fault:
            if not self._tolerant:
                raise
            if len(possible) == 1:
                report.progress(failed=1, error=f"{possible[0].id}: {fault}")
                return
            # One of them prevents the others.
            for letter in possible:
                await self._settle([letter], report)
            return
        report.progress(done=len(possible))

    def _refusal(self, letter: DeadLetter) -> FanlogError | None:
        """Why a job can't be replayed. The origin in a dead letter may be forged."""
        if not self._replay:
            return None
        target = self._to or letter.death.topic
        refusal = self._permit.may_publish(target)
        if refusal is not None:
            return refusal
        try:
            check_public_name(target)
        except FanlogError as fault:
            return fault
        if self._broker.catalog.find(target) is None:
            return TopicNotFoundError(
                f"There is no topic {target!r} (any more): create it, or replay to another topic."
            )
        return None

    async def _transact(self, letters: list[DeadLetter]) -> None:
        async with self._client.transaction() as transaction:
            async for letter in self._broker.slices.each(letters):
                if self._replay:
                    await self._put_back(transaction, letter)
                await transaction.send(
                    self._index.topic.name,
                    None,
                    key=letter.death.letter_key,
                    partition=letter.letter_partition,
                )

    async def _put_back(self, transaction: Transaction, letter: DeadLetter) -> None:
        death = letter.death
        key, value, headers = self._edit or Edit(death.key, letter.value, letter.headers)
        target = self._to or death.topic
        # Without a key it goes to its old partition, if that still exists.
        topic = self._broker.catalog.get(target)
        position = None
        if key is None and not self._to and death.partition < len(topic.partitions):
            position = death.partition
        await transaction.send(
            target,
            value,
            key=key,
            headers=headers,
            event_time=letter.event_time,
            partition=position,
            priority=death.priority,
        )


def ask_to_replay(permit: Permit, topic: str, to: str) -> None:
    permit.ask(Verb.MANAGE, topic)
    if to:
        permit.ask(Verb.PUBLISH, to)
