"""A queue on disk against a model of single jobs: workers, outcomes, time, and restarts that bring
everything back from the ledger."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fanlog.format.batch import encode_batch
from fanlog.format.messages import OutcomeKind
from tests.broker.queues.workers import Hand, Job, hire, later, letters
from tests.broker.stage import Publisher, Stage, stage
from tests.quick_folders import quick_folder

WORKERS = ("ann", "bob")
PARTITIONS = 2
DELIVERIES_MAX = 3
VISIBILITY_SECONDS = 10
workers = st.sampled_from(WORKERS)
parts = st.floats(0, 1)


class QueueAgainstModel(RuleBasedStateMachine):
    """`failures` is the model: how often each job has failed; a done one is in `done`."""

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        self.held = ExitStack()
        self.folder = self.held.enter_context(quick_folder())
        self.ordered = ordered
        self.published = [0] * PARTITIONS
        self.failures: dict[tuple[int, int], int] = {}
        self.acked: set[tuple[int, int]] = set()
        self.dead: set[tuple[int, int]] = set()
        self.time_us = 0
        self.running = self.held.enter_context(ExitStack())
        self.start()

    def start(self) -> None:
        self.on: Stage = self.running.enter_context(stage(self.folder / "data"))
        self.on.runtime.time_us = max(self.on.runtime.time_us, self.time_us)
        self.on.core.create_topic("t", {"partitions": PARTITIONS}, exist_ok=True)
        self.hands: dict[str, Hand] = {}
        self.jobs: dict[str, list[Job]] = {}

    def place(self, job: Job) -> tuple[int, int]:
        return job.partition, job.offset

    def take(self) -> None:
        """Looks at what has come: it must be what may be handed out."""
        for name, hand in self.hands.items():
            for job in hand.jobs():
                place = self.place(job)
                assert place not in self.acked
                assert place not in self.dead
                assert job.deliveries == self.failures.get(place, 0) + 1
                out = {self.place(j) for some in self.jobs.values() for j in some}
                assert place not in out
                if self.ordered:
                    assert self.key(job) not in {self.key_at(other) for other in out}
                self.jobs[name].append(job)

    def key(self, job: Job) -> tuple[int, int]:
        return self.key_at(self.place(job))

    def key_at(self, place: tuple[int, int]) -> tuple[int, int]:
        partition, offset = place
        return partition, offset % 3

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 9))
    def publish(self, partition: int, count: int) -> None:
        first = self.published[partition]
        offsets = range(first, first + count)
        data = encode_batch(
            [b"%d" % offset for offset in offsets],
            keys=[b"%d" % (offset % 3) for offset in offsets],
            topic=self.on.core.catalog.get("t").number,
            partition=partition,
        )
        self.on.core.take(data, 0, Publisher())
        self.published[partition] += count
        self.on.run()
        self.take()

    @rule(name=workers, prefetch=st.integers(1, 20))
    def come(self, name: str, prefetch: int) -> None:
        if name not in self.hands:
            self.jobs[name] = []
            self.hands[name] = hire(
                self.on,
                name,
                prefetch=prefetch,
                ordered=self.ordered,
                max_deliveries=DELIVERIES_MAX,
                visibility_seconds=VISIBILITY_SECONDS,
            )
            self.take()

    @rule(name=workers)
    def leave(self, name: str) -> None:
        hand = self.hands.pop(name, None)
        if hand is not None:
            self.jobs.pop(name)
            self.on.core.queues.leave(hand.subscription)
            self.on.run()
            self.take()

    def some(self, name: str, begin: float, end: float) -> list[Job]:
        jobs = self.jobs.get(name, [])
        first, next = sorted((round(begin * len(jobs)), round(end * len(jobs))))
        return jobs[first:next]

    @rule(name=workers, begin=parts, end=parts)
    def ack(self, name: str, begin: float, end: float) -> None:
        jobs = self.some(name, begin, end)
        if jobs:
            self.jobs[name] = [job for job in self.jobs[name] if job not in jobs]
            assert self.hands[name].ack(jobs) == []
            self.acked |= {self.place(job) for job in jobs}
            self.take()

    @rule(name=workers, begin=parts, end=parts, delay_ms=st.sampled_from([0, 3000]))
    def nack(self, name: str, begin: float, end: float, delay_ms: int) -> None:
        jobs = self.some(name, begin, end)
        if jobs:
            self.jobs[name] = [job for job in self.jobs[name] if job not in jobs]
            for job in jobs:
                self.fail(self.place(job))
            assert self.hands[name].nack(jobs, delay_ms=delay_ms) == []
            self.take()

    @rule(name=workers, begin=parts, end=parts)
    def reject(self, name: str, begin: float, end: float) -> None:
        jobs = self.some(name, begin, end)
        if jobs:
            self.jobs[name] = [job for job in self.jobs[name] if job not in jobs]
            self.dead |= {self.place(job) for job in jobs}
            assert self.hands[name].settle(OutcomeKind.REJECT, jobs) == []
            self.take()

    def fail(self, place: tuple[int, int]) -> None:
        self.failures[place] = self.failures.get(place, 0) + 1
        if self.failures[place] >= DELIVERIES_MAX:
            self.dead.add(place)

    @rule()
    def all_leases_run_out(self) -> None:
        out = [job for some in self.jobs.values() for job in some]
        for job in out:
            self.fail(self.place(job))
        for name in self.jobs:
            self.jobs[name] = []
        later(self.on, VISIBILITY_SECONDS)
        self.take()

    @rule(begin=parts, end=parts)
    def restart(self, begin: float, end: float) -> None:
        """The broker starts anew; then some hear of their acks of before."""
        self.time_us = self.on.runtime.time_us
        epoch = self.on.core.epoch
        before = {name: self.some(name, begin, end) for name in self.jobs}
        self.running.close()
        self.start()
        for name, jobs in before.items():
            self.come(name, 3)
            self.jobs = {
                other: [j for j in some if j[:3] not in {job[:3] for job in jobs}]
                for other, some in self.jobs.items()
            }
            assert self.hands[name].settle(OutcomeKind.ACK, jobs, epoch=epoch) == []
            self.acked |= {self.place(job) for job in jobs}
            self.take()

    @invariant()
    def dead_letters_are_there_once_each(self) -> None:
        if not hasattr(self, "on") or not self.dead:
            return
        later(self.on, 0)
        self.take()
        found = [(letter.death.partition, letter.death.offset) for letter in letters(self.on)]
        assert sorted(found) == sorted(self.dead)

    @precondition(lambda self: hasattr(self, "on"))
    @rule()
    def work_until_nothing_is_left(self) -> None:
        self.come("ann", 7)
        for _ in range(sum(self.published) * 4 + 20):
            for name in self.hands:
                self.ack(name, 0.0, 1.0)
            if len(self.acked | self.dead) == sum(self.published):
                break
            if not any(self.jobs.values()):
                later(self.on, 3)
                self.take()
        assert len(self.acked) + len(self.dead) == sum(self.published)
        assert not self.acked & self.dead

    def teardown(self) -> None:
        if hasattr(self, "held"):
            self.held.close()


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=40, stateful_step_count=25)
