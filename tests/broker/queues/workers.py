"""Workers of a queue on a stage: what they were sent, cut into leases and jobs as a client does."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.errors import FanlogError
from fanlog.format.batch import Batch
from fanlog.format.batch_cache import BatchCache
from fanlog.format.dead_letters import Death, read_death
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    FrameCutter,
    FrameKind,
    Lease,
    read_lease,
)
from fanlog.format.header import KIND_BATCH
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle, Settled, Work
from fanlog.model import GroupInfo
from tests.broker.stage import Peer, Stage


class Job(NamedTuple):
    value: bytes | None
    partition: int
    offset: int
    deliveries: int
    number: int


class Ear:
    """Hears for a worker what happens to it."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.gap = hand.gap
        self.joined = hand.joined
        self.left = hand.left
        self.notice = hand.notice

    def ended(self, error: FanlogError) -> None:
        self._hand.fenced = error


class Hand(Peer):
    """One worker. `jobs` takes what has come since the last time."""

    def __init__(self, on: Stage, id: str) -> None:
        super().__init__()
        self.on = on
        self.id = id
        self.fenced: FanlogError | None = None
        self.subscription: BrokerSubscription
        self.batch_cache: BatchCache[Batch] = BatchCache()
        self.batches_sent = 0
        self.leases: list[Lease] = []
        self._cutter = FrameCutter(1 << 30)
        self._lease: Lease | None = None

    def jobs(self) -> list[Job]:
        taken, self.taken = self.taken, b""
        found: list[Job] = []
        for kind, data, at, end in self._cutter.cut(taken):
            if kind == KIND_BATCH:
                batch = Batch(data[at:end])
                self.batches_sent += 1
                assert self._lease is not None
                assert self._lease.base_offset == batch.base_offset
                self.batch_cache.put(self._place(self._lease), batch, batch.header.length)
                found += self._jobs(self._lease)
                self._lease = None
                continue
            assert kind == FrameKind.LEASE
            lease = read_lease(memoryview(data)[at + FRAME_HEADER_BYTES : end])
            self.leases.append(lease)
            if lease.fresh:
                assert self.batch_cache.get(self._place(lease)) is None
                self._lease = lease
            else:
                found += self._jobs(lease)
        return found

    def _place(self, lease: Lease) -> tuple[int, int, int]:
        return lease.number, lease.partition, lease.base_offset

    def _jobs(self, lease: Lease) -> list[Job]:
        batch = self.batch_cache.get(self._place(lease))
        assert batch is not None
        values = dict(zip(batch.offsets, batch.values, strict=True))
        return [
            Job(values[offset], lease.partition, offset, lease.deliveries, lease.number)
            for offset in range(lease.first, lease.next)
        ]

    def offsets_taken(self) -> list[int]:
        return [job.offset for job in self.jobs()]

    def settle(
        self,
        verb: OutcomeKind,
        jobs: list[Job],
        *,
        delay_ms: int = -1,
        reason: str = "",
        epoch: int | None = None,
    ) -> list[int]:
        """Says what became of jobs, one by one; the offsets that it was too late for."""
        answers = self.say(verb, jobs, delay_ms=delay_ms, reason=reason, epoch=epoch)
        self.on.run()
        (answer,) = answers
        if isinstance(answer, FanlogError):
            raise answer
        return [o for late in answer.late for o in range(late.first, late.next)]

    def say(
        self,
        verb: OutcomeKind,
        jobs: list[Job],
        *,
        delay_ms: int = -1,
        reason: str = "",
        epoch: int | None = None,
    ) -> list[Settled | FanlogError]:
        """The same, before the turn ends; the list will hold the answer."""
        outcomes = tuple(
            JobOutcome(j.number, j.partition, verb, j.offset, j.offset + 1, delay_ms, reason)
            for j in jobs
        )
        answers: list[Settled | FanlogError] = []
        epoch = self.on.core.epoch if epoch is None else epoch
        self.on.core.queues.settle(self.subscription, Settle(outcomes, epoch), answers.append)
        return answers

    def ack(self, jobs: list[Job]) -> list[int]:
        return self.settle(OutcomeKind.ACK, jobs)

    def nack(self, jobs: list[Job], *, delay_ms: int = -1, reason: str = "") -> list[int]:
        return self.settle(OutcomeKind.NACK, jobs, delay_ms=delay_ms, reason=reason)


def hire(
    on: Stage,
    id: str = "ann",
    *,
    queue: str = "q",
    target: str = "t",
    prefetch: int = 100,
    hand: Hand | None = None,
    holds: tuple[Any, ...] = (),
    **settings: Any,
) -> Hand:
    """A worker that has begun; what it gets is there after `run`."""
    hand = hand or Hand(on, id)
    wanted = Work(
        queue=queue,
        worker=id,
        target=target,
        wildcard="*" in target or ">" in target,
        prefetch=prefetch,
        holds=holds,
        settings=settings,
    )
    hand.subscription, _, joined = on.core.queues.work(1, wanted, hand, Ear(hand))
    hand.joins += joined
    on.core.queues.start(hand.subscription)
    on.run()
    return hand


def later(on: Stage, seconds: float) -> None:
    """Time passes, in steps that the broker notices."""
    on.runtime.time_us += round(seconds * 1e6)
    on.core.tick()
    on.run()


def described(on: Stage, queue: str = "q") -> GroupInfo:
    async def ask() -> GroupInfo:
        return await on.core.queues.describe(queue)

    return asyncio.run(ask())


class Letter(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes]
    death: Death


def letters(on: Stage, topic: str = "dead.t") -> list[Letter]:
    """All of a dead-letter topic."""
    found: list[Letter] = []
    offset, end = 0, on.core.catalog.get(topic).partitions[0].visible_end
    while offset < end:
        for batch in on.fetch(topic, offset):
            for i, value in enumerate(batch.values):
                headers = batch.columns.headers(i)
                death = read_death(headers)
                assert death is not None
                found.append(Letter(value, batch.keys[i], headers, death))
            offset = batch.next_offset
    return found
