"""Replays or deletes dead letters, some at a time.

Law: one transaction stores the job and deletes its dead letter, so that a crash repeats neither.
Concurrent replays of a topic take turns, and check again before each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fanlog.broker.names import check_public_name
from fanlog.client.dead_letters import place_of
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

DeadLetterPlace = tuple[int, int]


class WorkReport(Protocol):
    """Whoever waits for the work. Raises something if it is to end."""

    def of(self, total: int) -> None: ...
    def progress(self, done: int = 0, failed: int = 0, error: str = "") -> None: ...


class Edit(NamedTuple):
    """What a job is replaced with on its way back."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes] | None


class DeadLetterWork:
    """One replay, or one deletion. `replay`: the jobs go back, to their topics or `to` another.
    Those of whom that is not possible raise an error, or are counted as `failed`."""

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
        return await self._index.places(wanted)

    def those_named(self, ids: Sequence[str]) -> DeadLetterPositions:
        places = DeadLetterPositions()
        places.add(sorted({place_of(id) for id in ids}))
        return places

    async def run(self, places: DeadLetterPositions, report: WorkReport) -> list[DeadLetterPlace]:
        """Does it. Returns those that were not there (any more)."""
        report.of(len(places))
        missing: list[DeadLetterPlace] = []
        for some in places.some():
            missing += await self._some(some, report)
        return missing

    async def _some(
        self, places: list[DeadLetterPlace], report: WorkReport
    ) -> list[DeadLetterPlace]:
        """Does a few, while nobody else does any of this topic."""
        index = self._index
        async with index.settling:
            self._ask_again()
            await index.ready()
            there = [place for place in places if index.table.find(*place) is not None]
            found: set[DeadLetterPlace] = set()
            async for letters in read_letters(self._broker, index.topic, there):
                found.update(place_of(letter.id) for letter in letters)
                await self._settle(letters, report)
            # So that whoever comes next sees that they are gone.
            await index.ready()
        return [place for place in places if place not in found]

    def _ask_again(self) -> None:
        """It may take minutes: checks the permission again, and stops without it."""
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
            # One of them is in the way of the others.
            for letter in possible:
                await self._settle([letter], report)
            return
        report.progress(done=len(possible))

    def _refusal(self, letter: DeadLetter) -> FanlogError | None:
        """Why a job can't go back. A dead letter says itself where it came from, and whoever made
        it may have lied."""
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
        # Without a key it goes where it was, if that is still there.
        topic = self._broker.catalog.get(target)
        place = None
        if key is None and not self._to and death.partition < len(topic.partitions):
            place = death.partition
        await transaction.send(
            target,
            value,
            key=key,
            headers=headers,
            event_time=letter.event_time,
            partition=place,
            priority=death.priority,
        )


def ask_to_replay(permit: Permit, topic: str, to: str) -> None:
    permit.ask(Verb.MANAGE, topic)
    if to:
        permit.ask(Verb.PUBLISH, to)
