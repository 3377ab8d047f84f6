"""Transactions against their model: a list of what was staged, which is stored whole when it is
committed, once for each id, and never otherwise."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fanlog.errors import FencedError, TransactionNotFoundError
from fanlog.format.messages import GroupOffsets, Position
from tests.broker.model.broker_machine import BrokerMachine, numbers
from tests.broker.model.consumer import GROUP, Consumer
from tests.broker.model.group_machine import GroupRules
from tests.broker.model.log_model import Sent
from tests.broker.model.world import SECOND_US, Place
from tests.broker.transactions.staging import Outcomes, Staging

IDS = ("", "i", "j", "k", "l")
TIMEOUT_SECONDS = 20


class Draft:
    """A transaction that is not decided, as those who stage it know it."""

    def __init__(self, staging: Staging, now_us: int) -> None:
        self.staging = staging
        self.other: Staging | None = None
        self.id = staging.begun.id
        self.active_us = now_us
        self.content: list[tuple[Place, list[bytes | None]]] = []


class TransactionRules(BrokerMachine):
    """`doubtful` is the one that was being committed when the broker died."""

    def prepare(self) -> None:
        super().prepare()
        self.drafts: list[Draft] = []
        self.ids: set[str] = set()
        self.doubtful: tuple[Draft, dict[Place, int]] | None = None

    def may_lose_power(self) -> bool:
        """A power failure may leave a part of what went to topics that the kernel flushes."""
        return all(log.durability == "fsync" for p, log in self.logs.items() if p[0][:2] == "t.")

    @rule(id=st.sampled_from(IDS))
    def begin_transaction(self, id: str) -> None:
        staging = Staging(self.world.on, id, timeout_seconds=TIMEOUT_SECONDS)
        assert staging.begun.committed == (id in self.ids)
        self.drafts.append(Draft(staging, self.world.now_us))

    @rule(
        number=numbers,
        what=st.lists(st.tuples(numbers, st.integers(1, 3)), min_size=1, max_size=3),
        repeated=st.booleans(),
        by_another=st.booleans(),
    )
    def stage(
        self, number: int, what: list[tuple[int, int]], repeated: bool, by_another: bool
    ) -> None:
        """Some batches, each sent once or twice, by who began it or by another with its ticket."""
        draft = self.draft(number)
        try:
            if by_another and draft.other is None:
                draft.other = Staging(self.world.on, ticket=draft.staging.ticket, stager=8)
            staging = draft.other if by_another and draft.other is not None else draft.staging
            for where, count in what:
                place, values = self.place(where), self.new_values(count)
                data = staging.batch(place[0], values, place[1])  # type: ignore[arg-type]
                staging.send(data)
                if repeated:
                    staging.send(data)
                draft.content.append((place, values))
            draft.active_us = self.world.now_us
        except TransactionNotFoundError:
            self.must_be_over(draft)

    def draft(self, number: int) -> Draft:
        """One that is open; a new one if there is none."""
        if not self.drafts:
            self.begin_transaction(IDS[number % len(IDS)])
            self.stage(0, [(number, 1), (number + 1, 2)], repeated=False, by_another=False)
        return self.drafts[number % len(self.drafts)]

    def must_be_over(self, draft: Draft) -> None:
        assert self.world.now_us - draft.active_us > TIMEOUT_SECONDS * SECOND_US
        self.drafts.remove(draft)

    @rule(number=numbers)
    def abort(self, number: int) -> None:
        if self.drafts:
            self.drafts.pop(number % len(self.drafts)).staging.abort()
            self.settle()

    @rule(
        number=numbers,
        crash_after=st.sampled_from([None, None, None, 0, 1, 2, 3, 4, 6, 9]),
        power=st.booleans(),
    )
    def commit_transaction(self, number: int, crash_after: int | None, power: bool) -> None:
        draft = self.draft(number)
        if crash_after is None:
            self.commit_draft(draft)
        else:
            self.commit_and_crash(draft, crash_after, power=power)

    @rule(id=st.sampled_from(IDS[1:]))
    def commit_an_id_again(self, id: str) -> None:
        """Whatever is staged this time, nothing happens."""
        if id in self.ids:
            again = Staging(self.world.on, id, stager=9)
            again.stage("t.a", b"never")
            outcomes = again.commit()
            self.settle()
            assert outcomes.only.already

    def commit_draft(
        self,
        draft: Draft,
        offsets: tuple[GroupOffsets, ...] = (),
        positions: dict[Place, int] | None = None,
    ) -> None:
        self.settle()
        outcomes = draft.staging.commit(offsets=offsets)
        if outcomes and isinstance(outcomes[0], TransactionNotFoundError):
            self.must_be_over(draft)
            return
        self.drafts.remove(draft)
        already = draft.id in self.ids
        if not already:
            self.is_committed(draft, positions or {})
        self.settle()
        assert outcomes.only.already == already
        if not already:
            assert outcomes.only.records == sum(len(values) for _, values in draft.content)

    def commit_and_crash(
        self,
        draft: Draft,
        steps: int,
        *,
        power: bool,
        offsets: tuple[GroupOffsets, ...] = (),
        positions: dict[Place, int] | None = None,
    ) -> None:
        """After so many steps of a commit. It has happened, or not; if it was answered, it has."""
        self.settle()
        outcomes: Outcomes = draft.staging.commit(offsets=offsets)
        self.world.step(steps)
        if outcomes:
            error = outcomes[0]
            if isinstance(error, TransactionNotFoundError):
                self.must_be_over(draft)
            elif draft.id not in self.ids:
                assert not outcomes.only.already
                self.is_committed(draft, positions or {})
        elif draft.id not in self.ids:
            self.doubtful = (draft, positions or {})
        # One with nothing for a synced topic is not synced itself.
        if power and draft.content and self.may_lose_power():
            self.lose_power(sidecars=True)
        else:
            self.crash()

    def is_committed(self, draft: Draft, positions: dict[Place, int]) -> None:
        self.ids.add(draft.id)
        for place, values in draft.content:
            self.logs[place].take(Sent(values, None), self.world.now_us, 0)

    def started(self, *, power_lost: bool) -> None:
        """Those that were open are gone, and the doubtful one is there whole, or not at all."""
        self.drafts = []
        self.world.on.run()
        while self.world.on.sync_group.waiting:
            self.world.sync()
            self.world.on.run()
        if self.doubtful is not None:
            (draft, positions), self.doubtful = self.doubtful, None
            if draft.id in self.world.on.core.transactions._commits:
                self.is_committed(draft, positions)
        super().started(power_lost=power_lost)


class GroupTransactionRules(GroupRules, TransactionRules):
    """Positions of a group that are committed with messages. `committing` is whose they are."""

    committing: Consumer

    def is_committed(self, draft: Draft, positions: dict[Place, int]) -> None:
        super().is_committed(draft, positions)
        if positions:
            self.has_committed(self.committing, positions)

    @rule(
        number=numbers,
        who=numbers,
        fault=st.sampled_from(["", "", "", "membership", "place"]),
        crash_after=st.sampled_from([None, None, 0, 1, 2, 4, 8]),
        power=st.booleans(),
    )
    def commit_with_positions(
        self, number: int, who: int, fault: str, crash_after: int | None, power: bool
    ) -> None:
        consumer, draft = self.consumer(who), self.draft(number)
        self.committing = consumer
        self.work(who, 5, committing=False)
        positions = {place: part.done for place, part in consumer.parts.items()}
        foreign = [place for place in self.group_places() if place not in consumer.holds]
        if fault == "place" and foreign:
            positions[foreign[0]] = 0
        elif fault != "membership":
            fault = ""
        offsets = (self.offsets(consumer, positions, 1 if fault == "membership" else 0),)
        if fault and draft.id not in self.ids:
            self.settle()
            outcomes = draft.staging.commit(offsets=offsets)
            self.settle()
            (error,) = outcomes
            if isinstance(error, TransactionNotFoundError):
                self.must_be_over(draft)
            else:
                assert isinstance(error, FencedError)
                self.drafts.remove(draft)
        elif crash_after is None:
            self.commit_draft(draft, offsets, positions)
        else:
            self.commit_and_crash(
                draft, crash_after, power=power, offsets=offsets, positions=positions
            )

    def offsets(
        self, consumer: Consumer, positions: dict[Place, int], too_old: int
    ) -> GroupOffsets:
        epoch = self.world.on.core.epoch
        wanted = tuple(Position(*place, offset, epoch) for place, offset in positions.items())
        return GroupOffsets(GROUP, consumer.name, consumer.epoch - too_old, wanted)
