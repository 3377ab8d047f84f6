"""Queues on very many partitions: each step is small, others have their turns in between, and what
happens in between breaks no promise."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from fanlog.broker.queues import queue as queue_module
from fanlog.broker.queues import queues as queues_module
from fanlog.broker.queues import resets
from fanlog.broker.queues.queue import Queue
from fanlog.broker.state import ledger
from fanlog.errors import (
    ClosedError,
    FanlogError,
    GroupActiveError,
    GroupNotFoundError,
    LogFailedError,
    TopicNotFoundError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import JobOutcome, OutcomeKind, ResetGroup, Settle, Settled, Work
from fanlog.model import Start
from tests.broker.many_partitions import (
    A_STEP,
    A_TURN,
    PARTITIONS,
    filled,
    shorten_slices,
)
from tests.broker.queues.workers import Hand, hire
from tests.broker.stage import Stage, stage, succeeded
from tests.edge.stage import until
from tests.listeners.peers import request, serving


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are small, too."""
    shorten_slices(monkeypatch)
    monkeypatch.setattr(queues_module, "_MET_A_STEP", A_STEP)
    monkeypatch.setattr(resets, "_RESET_A_STEP", A_STEP)
    monkeypatch.setattr(queue_module, "_STIRRED_A_STEP", A_STEP)


def wanting(**given: object) -> Work:
    return Work(**({"queue": "q", "worker": "ann", "target": "t", "prefetch": 1000} | given))  # type: ignore[arg-type]


def begin(on: Stage) -> None:
    """As the session of a worker does before it is answered."""
    on.core.slices.in_slices(on.core.queues.prepare(wanting(), Hand(on, "ann")))


def turn(on: Stage) -> None:
    if on.runtime.due:
        on.runtime.due.popleft()()


def queue_of(on: Stage) -> Queue:
    found = on.core.queues.find("q")
    assert found is not None
    return found


def met(on: Stage) -> int:
    return len(queue_of(on).partitions)


def most_at_a_turn(counts: list[int]) -> int:
    return max(later - before for before, later in pairwise(counts))


def values(hand: Hand) -> list[int]:
    return sorted(int(job.value or b"") for job in hand.jobs())


def test_a_queue_meets_a_few_of_very_many_partitions_at_a_turn(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        counts = [0]
        begin(on)
        counts.append(met(on))
        while on.runtime.due:
            turn(on)
            counts.append(met(on))
        assert 0 < most_at_a_turn(counts) <= A_TURN
        assert counts[-1] == PARTITIONS
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))


def test_workers_of_a_topic_that_appears_meet_it_a_few_partitions_at_a_turn(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("a.first", {})
        ann = hire(on, target="a.>", prefetch=1000)
        on.core.create_topic("a.new", {"partitions": PARTITIONS})
        counts = [met(on)]
        while on.runtime.due:
            turn(on)
            counts.append(met(on))
        assert 0 < most_at_a_turn(counts) <= A_TURN
        assert [joined.name for joined in ann.joins] == ["a.first", "a.new"]
        assert len(ann.joins[-1].starts) == PARTITIONS
        for partition in range(PARTITIONS):
            on.publish("a.new", [b"%d" % partition], partition=partition)
        on.run()
        assert values(ann) == list(range(PARTITIONS))


def test_a_worker_that_starts_looks_at_a_few_partitions_at_a_turn(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {"partitions": PARTITIONS})
        hire(on, "bob")
        looked = 0
        look = Queue._look

        def counted(queue: Queue, part: object, now_us: int) -> int:
            nonlocal looked
            looked += 1
            return look(queue, part, now_us)  # type: ignore[arg-type]

        monkeypatch.setattr(Queue, "_look", counted)
        hand = Hand(on, "ann")
        subscription, _, _ = on.core.queues.work(1, wanting(), hand, hand)  # type: ignore[arg-type]
        on.core.queues.start(subscription)
        counts = [looked]
        while on.runtime.due:
            turn(on)
            counts.append(looked)
        assert counts[-1] >= PARTITIONS
        assert most_at_a_turn(counts) <= A_TURN


def test_a_crash_in_between_skips_no_job(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        begin(on)
        turn(on)
        assert 0 < met(on) < PARTITIONS
        on.sync_ledgers()
    with stage(data) as on:
        assert 0 < met(on) < PARTITIONS
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))


def test_a_crash_while_a_topic_appears_skips_no_job(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("a.first", {})
        hire(on, target="a.>", reset="latest")
        filled(on, "a.new", partitions=A_STEP)
        on.core.create_topic("a.other", {"partitions": PARTITIONS})
        turn(on)
        on.sync_ledgers()
    with stage(data) as on:
        assert met(on) < 1 + A_STEP + PARTITIONS
        for partition in range(PARTITIONS):
            on.publish("a.other", [b"%d" % (100 + partition)], partition=partition)
        on.run()
        ann = hire(on, target="a.>", prefetch=1000)
        assert values(ann) == [*range(A_STEP), *range(100, 100 + PARTITIONS)]


def test_a_topic_that_is_deleted_in_between_leaves_nothing_in_the_queue(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        begin(on)
        on.core.delete_topic("t", succeeded)
        on.run()
        assert met(on) == 0
        with pytest.raises(TopicNotFoundError):
            on.core.queues.prepare(wanting(missing="fail"), Hand(on, "ann"))
        filled(on)
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))
    with stage(data) as on:
        assert met(on) == PARTITIONS


def test_a_topic_that_appears_and_is_deleted_in_between_leaves_nothing(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("a.first", {})
        ann = hire(on, target="a.>")
        on.core.create_topic("a.new", {"partitions": PARTITIONS})
        turn(on)
        assert met(on) > 1
        on.core.delete_topic("a.new", succeeded)
        on.run()
        assert met(on) == 1
        assert [joined.name for joined in ann.joins] == ["a.first"]
    with stage(data) as on:
        assert met(on) == 1


def test_a_topic_that_grows_in_between_is_met_as_a_whole(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        begin(on)
        on.grow("t", PARTITIONS + 20)
        on.run()
        assert met(on) == PARTITIONS + 20
    with stage(data) as on:
        assert met(on) == PARTITIONS + 20


def test_a_queue_that_is_deleted_in_between_does_not_come_back(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        begin(on)
        on.core.queues.delete("q", succeeded)
        for _ in range(3):
            turn(on)
        on.run()
        assert on.core.queues.names() == []
    with stage(data) as on:
        assert on.core.queues.names() == []
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))


def test_a_worker_that_leaves_in_between_hears_of_no_new_topic(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("a.first", {})
        ann = hire(on, target="a.>")
        on.core.create_topic("a.new", {"partitions": PARTITIONS})
        turn(on)
        on.core.queues.leave(ann.subscription)
        on.run()
        assert [joined.name for joined in ann.joins] == ["a.first"]
        for partition in range(PARTITIONS):
            on.publish("a.new", [b"%d" % partition], partition=partition)
        on.run()
        assert values(hire(on, target="a.>", prefetch=1000)) == list(range(PARTITIONS))


async def test_a_client_that_is_gone_in_between_has_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanlog.broker.slices.SLICE_US", 0)
    async with serving() as served:
        core = served.node.core
        core.create_topic("t", {"partitions": PARTITIONS})
        peer = await served.greeted()
        await peer.send(
            request(FrameKind.WORK, wanting(), 5, 7)
            + request(FrameKind.UNSUBSCRIBE, messages.Unsubscribe(), 6, 7)
        )
        answers = [await peer.expect(FrameKind.OK), await peer.expect(FrameKind.ERROR)]
        assert [answer.request for answer in answers] == [6, 5]
        assert answers[1].failure.code == ClosedError.code
        leaving = await served.greeted()
        await leaving.send(request(FrameKind.WORK, wanting(), 5, 7))
        leaving.close()
        await until(lambda: core.connections == 1 and not core.queues.every()[0].workers)


# Resets


def floors(on: Stage) -> list[int]:
    parts = queue_of(on).partitions
    return [parts[key].jobs.floor for key in sorted(parts)]


def finished(on: Stage) -> None:
    """A queue that has done everything, and has no workers."""
    filled(on)
    ann = hire(on, prefetch=1000)
    ann.ack(ann.jobs())
    on.core.queues.leave(ann.subscription)
    on.run()
    assert floors(on) == [1] * PARTITIONS


class Resetting:
    """A reset to offset 0 that goes on a turn at a time."""

    def __init__(self, on: Stage, offset: int = 0) -> None:
        self.on = on
        wanted = ResetGroup(group="q", start=Start("offset", offset))
        self.task = asyncio.ensure_future(on.core.queues.reset(wanted))

    async def turn(self) -> None:
        turn(self.on)
        # The task goes on as far as it can.
        for _ in range(5):
            await asyncio.sleep(0)

    async def until_written(self) -> None:
        while not self.on.sync_group.waiting:
            await self.turn()

    async def until_partly_effective(self) -> None:
        await self.until_written()
        self.on.sync_group.sync()
        await self.turn()
        assert set(floors(self.on)) == {0, 1}

    async def end(self) -> None:
        while not self.task.done():
            self.on.sync_group.sync()
            await self.turn()
        self.on.run()
        self.task.result()


def test_a_reset_changes_a_few_of_very_many_partitions_at_a_turn(data: Path) -> None:
    async def check(on: Stage) -> None:
        resetting = Resetting(on)
        await resetting.until_written()
        assert floors(on) == [1] * PARTITIONS
        on.sync_group.sync()
        counts = [floors(on).count(0)]
        while not resetting.task.done():
            await resetting.turn()
            counts.append(floors(on).count(0))
        assert 0 < most_at_a_turn(counts) <= A_TURN
        # It is answered when all of it has taken effect.
        assert counts[-1] == PARTITIONS

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))


@pytest.mark.parametrize("durable", [False, True])
def test_a_crash_leaves_all_of_a_reset_or_nothing(data: Path, durable: bool) -> None:
    async def crash(on: Stage) -> None:
        resetting = Resetting(on)
        if durable:
            await resetting.until_partly_effective()
        else:
            await resetting.turn()
        resetting.task.cancel()

    with stage(data) as on:
        finished(on)
        asyncio.run(crash(on))
    with stage(data) as on:
        assert floors(on) == [0 if durable else 1] * PARTITIONS


def test_a_reset_that_does_not_become_durable_is_refused(data: Path) -> None:
    async def check(on: Stage) -> None:
        resetting = Resetting(on)
        await resetting.until_written()
        on.fail_sync()
        with pytest.raises(LogFailedError):
            await resetting.task
        assert floors(on) == [1] * PARTITIONS
        assert not queue_of(on).resetting

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))


def test_resets_take_effect_one_after_the_other(data: Path) -> None:
    async def check(on: Stage) -> None:
        first = Resetting(on, 0)
        await first.until_partly_effective()
        second = Resetting(on, 1)
        await second.end()
        assert first.task.done()

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))
        assert floors(on) == [1] * PARTITIONS
    with stage(data) as on:
        assert floors(on) == [1] * PARTITIONS


def test_a_topic_that_is_deleted_during_a_reset_stays_away(data: Path) -> None:
    async def check(on: Stage) -> None:
        resetting = Resetting(on)
        await resetting.until_partly_effective()
        on.core.delete_topic("t", succeeded)
        await resetting.end()
        assert met(on) == 0
        filled(on)
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))
    with stage(data) as on:
        assert met(on) == PARTITIONS


@pytest.mark.parametrize("written", [False, True])
def test_a_queue_that_is_deleted_during_a_reset_does_not_come_back(
    data: Path, written: bool
) -> None:
    async def check(on: Stage) -> None:
        resetting = Resetting(on)
        if written:
            await resetting.until_partly_effective()
        else:
            await resetting.turn()
        on.core.queues.delete("q", succeeded)
        on.sync_group.sync()
        if written:
            await resetting.end()
        else:
            with pytest.raises(GroupNotFoundError):
                await resetting.end()
        assert on.core.queues.names() == []

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))
    with stage(data) as on:
        assert on.core.queues.names() == []


def test_a_worker_that_comes_before_a_reset_is_written_prevents_it(data: Path) -> None:
    async def check(on: Stage) -> None:
        resetting = Resetting(on)
        await resetting.turn()
        hire(on)
        with pytest.raises(GroupActiveError):
            await resetting.end()

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))
        assert floors(on) == [1] * PARTITIONS


def test_a_worker_that_comes_during_a_reset_gets_each_job_once(data: Path) -> None:
    async def check(on: Stage) -> None:
        resetting = Resetting(on)
        await resetting.until_partly_effective()
        hand = Hand(on, "bob")
        subscription, _, _ = on.core.queues.work(1, wanting(worker="bob"), hand, hand)  # type: ignore[arg-type]
        on.core.queues.start(subscription)
        await resetting.turn()
        assert not hand.jobs()
        await resetting.end()
        assert values(hand) == list(range(PARTITIONS))

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))


def test_outcomes_of_jobs_from_before_a_reset_are_late(data: Path) -> None:
    async def check(on: Stage, number: int) -> None:
        resetting = Resetting(on)
        await resetting.until_written()
        on.sync_group.sync()
        await resetting.turn()
        assert queue_of(on).resetting
        outcomes = tuple(
            JobOutcome(number, p, OutcomeKind.ACK, 0, 1, -1, "") for p in range(PARTITIONS)
        )
        said = Settle(outcomes, on.core.epoch, queue="q", worker="ann")
        answers: list[Settled | FanlogError] = []
        on.core.queues.settle_kept(said, answers.append)
        await resetting.turn()
        assert not answers
        await resetting.end()
        on.sync_group.sync()
        on.run()
        (answer,) = answers
        assert isinstance(answer, Settled)
        assert len(answer.late) == PARTITIONS

    with stage(data) as on:
        filled(on)
        ann = hire(on, prefetch=1000)
        assert len(ann.jobs()) == PARTITIONS
        # Its connection is lost: it keeps its jobs.
        on.core.queues.lost(ann.subscription)
        asyncio.run(check(on, on.core.catalog.get("t").number))
        assert floors(on) == [0] * PARTITIONS
    with stage(data) as on:
        assert floors(on) == [0] * PARTITIONS


def test_a_snapshot_during_a_reset_keeps_the_reset(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slices wait until the reset has taken effect."""
    monkeypatch.setattr(ledger, "_SLICE_RECORDS", 50)

    async def check(on: Stage) -> None:
        with monkeypatch.context() as soon:
            soon.setattr(ledger, "_SNAPSHOT_AFTER_RECORDS", 0)
            for _ in on.core.queues.prepare(wanting(queue="other"), Hand(on, "eve")):
                pass
        resetting = Resetting(on)
        while not queue_of(on).resetting:
            await resetting.turn()
        await resetting.end()

    with stage(data) as on:
        finished(on)
        asyncio.run(check(on))
        on.settle()
    with stage(data) as on:
        assert floors(on) == [0] * PARTITIONS


def test_a_queue_on_a_topic_in_memory_is_reset_too() -> None:
    with stage() as on:
        finished(on)

        async def check() -> None:
            await Resetting(on).end()

        asyncio.run(check())
        assert values(hire(on, prefetch=1000)) == list(range(PARTITIONS))
