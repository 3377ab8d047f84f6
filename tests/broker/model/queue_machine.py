"""A work queue against its model: workers come, take jobs, settle them or not, vanish and come
back; time passes; the broker dies in between."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from fanlog.errors import FanlogError, FencedError
from fanlog.format.messages import HeldJobs, JobOutcome, OutcomeKind, Settle, Settled
from tests.broker.deletions import delete_records
from tests.broker.model.broker_machine import BrokerMachine, numbers, parts
from tests.broker.model.queue_model import JobModel, JobPlace, Said
from tests.broker.model.world import SECOND_US, Place
from tests.broker.queues.workers import Hand, hire, letters

QUEUE = "q"
TARGET = "t.>"
WORKERS = ("ann", "bob", "eve")
VISIBILITY_SECONDS = 10
EVERYTHING = 1000


class Worker:
    """A client's side: what it has in hand, whatever the broker thinks of it."""

    def __init__(self, name: str, prefetch: int) -> None:
        self.name = name
        self.prefetch = prefetch
        self.hand: Hand | None = None
        # With the broker's epoch when it was handed out.
        self.held: dict[JobPlace, int] = {}


class QueueRules(BrokerMachine):
    def prepare(self) -> None:
        super().prepare()
        self.ordered = self.choices[0]
        self.retry_seconds = 2.0 if self.choices[1] else 0.0
        self.jobs: dict[JobPlace, JobModel] = defaultdict(JobModel)
        self.workers: dict[str, Worker] = {}
        self.said: list[Said] = []
        self.queue_known = False
        # Those that may have a letter without being dead.
        self.doubted: set[JobPlace] = set()

    # What the model says

    def is_deleted(self, at: JobPlace) -> bool:
        place, offset = at
        return offset < self.logs[place].start

    def take_jobs(self) -> None:
        """Looks at what workers have got: it must be what may be handed out."""
        names = {self.partition(place).topic.number: place[0] for place in self.logs}
        for worker in self.workers.values():
            got = worker.hand.jobs() if worker.hand is not None else []
            for job in got:
                at = ((names[job.number], job.partition), job.offset)
                log = self.logs[at[0]]
                assert log.start <= job.offset < log.visible
                assert job.value == log.records[job.offset].value
                if self.ordered:
                    self.check_order(at)
                deadline_us = self.world.now_us + VISIBILITY_SECONDS * SECOND_US
                self.jobs[at].go_out(worker.name, job.deliveries, self.world.now_us, deadline_us)
                worker.held[at] = self.world.on.core.epoch
            out = [at for at, job in self.jobs.items() if job.is_with(worker.name)]
            assert not got or sum(not self.is_deleted(at) for at in out) <= worker.prefetch

    def check_order(self, at: JobPlace) -> None:
        """Whatever has the same key and comes before is over."""
        place, offset = at
        log = self.logs[place]
        key = log.records[offset].key
        for before in range(log.start, offset):
            if key is not None and log.records[before].key == key:
                job = self.jobs[place, before]
                assert job.over or job.unsure, f"{before} and {offset} of {place}"

    # Workers

    @rule(name=st.sampled_from(WORKERS), prefetch=st.sampled_from([1, 2, 5, 20]), keep=parts)
    def come(self, name: str, prefetch: int, keep: float) -> None:
        """A worker that is new, that comes back with some of what it had, or that takes the place
        of one of its name."""
        worker = self.workers.get(name)
        old = None if worker is None else worker.hand
        if worker is None or old is not None:
            worker = self.workers[name] = Worker(name, prefetch)
        worker.prefetch = prefetch
        held = sorted(worker.held)
        worker.held = {at: worker.held[at] for at in held[: round(keep * len(held))]}
        for at, job in self.jobs.items():
            if job.is_with(name) and at not in worker.held:
                job.give_back()
        worker.hand = hire(
            self.world.on,
            name,
            queue=QUEUE,
            target=TARGET,
            prefetch=prefetch,
            holds=tuple(self.holds(worker.held)),
            ordered=self.ordered,
            max_deliveries=3,
            visibility_seconds=VISIBILITY_SECONDS,
            retry_delay_seconds=self.retry_seconds,
        )
        assert old is None or isinstance(old.fenced, FencedError)
        self.queue_known = True
        self.take_jobs()

    def holds(self, held: Iterable[JobPlace]) -> list[HeldJobs]:
        return [
            HeldJobs(self.partition(place).topic.number, place[1], offset, offset + 1)
            for place, offset in sorted(held)
        ]

    @rule(name=st.sampled_from(WORKERS))
    def vanish(self, name: str) -> None:
        """A lost connection: its jobs stay with it until their time is up."""
        worker = self.workers.get(name)
        if worker is not None and worker.hand is not None:
            self.world.on.core.queues.lost(worker.hand.subscription)
            worker.hand = None
            self.world.on.run()
            self.take_jobs()

    @rule(name=st.sampled_from(WORKERS))
    def go(self, name: str) -> None:
        """A clean leave: others have its jobs, as if it never had them."""
        worker = self.workers.get(name)
        if worker is not None and worker.hand is not None:
            del self.workers[name]
            for job in self.jobs.values():
                if job.is_with(name):
                    job.give_back()
            self.world.on.core.queues.leave(worker.hand.subscription)
            self.world.on.run()
            self.take_jobs()

    # Outcomes

    def working(self, number: int) -> Worker | None:
        """One who has jobs in hand. If nobody is there, somebody comes."""
        if not any(worker.hand for worker in self.workers.values()):
            self.come(WORKERS[number % len(WORKERS)], 5, 1.0)
        some = [w for w in self.workers.values() if w.hand is not None and w.held]
        return some[number % len(some)] if some else None

    @rule(
        number=numbers,
        verb=st.sampled_from(
            [
                OutcomeKind.ACK,
                OutcomeKind.ACK,
                OutcomeKind.NACK,
                OutcomeKind.NACK,
                OutcomeKind.EXTEND,
                OutcomeKind.REJECT,
            ]
        ),
        span=st.tuples(parts, parts),
        delay_seconds=st.sampled_from([-1, 0, 5]),
        crash_after=st.sampled_from([None] * 7 + [0, 1, 2, 3]),
    )
    def settle_jobs(
        self,
        number: int,
        verb: OutcomeKind,
        span: tuple[float, float],
        delay_seconds: int,
        crash_after: int | None,
    ) -> None:
        """Says what became of some of a worker's jobs. A crash may come before the answer."""
        worker = self.working(number)
        if worker is None or worker.hand is None:
            return
        held = sorted(worker.held)
        first, next = sorted(round(part * len(held)) for part in span)
        epoch = worker.held[held[min(first, len(held) - 1)]]
        chosen = [at for at in held[first : next + 1] if worker.held[at] == epoch]
        answers = self.say(worker.hand, verb, chosen, delay_seconds, epoch)
        if verb is not OutcomeKind.EXTEND:
            worker.held = {at: epoch for at, epoch in worker.held.items() if at not in chosen}
        if crash_after is None:
            said = self.apply(worker, verb, chosen, delay_seconds, answers)
            self.world.on.run()
            self.said.append(said)
            self.check_said(all_synced=False)
            self.take_jobs()
            return
        self.world.step(crash_after)
        if answers:
            said = self.apply(worker, verb, chosen, delay_seconds, answers)
            self.check_late(said)
        elif verb is not OutcomeKind.EXTEND:
            self.doubt(chosen)
        # What was handed out meanwhile has not reached anyone.
        self.crash()

    def say(
        self, hand: Hand, verb: OutcomeKind, chosen: list[JobPlace], delay_seconds: int, epoch: int
    ) -> list[Settled | FanlogError]:
        """Hands outcomes in, neighbours as one."""
        ranges: list[tuple[Place, int, int]] = []
        for place, offset in chosen:
            if ranges and ranges[-1][0] == place and ranges[-1][2] == offset:
                ranges[-1] = (place, ranges[-1][1], offset + 1)
            else:
                ranges.append((place, offset, offset + 1))
        delay_ms = delay_seconds * 1000 if delay_seconds >= 0 else -1
        outcomes = tuple(
            JobOutcome(self.partition(p).topic.number, p[1], verb, first, next, delay_ms, "no good")
            for p, first, next in ranges
        )
        answers: list[Settled | FanlogError] = []
        settle = Settle(outcomes, epoch)
        self.world.on.core.queues.settle(hand.subscription, settle, answers.append)
        return answers

    def apply(
        self,
        worker: Worker,
        verb: OutcomeKind,
        chosen: list[JobPlace],
        delay_seconds: int,
        answers: list[Settled | FanlogError],
    ) -> Said:
        now_us, late = self.world.now_us, set[JobPlace]()
        if delay_seconds < 0:
            delay_seconds = (
                VISIBILITY_SECONDS if verb is OutcomeKind.EXTEND else int(self.retry_seconds)
            )
        due_us = now_us + delay_seconds * SECOND_US
        for at in chosen:
            job = self.jobs[at]
            if verb is OutcomeKind.ACK:
                if job.over:
                    late.add(at)
                else:
                    job.state = "done"
            elif not job.is_with(worker.name):
                late.add(at)
            elif verb is OutcomeKind.NACK:
                job.fail("no good", due_us)
            elif verb is OutcomeKind.REJECT:
                job.fail("no good", due_us, deliveries_max=0)
            else:
                job.due_us = due_us
        # Of what was deleted, or what a crash left in doubt, the model can't tell.
        either = {at for at in chosen if self.is_deleted(at) or self.jobs[at].unsure}
        return Said(answers, late, either, verb, set(chosen))

    def doubt(self, chosen: list[JobPlace]) -> None:
        for at in chosen:
            job = self.jobs[at]
            if not job.over:
                job.state, job.unsure = "waiting", True
                job.due_us = 0
                self.doubted.add(at)

    def check_said(self, *, all_synced: bool) -> None:
        waiting: list[Said] = []
        for said in self.said:
            if said.answers:
                self.check_late(said)
            else:
                # Only a dead letter for a synced topic takes longer than its turn.
                assert said.verb in (OutcomeKind.NACK, OutcomeKind.REJECT)
                assert not all_synced
                waiting.append(said)
        self.said = waiting

    def check_late(self, said: Said) -> None:
        (answer,) = said.answers
        assert isinstance(answer, Settled)
        names = {self.partition(place).topic.number: place[0] for place in self.logs}
        late = {
            ((names[v.number], v.partition), offset)
            for v in answer.late
            for offset in range(v.first, v.next)
        }
        assert late - said.either == said.late - said.either

    # Time, the disk, and ends

    def passes(self, seconds: float) -> None:
        super().passes(seconds)
        now_us = self.world.now_us
        for job in self.jobs.values():
            if job.state == "out" and job.due_us <= now_us:
                due_us = now_us + int(self.retry_seconds * SECOND_US)
                job.fail(f"timed out in the hands of worker {job.worker}", due_us)
        self.take_jobs()

    def turned(self, *, all_synced: bool) -> None:
        super().turned(all_synced=all_synced)
        self.check_said(all_synced=all_synced)
        self.take_jobs()

    def started(self, *, power_lost: bool) -> None:
        for said in self.said:
            if said.verb is OutcomeKind.REJECT:
                self.doubt_deaths(said)
        self.said = []
        for worker in self.workers.values():
            worker.hand = None
        for job in self.jobs.values():
            if job.state == "out":
                job.give_back()
            elif job.state == "waiting" and self.ordered:
                job.due_us = 0
        super().started(power_lost=power_lost)
        self.passes(0)

    def doubt_deaths(self, said: Said) -> None:
        """A rejected job whose letter was not durable may come again."""
        for at in said.about:
            job = self.jobs[at]
            if job.state == "dead" and at not in said.late:
                job.state, job.unsure, job.due_us = "waiting", True, 0
                job.failures -= 1
                self.doubted.add(at)

    @rule(where=numbers, offset=parts)
    def delete_jobs(self, where: int, offset: float) -> None:
        place = self.place(where)
        log = self.logs[place]
        before = log.start + int(offset * (log.visible - log.start))
        delete_records(self.world.on.core, place[0], {place[1]: before})
        log.start = before

    # What always holds

    @rule()
    def every_death_has_a_letter(self) -> None:
        self.settle()
        self.passes(0)
        self.settle()
        found = Counter[JobPlace]()
        for topic in {place[0] for place in self.logs}:
            if self.world.on.core.catalog.find(f"dead.{topic}") is None:
                continue
            for letter in letters(self.world.on, f"dead.{topic}"):
                death = letter.death
                at = ((death.topic, death.partition), death.offset)
                job, record = self.jobs[at], self.logs[at[0]].records[at[1]]
                found[at] += 1
                assert (death.queue, letter.value) == (QUEUE, record.value)
                assert (letter.key, death.key) == (death.letter_key, record.key)
                if self.is_deleted(at) or at in self.doubted:
                    continue
                assert job.state == "dead"
                assert (death.deliveries, death.reason) == (job.failures, job.reason)
        for at, job in self.jobs.items():
            if job.state == "dead" and not self.is_deleted(at):
                assert found[at], f"no letter for {at}"

    @invariant()
    def jobs_fit(self) -> None:
        """The broker knows of no more jobs in hand than the model does."""
        queue = self.world.on.core.queues.find(QUEUE)
        assert (queue is not None) == self.queue_known
        if queue is None:
            return
        out = Counter(
            job.worker
            for at, job in self.jobs.items()
            if job.state == "out" and not self.is_deleted(at)
        )
        for name, count in out.items():
            assert queue.in_hand.counts.get(name, 0) >= count

    def last_check(self) -> None:
        super().last_check()
        if self.queue_known:
            self.work_until_nothing_is_left()

    def work_until_nothing_is_left(self) -> None:
        """All leases run out, one worker takes everything: then every job is done or dead."""
        for name in list(self.workers):
            self.vanish(name)
        self.passes(2 * VISIBILITY_SECONDS)
        self.workers = {}
        self.come("last", EVERYTHING, 0.0)
        for _ in range(EVERYTHING):
            if not self.workers["last"].held:
                self.passes(VISIBILITY_SECONDS)
                # What stands behind a dead one of its key goes once that has its letter.
                self.settle()
                if not self.workers["last"].held:
                    break
            self.settle_jobs(0, OutcomeKind.ACK, (0.0, 1.0), 0, None)
        self.every_death_has_a_letter()
        queue = self.world.on.core.queues.find(QUEUE)
        assert queue is not None
        for place, log in self.logs.items():
            if place[0].startswith("t."):
                for offset in range(log.start, log.visible):
                    job = self.jobs[place, offset]
                    assert job.over or job.unsure, (place, offset)
                part = queue.partitions[self.partition(place).topic.number, place[1]]
                part.drop_lost()
                assert part.jobs.floor == log.visible
