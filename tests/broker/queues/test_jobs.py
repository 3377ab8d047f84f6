"""A partition's jobs against a model that keeps each one by itself, restarts among the steps."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanlog.broker.queues.jobs import InHand, JobFailure, Jobs
from fanlog.broker.queues.key_order import KeyOrder
from fanlog.broker.queues.spans import JobSpan, JobState, Spans

WORKERS = ("ann", "bob", "cid")
DELIVERIES_MAX = 3
workers = st.sampled_from(WORKERS)
offsets = st.integers(0, 45)
sizes = st.integers(1, 12)


@dataclass
class Job:
    state: JobState = JobState.WAITING
    worker: str = ""
    due_us: int = 0
    failures: int = 0


class JobsAgainstModel(RuleBasedStateMachine):
    """Each rule does the same to `Jobs` and to a list of single jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0

    @initialize(start=st.integers(0, 5))
    def begin(self, start: int) -> None:
        self.start = start
        self.in_hand = InHand()
        self.jobs = Jobs(start, self.in_hand)
        self.model: dict[int, Job] = {}
        self.acked: set[int] = set()

    def at(self, first: int, size: int) -> tuple[int, int]:
        return self.start + first, self.start + first + size

    def flat(self, ranges: list[tuple[int, int]]) -> set[int]:
        return {offset for first, next in ranges for offset in range(first, next)}

    @rule(worker=workers, size=sizes, seconds=st.integers(1, 9))
    def hand_out_new(self, worker: str, size: int, seconds: int) -> None:
        first = self.jobs.next
        failures = self.jobs.lease(first, first + size, worker, self.now_us + seconds)
        assert failures == 0
        for offset in range(first, first + size):
            self.model[offset] = Job(JobState.LEASED, worker, self.now_us + seconds)

    @rule(worker=workers, size=sizes, seconds=st.integers(1, 9))
    def hand_out_again(self, worker: str, size: int, seconds: int) -> None:
        found = self.jobs.due(self.now_us)
        ready = {
            offset
            for offset, job in self.model.items()
            if job.state is JobState.WAITING and job.due_us <= self.now_us
        }
        assert (found is None) == (not ready)
        if found is None:
            return
        first, next = found[0], min(found[1], found[0] + size)
        assert set(range(*found)) <= ready
        failures = self.jobs.lease(first, next, worker, self.now_us + seconds)
        for offset in range(first, next):
            job = self.model[offset]
            assert job.failures == failures
            self.model[offset] = Job(JobState.LEASED, worker, self.now_us + seconds, failures)

    @rule(first=offsets, size=sizes)
    def ack(self, first: int, size: int) -> None:
        first, next = self.at(first, size)
        late = self.flat(self.jobs.finish(first, next))
        for offset in range(first, next):
            job = self.model.get(offset)
            gone = job is None or job.state in (JobState.DONE, JobState.DEAD)
            assert (offset in late) == gone
            if job is not None and not gone:
                job.state = JobState.DONE
                self.acked.add(offset)

    @rule(worker=workers, first=offsets, size=sizes, delay=st.integers(0, 5))
    def nack(self, worker: str, first: int, size: int, delay: int) -> None:
        first, next = self.at(first, size)
        due_us = self.now_us + delay
        self.jobs.settle(first, next, worker)
        dead_spans, late = self.jobs.fail(
            worker,
            first,
            next,
            due=lambda failures, first: due_us,
            reason="no",
            deliveries_max=DELIVERIES_MAX,
        )
        dead = self.flat([(s.first, s.next) for s in dead_spans])
        for offset in range(first, next):
            job = self.model.get(offset)
            mine = job is not None and job.state is JobState.LEASED and job.worker == worker
            assert (offset in self.flat(late)) == (not mine)
            if job is not None and mine:
                self.fail(job, due_us)
                assert (offset in dead) == (job.state is JobState.DEAD)

    def fail(self, job: Job, due_us: int) -> None:
        job.failures += 1
        job.worker = ""
        if job.failures >= DELIVERIES_MAX:
            job.state = JobState.DEAD
        else:
            job.state, job.due_us = JobState.WAITING, due_us

    @rule(worker=workers, first=offsets, size=sizes, seconds=st.integers(1, 20))
    def extend(self, worker: str, first: int, size: int, seconds: int) -> None:
        first, next = self.at(first, size)
        late = self.flat(self.jobs.extend(worker, first, next, self.now_us + seconds))
        for offset in range(first, next):
            job = self.model.get(offset)
            mine = job is not None and job.state is JobState.LEASED and job.worker == worker
            assert (offset in late) == (not mine)
            if job is not None and mine:
                job.due_us = self.now_us + seconds

    @rule(seconds=st.integers(0, 6), delay=st.integers(0, 3))
    def time_passes(self, seconds: int, delay: int) -> None:
        self.now_us += seconds
        due_us = self.now_us + delay
        again, dead_spans, workers = self.jobs.expire(
            self.now_us, lambda failures, first: due_us, DELIVERIES_MAX
        )
        had: set[str] = set()
        expected: dict[JobState, set[int]] = {JobState.WAITING: set(), JobState.DEAD: set()}
        for offset, job in self.model.items():
            if job.state is JobState.LEASED and job.due_us <= self.now_us:
                had.add(job.worker)
                self.fail(job, self.now_us + delay)
                expected[job.state].add(offset)
        assert workers == had
        assert self.flat([(s.first, s.next) for s in again]) == expected[JobState.WAITING]
        assert self.flat([(s.first, s.next) for s in dead_spans]) == expected[JobState.DEAD]

    @rule(worker=workers, first=offsets, size=sizes)
    def come_back_with_some(self, worker: str, first: int, size: int) -> None:
        first, next = self.at(first, size)
        released = self.jobs.release(worker, [(first, next)])
        gone = 0
        for offset, job in self.model.items():
            held = job.state is JobState.LEASED and job.worker == worker
            if held and not first <= offset < next:
                job.state, job.worker, job.due_us = JobState.WAITING, "", 0
                gone += 1
        assert released == gone

    @rule()
    def store_dead_letters(self) -> None:
        for offset, job in self.model.items():
            if job.state is JobState.DEAD:
                self.jobs.dead_letter_stored(offset, offset + 1)
                job.state = JobState.DONE

    @rule(ahead=st.integers(0, 3))
    def lose_to_retention(self, ahead: int) -> None:
        start = self.jobs.floor + ahead
        lost = self.jobs.lose(self.jobs.floor, start)
        gone = 0
        for offset in range(self.start, start):
            job = self.model.setdefault(offset, Job())
            gone += job.state is not JobState.DONE
            job.state = JobState.DONE
        assert lost == gone

    @rule()
    def restart(self) -> None:
        old = self.jobs
        self.in_hand = InHand()
        self.jobs = Jobs(old.floor, self.in_hand)
        self.jobs.restore(old.done_ranges(), old.failures())
        self.jobs.restored(1 << 40)
        dead_spans = self.jobs.mark_dead(DELIVERIES_MAX)
        dead = self.flat([(s.first, s.next) for s in dead_spans])
        for offset, job in list(self.model.items()):
            if offset >= self.jobs.next:
                assert job.state is not JobState.DONE
                del self.model[offset]
            elif job.state is JobState.LEASED:
                job.state, job.worker, job.due_us = JobState.WAITING, "", 0
            assert (offset in dead) == (job.state is JobState.DEAD)

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "jobs"):
            return
        floor = self.start
        while floor in self.model and self.model[floor].state is JobState.DONE:
            floor += 1
        assert self.jobs.floor == floor
        seen = floor
        for span in self.jobs.spans:
            assert span.first == seen < span.next
            seen = span.next
            for offset in range(span.first, span.next):
                job = self.model[offset]
                assert span.state is job.state
                # A dead job's letter names the worker that had it last.
                if job.state is not JobState.DEAD:
                    assert span.worker == (job.worker if job.state is JobState.LEASED else "")
                if span.state is not JobState.DONE:
                    assert span.failures == job.failures
        assert self.jobs.next == max(seen, floor)
        states = [job.state for job in self.model.values()]
        assert self.jobs.leased == states.count(JobState.LEASED)
        assert self.jobs.waiting == states.count(JobState.WAITING)
        leased = [job.worker for job in self.model.values() if job.state is JobState.LEASED]
        assert self.in_hand.counts == {worker: leased.count(worker) for worker in set(leased)}
        assert all(self.model[offset].state is JobState.DONE for offset in self.acked)


TestJobsAgainstModel = JobsAgainstModel.TestCase
TestJobsAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)


def test_done_neighbours_become_one_span() -> None:
    jobs = Jobs(0)
    jobs.lease(0, 1000, "ann", 9)
    for offset in range(999, 0, -1):
        jobs.finish(offset, offset + 1)
    assert len(jobs.spans) == 2
    assert jobs.floor == 0
    jobs.finish(0, 1)
    assert (len(jobs.spans), jobs.floor) == (0, 1000)


def test_a_worker_keeps_all_that_it_says_it_has_however_it_says_it() -> None:
    jobs = Jobs(0)
    jobs.lease(0, 20, "ann", 9)
    assert jobs.release("ann", [(0, 10), (3, 5), (9, 12)]) == 8
    jobs.settle(0, 20, "ann")
    assert [(s.first, s.next) for s in jobs.settling("ann", 0, 20)] == [(0, 12)]


def test_what_a_long_lease_leaves_behind_in_the_heaps_is_cleared_out() -> None:
    jobs = Jobs(0)
    for offset in range(20_000):
        jobs.lease(offset, offset + 1, "ann", 1 << 60)
        jobs.finish(offset, offset + 1)
    assert len(jobs._deadlines) <= 1100


def test_what_is_past_the_end_of_a_log_that_lost_its_tail_is_forgotten() -> None:
    jobs = Jobs(3)
    jobs.restore([(5, 8), (12, 20)], [])
    jobs.restored(7)
    assert (jobs.floor, jobs.next, jobs.done_ranges()) == (3, 7, [(5, 7)])
    jobs = Jobs(30)
    jobs.restored(10)
    assert (jobs.floor, jobs.next) == (10, 10)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=30))
def test_cutting_never_changes_what_is_covered(cuts: list[tuple[int, int]]) -> None:
    spans = Spans(0)
    spans.append(JobSpan(0, 30, JobState.WAITING))
    for first, size in cuts:
        got = spans.cut(first, first + size)
        covered = [offset for span in got for offset in range(span.first, span.next)]
        assert covered == list(range(first, min(30, first + size)))
    assert [o for span in spans for o in range(span.first, span.next)] == list(range(30))


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=40), st.randoms())
def test_of_a_key_the_first_is_out_and_the_others_follow_in_order(keys: list, chance) -> None:
    order = KeyOrder()
    out: list[int] = []
    for offset, key in enumerate(keys):
        if order.may_go(offset, key):
            out.append(offset)
        order.enter(offset, key)
    finished: dict[bytes, list[int]] = {}
    while out:
        of_keys = [keys[offset] for offset in out if keys[offset] is not None]
        assert len(of_keys) == len(set(of_keys))
        offset = out.pop(chance.randrange(len(out)))
        finished.setdefault(keys[offset], []).append(offset)
        freed = order.leave(offset)
        if freed is not None:
            out.append(freed)
    assert order.parked == 0
    assert sorted(o for some in finished.values() for o in some) == list(range(len(keys)))
    for key, some in finished.items():
        assert key is None or some == sorted(some)


def test_what_is_lost_further_on_leaves_what_is_before_it_to_be_done() -> None:
    jobs = Jobs(0)
    assert jobs.lose(5, 8) == 3
    assert jobs.due(0) == (0, 5)
    assert (jobs.waiting, jobs.next) == (5, 8)


def test_a_worker_that_gave_up_keeps_what_it_is_leased_since_then() -> None:
    jobs = Jobs(0)
    jobs.lease(0, 1, "ann", 5)
    jobs.expire(5, lambda failures, first: 5, 9)
    jobs.settle(0, 1, "ann")
    jobs.lease(0, 1, "ann", 20)
    dead, late = jobs.fail("ann", 0, 1, due=lambda failures, first: 9, reason="", deliveries_max=9)
    assert (dead, late) == ([], [(0, 1)])
    assert jobs.leased == 1


def test_jobs_that_are_passed_over_wait_behind_those_that_were_due_before() -> None:
    jobs = Jobs(0)
    jobs.lease(0, 2, "ann", 100)
    jobs.settle(0, 2, "ann")
    jobs.fail("ann", 0, 2, due=lambda failures, first: 10, reason="", deliveries_max=5)
    jobs.lease(5, 6, "ann", 100, priority=9, now_us=20)
    assert jobs.due(20) == (0, 2)
    jobs.lease(0, 2, "ann", 100)
    assert jobs.due(20) == (2, 5)


def test_a_range_of_a_priority_gives_what_may_go_out_and_remembers_what_has_to_wait() -> None:
    jobs = Jobs(0)
    jobs.restore([], [JobFailure(1, 2, 1, 50, ""), JobFailure(3, 4, 1, 60, "")])
    jobs.restored(10)
    assert jobs.ready(1, 2, 9, 0) is None
    assert jobs.ready(1, 5, 9, 0) == (2, 3)
    assert jobs.ready(3, 8, 9, 0) == (4, 8)
    assert jobs.due(49, 9) is None
    assert jobs.due(50, 9) == (1, 2)
