"""Queues on a stage: every verb, time, workers that come and go, restarts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fanlog import errors
from fanlog.broker.queues import outcomes
from fanlog.broker.queues.jobs import Jobs
from fanlog.cluster.reign import Reign
from fanlog.config import BrokerOptions
from fanlog.format.batch import encode_batch
from fanlog.format.messages import (
    HeldJobs,
    JoinGroup,
    ListTopics,
    OutcomeKind,
    ResetGroup,
    Settled,
    Work,
)
from fanlog.log.partition import PartitionLog
from fanlog.model import Start
from tests.broker.queues.workers import Ear, Hand, described, hire, later, letters
from tests.broker.stage import HandRuntime, Publisher, Stage, no_room, stage, succeeded


def publish(on: Stage, count: int, *, topic: str = "t", each: int | None = None) -> None:
    """So many jobs, in batches of `each`."""
    values = [b"%d" % i for i in range(count)]
    for first in range(0, count, each or count):
        on.publish(topic, values[first : first + (each or count)])
    on.run()


def jobs_of(on: Stage, number: int) -> Jobs:
    queue = on.core.queues.find("q")
    assert queue is not None
    return queue.partitions[number, 0].jobs


def publish_keyed(on: Stage, keys: str, topic: str = "t") -> None:
    """A job for each letter, which is its key; a dot is none."""
    number = on.core.open_topic(topic, create=True).number
    data = encode_batch(
        [b"%d" % i for i in range(len(keys))],
        keys=[None if key == "." else key.encode() for key in keys],
        topic=number,
    )
    on.core.take(data, 0, Publisher())
    on.run()


# Handing out


def test_each_job_goes_to_one_worker() -> None:
    with stage() as on:
        publish(on, 30, each=5)
        ann, bob = hire(on, "ann"), hire(on, "bob")
        got = ann.offsets_taken() + bob.offsets_taken()
        assert sorted(got) == list(range(30))


def test_a_batch_is_sent_to_a_worker_once_however_many_leases_are_cut_from_it() -> None:
    with stage() as on:
        publish(on, 20)
        ann = hire(on, prefetch=1)
        for offset in range(20):
            (job,) = ann.jobs()
            assert (job.offset, job.value) == (offset, b"%d" % offset)
            ann.ack([job])
        assert ann.batches_sent == 1
        assert [lease.fresh for lease in ann.leases] == [True] + [False] * 19


def test_one_large_batch_is_spread_over_all_who_are_idle() -> None:
    with stage() as on:
        hands = [hire(on, name) for name in "abcd"]
        publish(on, 100)
        assert [len(hand.jobs()) for hand in hands] == [25] * 4


def test_with_plenty_of_batches_each_worker_gets_whole_ones() -> None:
    with stage() as on:
        hands = [hire(on, name) for name in "abcd"]
        publish(on, 400, each=10)
        for hand in hands:
            assert len(hand.jobs()) == 100
            assert all(lease.next - lease.first == 10 for lease in hand.leases)


def test_workers_take_turns_when_jobs_come_one_by_one() -> None:
    with stage() as on:
        ann, bob = hire(on, "ann"), hire(on, "bob")
        for _ in range(10):
            publish(on, 1)
        assert (len(ann.jobs()), len(bob.jobs())) == (5, 5)


def test_a_worker_has_no_more_jobs_than_its_prefetch() -> None:
    with stage() as on:
        publish(on, 100, each=7)
        ann = hire(on, prefetch=10)
        jobs = ann.jobs()
        assert len(jobs) == 10
        ann.ack(jobs[:4])
        assert len(ann.jobs()) == 4


def test_no_small_pieces_are_cut_off_a_batch_for_a_worker_that_has_plenty_to_do() -> None:
    with stage() as on:
        publish(on, 1000)
        ann = hire(on, prefetch=160)
        jobs = ann.jobs()
        ann.ack(jobs[:19])
        assert ann.jobs() == []
        ann.ack(jobs[19:20])
        assert len(ann.jobs()) == 20
        ann.ack(jobs[20:])
        assert len(ann.jobs()) == 140


def test_a_worker_that_takes_nothing_holds_up_nobody() -> None:
    with stage() as on:
        publish(on, 200, each=10)
        slow = Hand(on, "slow")
        slow.room = 100
        hire(on, "slow", hand=slow, prefetch=10)
        assert slow.blocked
        ann = hire(on, "ann", prefetch=1000)
        taken: set[int] = set()
        while jobs := ann.jobs():
            taken |= {job.offset for job in jobs}
            ann.ack(jobs)
        slow.drain(on.core)
        on.run()
        mine = set(slow.offsets_taken())
        assert taken | mine == set(range(200))
        assert not taken & mine
        assert described(on).lag == len(mine) == 10


def test_all_partitions_and_all_topics_of_a_pattern_are_worked_on() -> None:
    with stage() as on:
        on.core.create_topic("a.x", {"partitions": 3})
        for partition in range(3):
            on.publish("a.x", [b"x"], partition=partition)
        on.run()
        ann = hire(on, target="a.>")
        assert sorted(job.partition for job in ann.jobs()) == [0, 1, 2]
        publish(on, 2, topic="a.y")
        assert [join.name for join in ann.joins] == ["a.x", "a.y"]
        assert len(ann.jobs()) == 2


def test_a_worker_gets_only_jobs_of_its_own_topics() -> None:
    with stage() as on:
        publish(on, 4, topic="a")
        publish(on, 6, topic="b")
        ann, bob = hire(on, "ann", target="a"), hire(on, "bob", target="b")
        assert (len(ann.jobs()), len(bob.jobs())) == (4, 6)


def test_jobs_are_read_from_disk_when_the_tail_has_dropped_them(data: Path) -> None:
    with stage(data, tail_bytes=4096) as on:
        for _ in range(30):
            publish(on, 100)
        assert on.core.catalog.get("t").partitions[0].log.tail.start_offset > 0
        ann = hire(on, prefetch=500)
        done: list[int] = []
        while jobs := ann.jobs():
            done += [job.offset for job in jobs]
            ann.ack(jobs)
        assert done == list(range(3000))


def test_a_partition_that_could_not_be_read_is_tried_again_by_itself(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise errors.StorageError("a cable is loose")

    with stage(data, tail_bytes=4096) as on:
        for _ in range(20):
            on.publish("t", [bytes(1000)])
            on.run()
        with monkeypatch.context() as loose:
            loose.setattr(PartitionLog, "read", broken)
            ann = hire(on)
        later(on, 1)
        assert ann.jobs() == []
        later(on, 5)
        assert len(ann.jobs()) == 20


def test_a_new_queue_begins_at_its_reset_policy() -> None:
    with stage() as on:
        publish(on, 5)
        assert len(hire(on, queue="old").jobs()) == 5
        new = hire(on, queue="new", reset="latest")
        assert new.jobs() == []
        publish(on, 1)
        assert new.offsets_taken() == [5]
        with pytest.raises(errors.NoPositionError, match="reset policy is 'none'"):
            hire(on, queue="none", reset="none")
        assert on.core.queues.find("none") is None


def test_a_topic_that_appeared_after_the_queue_is_worked_on_from_its_first_record() -> None:
    with stage() as on:
        publish(on, 1, topic="a.x")
        ann = hire(on, target="a.>", reset="latest")
        on.core.queues.leave(ann.subscription)
        publish(on, 3, topic="a.y")
        again = hire(on, target="a.>")
        assert sorted(again.offsets_taken()) == [0, 1, 2]


def test_a_topic_that_grows_is_worked_on_from_its_first_records() -> None:
    with stage() as on:
        on.core.create_topic("t", {})
        ann, bob = hire(on, "ann", reset="latest"), hire(on, "bob", target="t.>")
        on.grow("t", 3)
        assert [(s.partition, s.offset) for s in ann.joins[-1].starts] == [(1, 0), (2, 0)]
        assert bob.joins == []
        for partition in range(3):
            on.publish("t", [b"x"], partition=partition)
        on.run()
        jobs = ann.jobs()
        assert sorted(job.partition for job in jobs) == [0, 1, 2]
        assert ann.ack(jobs) == []
        assert [part.lag for part in described(on).partitions] == [0, 0, 0]


def test_a_queue_without_workers_leaves_nothing_of_new_partitions_out(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {})
        ann = hire(on, "ann", reset="latest")
        on.core.queues.leave(ann.subscription)
        on.grow("t", 2)
        on.publish("t", [b"x"], partition=1)
        on.run()
    with stage(data) as on:
        ann = hire(on, "ann", max_deliveries=1)
        (job,) = ann.jobs()
        assert (job.partition, job.value) == (1, b"x")
        ann.nack([job])
        assert [(letter.death.partition, letter.value) for letter in letters(on)] == [(1, b"x")]
    with stage(data) as on:
        assert hire(on, "ann").jobs() == []


def test_what_is_out_is_bounded() -> None:
    with stage(options=BrokerOptions(queue_in_flight_max=30)) as on:
        publish(on, 100)
        ann, bob = hire(on, "ann"), hire(on, "bob")
        jobs = ann.jobs()
        assert len(jobs) + len(bob.jobs()) == 30
        ann.ack(jobs[:7])
        assert len(ann.jobs()) + len(bob.jobs()) == 7


def test_past_its_ranges_a_partition_waits_until_its_oldest_jobs_end() -> None:
    with stage(options=BrokerOptions(queue_ranges_max=16)) as on:
        publish(on, 200)
        ann = hire(on, prefetch=1000, visibility_seconds=100)
        jobs = ann.jobs()
        ann.nack(jobs[::2], delay_ms=10_000)
        publish(on, 10)
        assert ann.jobs() == []
        assert len(jobs_of(on, jobs[0].number).spans) > 16
        later(on, 10)
        retried = ann.jobs()
        assert [job.offset for job in retried] == list(range(0, 200, 2))
        ann.ack(retried)
        ann.ack(jobs[1::2])
        assert len(ann.jobs()) == 10


# Outcomes


def test_an_acked_job_is_done() -> None:
    with stage() as on:
        publish(on, 10)
        ann = hire(on)
        assert ann.ack(ann.jobs()) == []
        later(on, 1000)
        assert ann.jobs() == []
        assert described(on).partitions[0].committed == 10


def test_a_nacked_job_comes_again_and_its_deliveries_are_counted() -> None:
    with stage() as on:
        publish(on, 3)
        ann = hire(on)
        first, second, third = ann.jobs()
        ann.nack([second], delay_ms=0)
        (again,) = ann.jobs()
        assert (again.offset, again.deliveries) == (1, 2)
        assert described(on).redelivered == 1
        ann.ack([first, again, third])
        assert described(on).lag == 0


def test_a_nack_waits_its_delay_or_the_queues_own() -> None:
    with stage() as on:
        publish(on, 2)
        ann = hire(on, retry_delay_seconds=5.0)
        first, second = ann.jobs()
        ann.nack([first], delay_ms=2000)
        ann.nack([second])
        assert ann.jobs() == []
        assert described(on).partitions[0].waiting == 2
        later(on, 1.9)
        assert ann.jobs() == []
        later(on, 0.1)
        assert ann.offsets_taken() == [0]
        later(on, 3)
        assert ann.offsets_taken() == [1]


def test_a_lease_that_runs_out_goes_to_others_and_counts_as_a_failure() -> None:
    with stage() as on:
        publish(on, 2)
        ann = hire(on, "ann", prefetch=2, visibility_seconds=30)
        assert len(ann.jobs()) == 2
        bob = hire(on, "bob", prefetch=2)
        later(on, 29.9)
        assert bob.jobs() == []
        later(on, 0.1)
        got = bob.jobs() + ann.jobs()
        assert [job.deliveries for job in got] == [2, 2]
        assert sorted(job.offset for job in got) == [0, 1]


def test_a_worker_that_let_its_time_run_out_gets_one_job_at_a_time_until_it_speaks() -> None:
    with stage() as on:
        publish(on, 100)
        ann = hire(on, "ann", prefetch=10, visibility_seconds=10)
        stuck = ann.jobs()
        assert len(stuck) == 10
        later(on, 10)
        assert len(ann.jobs()) == 1
        ann.ack(stuck[5:6])
        assert len(ann.jobs()) == 9


def test_extend_moves_the_end_of_a_lease() -> None:
    with stage() as on:
        publish(on, 2)
        ann = hire(on, "ann", visibility_seconds=10)
        first, _ = ann.jobs()
        bob = hire(on, "bob")
        later(on, 9)
        assert ann.settle(OutcomeKind.EXTEND, [first], delay_ms=20_000) == []
        later(on, 2)
        assert bob.offsets_taken() == [1]
        later(on, 17.9)
        assert 0 not in bob.offsets_taken()
        later(on, 0.1)
        assert 0 in bob.offsets_taken() + ann.offsets_taken()


def test_an_ack_after_the_lease_ran_out_still_counts() -> None:
    with stage() as on:
        publish(on, 2)
        ann = hire(on, "ann", visibility_seconds=10)
        late = ann.jobs()
        bob = hire(on, "bob")
        later(on, 10)
        theirs = bob.jobs() + ann.jobs()
        assert len(theirs) == 2
        assert ann.ack(late) == []
        later(on, 1000)
        assert bob.jobs() + ann.jobs() == []
        assert bob.ack(theirs) == [job.offset for job in theirs]


def test_an_outcome_on_what_is_done_or_anothers_is_late() -> None:
    with stage() as on:
        publish(on, 3)
        ann, bob = hire(on, "ann"), hire(on, "bob", prefetch=1)
        jobs = ann.jobs()
        ann.ack(jobs[:1])
        assert ann.nack(jobs[:1]) == [0]
        assert bob.nack(jobs[1:2]) == [1]
        assert bob.settle(OutcomeKind.EXTEND, jobs[1:2]) == [1]
        assert bob.settle(OutcomeKind.REJECT, jobs[1:2]) == [1]
        assert ann.ack([jobs[0]._replace(offset=77)]) == [77]
        assert ann.ack([jobs[0]._replace(number=12345)]) == [0]
        assert ann.settle(9, jobs[1:2]) == [1]  # type: ignore[arg-type]


def test_all_outcomes_of_a_turn_are_one_write(data: Path) -> None:
    with stage(data) as on:
        publish(on, 40)
        hands = [hire(on, name, prefetch=10) for name in "abcd"]
        ledger = on.core.internal.find_internal("_fanlog.queues")
        assert ledger is not None
        before = ledger.log.end_offset
        answers = [hand.say(OutcomeKind.ACK, hand.jobs()) for hand in hands]
        assert answers == [[]] * 4
        on.run()
        assert all(len(answer) == 1 for answer in answers)
        assert ledger.log.end_offset == before + 1


def test_very_many_outcomes_take_several_turns_and_one_frame_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outcomes, "_OUTCOMES_A_TURN", 6)
    with stage(options=BrokerOptions(queue_outcomes_max=4)) as on:
        publish(on, 10)
        ann = hire(on)
        jobs = ann.jobs()
        answers = [ann.say(OutcomeKind.ACK, jobs[i : i + 2]) for i in range(0, 10, 2)]
        on.runtime.due.popleft()()
        assert [len(answer) for answer in answers] == [1, 1, 1, 0, 0]
        on.run()
        assert all(len(answer) == 1 for answer in answers)
        assert described(on).lag == 0
        with pytest.raises(errors.LimitError, match="queue_outcomes_max"):
            ann.ack(jobs[:5])


def test_acks_that_cannot_be_written_are_not_answered_and_do_not_count(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        publish(on, 3)
        ann = hire(on)
        jobs = ann.jobs()
        with monkeypatch.context() as full:
            full.setattr("os.pwrite", no_room)
            with pytest.raises(errors.DiskFullError):
                ann.ack(jobs)
        assert described(on).lag == 3
        assert ann.ack(jobs) == []
        assert described(on).lag == 0


def test_leases_are_extended_while_an_ack_waits_for_the_disk(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chaos found jobs that came again and again: their leases ran out behind the ack of another
    job, which waited for the replicas."""
    with stage(data) as on:
        publish(on, 2)
        ann = hire(on, visibility_seconds=5)
        first, second = ann.jobs()
        written: list[Callable[[], None]] = []
        with monkeypatch.context() as slow:
            write = on.core.queues.write
            slow.setattr(
                on.core.queues,
                "write",
                lambda entries, done: written.append(partial(write, entries, done)),
            )
            acked = ann.say(OutcomeKind.ACK, [first])
            for _ in range(5):
                later(on, 4)
                assert ann.settle(OutcomeKind.EXTEND, [second]) == []
            assert acked == []
            assert ann.jobs() == []
        (now,) = written
        now()
        on.run()
        assert acked == [Settled(())]
        assert ann.ack([second]) == []
        assert ann.jobs() == []


# Dead letters


def test_a_job_that_failed_too_often_becomes_a_dead_letter() -> None:
    with stage() as on:
        on.core.open_topic("t", create=True)
        data = encode_batch(
            [b"bad"],
            keys=[b"k"],
            headers=[{"own": b"1"}],
            event_times_us=[77],
            topic=on.core.catalog.get("t").number,
        )
        on.core.take(data, 0, Publisher())
        on.run()
        ann = hire(on, max_deliveries=3)
        for _ in range(3):
            ann.nack(ann.jobs(), reason="no such file")
        assert ann.jobs() == []
        ((value, key, headers, death),) = letters(on)
        log = f"{on.core.catalog.get('t').number}.{on.core.epoch}"
        assert (value, key, headers["own"]) == (b"bad", f"t@{log}/0/0/q".encode(), b"1")
        assert (death.topic, death.partition, death.offset) == ("t", 0, 0)
        assert (death.queue, death.reason, death.deliveries) == ("q", "no such file", 3)
        assert (death.key, death.time.timestamp()) == (b"k", on.runtime.time_us / 1e6)
        (batch,) = on.fetch("dead.t", 0)
        assert list(batch.columns.event_times_us or ()) == [77]
        assert (described(on).dead_lettered, described(on).lag) == (1, 0)


def test_a_dead_letter_topic_is_compacted_and_as_safe_as_the_jobs_topic(data: Path) -> None:
    with stage(data) as on:
        publish(on, 1)
        ann = hire(on)
        ann.settle(OutcomeKind.REJECT, ann.jobs())
        settings = on.core.catalog.get("dead.t").settings
        assert (settings.role, settings.cleanup) == ("dead-letter", "compact")
        assert (settings.partitions, settings.durability) == (1, "os")
        assert (settings.retention_seconds, settings.retention_bytes) == (0, 0)


def test_a_rejected_job_is_a_dead_letter_at_once() -> None:
    with stage() as on:
        publish(on, 5)
        ann = hire(on, dead_letter="morgue")
        jobs = ann.jobs()
        assert ann.settle(OutcomeKind.REJECT, jobs[1:4], reason="unreadable") == []
        assert [value for value, *_ in letters(on, "morgue")] == [b"1", b"2", b"3"]
        assert {death.reason for *_, death in letters(on, "morgue")} == {"unreadable"}
        assert ann.ack(jobs) == [1, 2, 3]
        assert described(on).lag == 0


def test_a_job_whose_time_runs_out_too_often_is_a_dead_letter() -> None:
    with stage() as on:
        publish(on, 1)
        ann = hire(on, max_deliveries=2, visibility_seconds=1)
        assert len(ann.jobs()) == 1
        later(on, 1)
        assert len(ann.jobs()) == 1
        later(on, 1)
        ((*_, death),) = letters(on)
        assert (death.deliveries, death.reason) == (2, "timed out in the hands of worker ann")


def test_a_dead_letter_that_cannot_be_stored_is_tried_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        publish(on, 1)
        ann = hire(on)
        with monkeypatch.context() as full:
            full.setattr("os.pwrite", no_room)
            ann.settle(OutcomeKind.REJECT, ann.jobs())
        assert described(on).lag == 1
        later(on, 6)
        assert len(letters(on)) == 1
        assert described(on).lag == 0


def test_a_reject_is_answered_when_the_replicas_have_its_dead_letter(data: Path) -> None:
    # A primary whose reign ends forgets what it wanted to try again.
    reign = Reign(HandRuntime(), "c", 3, "a.1", ("a.1",))
    with stage(data, replicas=reign, adopt=reign) as on:
        reign.runtime = on.runtime
        publish(on, 1)
        ann = hire(on)
        reign.refusal = errors.UnavailableError("Too few replicas are in sync. Try again.")
        answers = ann.say(OutcomeKind.REJECT, ann.jobs())
        on.settle()
        assert answers == []
        reign.refusal = None
        later(on, 6)
        on.settle()
        assert [type(answer) for answer in answers] == [Settled]
        assert len(letters(on)) == 1
        assert described(on).lag == 0


def test_dead_letters_are_no_jobs_of_a_pattern_that_does_not_name_them() -> None:
    with stage() as on:
        publish(on, 1)
        ann = hire(on, target=">")
        ann.settle(OutcomeKind.REJECT, ann.jobs())
        assert ann.jobs() == []
        undertaker = hire(on, queue="u", target="dead.>")
        assert len(undertaker.jobs()) == 1


def test_a_tombstone_that_dies_is_a_letter_with_an_empty_value() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        on.core.take(encode_batch([None], topic=number), 0, Publisher())
        on.run()
        ann = hire(on)
        ann.settle(OutcomeKind.REJECT, ann.jobs())
        ((value, *_, death),) = letters(on)
        assert (value, death.null) == (b"", True)


# Order


def test_ordered_jobs_of_a_key_go_out_one_at_a_time_in_order() -> None:
    with stage() as on:
        publish_keyed(on, "aab.abb.")
        ann = hire(on, ordered=True)
        got = ann.jobs()
        assert sorted(job.offset for job in got) == [0, 2, 3, 7]
        ann.ack([job for job in got if job.offset == 0])
        assert ann.offsets_taken() == [1]
        ann.ack([job for job in got if job.offset == 2])
        assert ann.offsets_taken() == [5]


def test_a_nacked_job_blocks_its_key_until_it_is_done_or_dead() -> None:
    with stage() as on:
        publish_keyed(on, "aaab")
        ann = hire(on, ordered=True, max_deliveries=2)
        first, other = ann.jobs()
        assert (first.offset, other.offset) == (0, 3)
        ann.nack([first], delay_ms=5000)
        assert ann.jobs() == []
        later(on, 5)
        (first,) = ann.jobs()
        assert first.offset == 0
        ann.nack([first])
        assert len(letters(on)) == 1
        assert ann.offsets_taken() == [1]


def test_order_survives_a_restart(data: Path) -> None:
    with stage(data) as on:
        publish_keyed(on, "abab")
        ann = hire(on, ordered=True)
        a, _ = ann.jobs()
        ann.nack([a], delay_ms=60_000)
    with stage(data) as on:
        ann = hire(on)
        got = ann.jobs()
        assert sorted((job.offset, job.deliveries) for job in got) == [(0, 2), (1, 1)]
        ann.ack(got)
        assert sorted(ann.offsets_taken()) == [2, 3]


def test_what_is_set_aside_for_order_is_bounded() -> None:
    with stage(options=BrokerOptions(queue_parked_max=5)) as on:
        publish_keyed(on, "a" * 20 + "b")
        ann = hire(on, ordered=True)
        got = []
        while jobs := ann.jobs():
            order = jobs_of(on, jobs[0].number).order
            assert order is not None
            assert order.parked <= 5
            got += [job.offset for job in jobs]
            ann.ack(jobs)
        assert [o for o in got if o < 20] == list(range(20))
        assert 20 in got


def test_whether_a_queue_is_ordered_changes_only_while_nobody_works() -> None:
    with stage() as on:
        publish_keyed(on, "aaa")
        ann = hire(on, "ann")
        with pytest.raises(errors.GroupActiveError, match="ordered"):
            hire(on, "bob", ordered=True)
        on.core.queues.leave(ann.subscription)
        bob = hire(on, "bob", ordered=True)
        assert bob.offsets_taken() == [0]


# Workers come and go


def test_a_worker_that_leaves_gives_back_what_it_has_uncounted() -> None:
    with stage() as on:
        publish(on, 10)
        ann = hire(on, "ann")
        assert len(ann.jobs()) == 10
        bob = hire(on, "bob")
        on.core.queues.leave(ann.subscription)
        on.run()
        assert [job.deliveries for job in bob.jobs()] == [1] * 10


def test_a_worker_whose_connection_is_lost_keeps_its_jobs_until_their_time_is_up() -> None:
    with stage() as on:
        publish(on, 4)
        ann = hire(on, "ann", visibility_seconds=10)
        jobs = ann.jobs()
        on.core.queues.lost(ann.subscription)
        bob = hire(on, "bob")
        later(on, 5)
        assert bob.jobs() == []
        holds = tuple(
            HeldJobs(job.number, job.partition, job.offset, job.offset + 1) for job in jobs
        )
        back = hire(on, "ann", holds=holds)
        assert back.jobs() == []
        assert back.ack(jobs[:2]) == []
        on.core.queues.lost(back.subscription)
        later(on, 5)
        assert sorted(job.offset for job in bob.jobs()) == [2, 3]
        assert [member.id for member in described(on).members] == ["bob"]


def test_leases_that_never_arrived_go_out_again_when_their_worker_comes_back() -> None:
    with stage() as on:
        publish(on, 4)
        ann = hire(on, "ann")
        jobs = ann.jobs()
        on.core.queues.lost(ann.subscription)
        held = HeldJobs(jobs[0].number, 0, 0, 1)
        back = hire(on, "ann", holds=(held,))
        assert sorted((job.offset, job.deliveries) for job in back.jobs()) == [
            (1, 1),
            (2, 1),
            (3, 1),
        ]


def test_a_second_worker_of_the_same_name_takes_the_first_ones_place() -> None:
    with stage() as on:
        publish(on, 2)
        first = hire(on, "ann")
        jobs = first.jobs()
        hire(on, "ann", holds=tuple(HeldJobs(j.number, 0, j.offset, j.offset + 1) for j in jobs))
        assert isinstance(first.fenced, errors.FencedError)
        with pytest.raises(errors.LeaseLostError):
            first.ack(jobs)


def test_a_name_belongs_to_a_queue_or_to_a_group() -> None:
    with stage() as on:
        on.core.open_topic("t", create=True)
        hire(on, queue="jobs")
        with pytest.raises(errors.GroupActiveError):
            from_groups(on, "jobs")


def from_groups(on: Stage, name: str) -> None:
    hand = Hand(on, "m")
    wanted = JoinGroup(group=name, member="m", target="t")
    on.core.groups.join(5, wanted, hand, Ear(hand))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"queue": ""}, errors.InvalidNameError),
        ({"queue": "x" * 300}, errors.InvalidNameError),
        ({"prefetch": 0}, errors.InvalidArgumentError),
        ({"prefetch": 1_000_000}, errors.LimitError),
        ({"visibility_seconds": 0}, errors.InvalidArgumentError),
        ({"unknown": 1}, errors.InvalidArgumentError),
        ({"dead_letter": "t"}, errors.InvalidArgumentError),
        ({"dead_letter": "_fanlog.cursors"}, errors.InvalidNameError),
        ({"dead_letter": "dead.*"}, errors.InvalidNameError),
        ({"dead_letter": "x" * 300}, errors.InvalidNameError),
        ({"target": "_fanlog.queues"}, errors.InvalidNameError),
    ],
)
def test_what_a_worker_may_not_ask_for(wanted: dict, error: type[errors.FanlogError]) -> None:
    with stage() as on, pytest.raises(error):
        hire(on, **wanted)


# Topics go, retention comes, compaction leaves gaps


@pytest.mark.parametrize("ordered", [False, True])
def test_what_compaction_has_left_of_a_topic_is_worked_on(data: Path, ordered: bool) -> None:
    with stage(data, cleanup="compact", compact_after_bytes=1, segment_bytes=64 * 1024) as on:
        for keys in ("abcabd", "xyzxyw", "abcabe"):
            publish_keyed(on, keys)
        on.core.housekeeping()
        on.run()
        left = [5, 8, 9, 10, 11, 14, 15, 16, 17]
        ann = hire(on, prefetch=3, ordered=ordered)
        done: list[int] = []
        while jobs := ann.jobs():
            done += [job.offset for job in jobs]
            ann.ack(jobs)
        assert sorted(done) == left
        assert described(on).lag == 0
        assert described(on).partitions[0].committed == 18


def test_a_failed_job_that_compaction_takes_away_is_done(data: Path) -> None:
    with stage(data, cleanup="compact", compact_after_bytes=1, segment_bytes=64 * 1024) as on:
        publish_keyed(on, "a")
        ann = hire(on, prefetch=1)
        ann.nack(ann.jobs(), delay_ms=1000)
        publish_keyed(on, "ab")
        on.core.housekeeping()
        on.run()
        ann.ack(ann.jobs())
        ann.ack(ann.jobs())
        later(on, 1)
        # Whether it comes once more depends on what is still at hand; then it is done.
        ann.ack(ann.jobs())
        assert ann.jobs() == []
        assert described(on).partitions[0].committed == 3


def test_a_deleted_topic_is_forgotten_and_made_anew_begins_anew(data: Path) -> None:
    with stage(data) as on:
        publish(on, 5)
        ann = hire(on)
        jobs = ann.jobs()
        ann.ack(jobs[:3])
        on.core.delete_topic("t")
        assert ann.lefts == ["t"]
        assert ann.ack(jobs[3:]) == [3, 4]
        publish(on, 2)
        assert ann.offsets_taken() == [0, 1]
    with stage(data) as on:
        assert hire(on).offsets_taken() == [0, 1]


def test_jobs_that_retention_deletes_are_counted_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with stage(retention_seconds=10) as on:
        publish(on, 10)
        ann = hire(on, prefetch=2)
        assert ann.offsets_taken() == [0, 1]
        on.runtime.time_us += 11_000_000
        publish(on, 3)
        on.core.housekeeping()
        later(on, 60)
        assert ann.offsets_taken() == [10]
        assert "10 jobs of t/0 are lost" in caplog.text
        assert on.counters("t")["lost_records"] == 10


# Restarts


def test_acks_survive_a_restart_and_what_was_out_is_handed_out_again(data: Path) -> None:
    with stage(data) as on:
        publish(on, 20)
        ann = hire(on, max_deliveries=7)
        jobs = ann.jobs()
        ann.ack(jobs[0:5] + jobs[10:12])
    with stage(data) as on:
        ann = hire(on)
        settings = described(on).queue
        assert settings is not None
        assert settings.max_deliveries == 7
        got = ann.jobs()
        assert [job.offset for job in got] == [*range(5, 10), *range(12, 20)]
        assert {job.deliveries for job in got} == {1}
        ann.ack(got)
    with stage(data) as on:
        assert hire(on).jobs() == []


def test_an_ack_of_what_was_handed_out_before_a_restart_counts(data: Path) -> None:
    with stage(data) as on:
        publish(on, 10)
        ann = hire(on)
        jobs = ann.jobs()
        epoch = on.core.epoch
    with stage(data) as on:
        publish(on, 5)
        bob = hire(on, prefetch=1)
        assert bob.offsets_taken() == [0]
        beyond = jobs[0]._replace(offset=99)
        assert bob.settle(OutcomeKind.ACK, [*jobs[4:7], beyond], epoch=epoch) == [99]
        assert bob.settle(OutcomeKind.ACK, [jobs[8]]) == [8]
        assert bob.settle(OutcomeKind.ACK, [jobs[8]], epoch=on.core.epoch + 1) == [8]
        bob.ack(jobs[:1])
        rest: list[int] = []
        while got := bob.jobs():
            rest += [job.offset for job in got]
            bob.ack(got)
        assert rest == [1, 2, 3, *range(7, 15)]
    with stage(data) as on:
        assert hire(on).jobs() == []


def test_failed_deliveries_survive_a_restart(data: Path) -> None:
    with stage(data) as on:
        publish(on, 3)
        ann = hire(on, visibility_seconds=10)
        first, _, third = ann.jobs()
        ann.nack([first])
        assert len(ann.jobs()) == 1
        ann.ack([third])
        later(on, 10)
    with stage(data) as on:
        on.runtime.time_us += 60_000_000
        got = {job.offset: job.deliveries for job in hire(on).jobs()}
        assert got == {0: 3, 1: 2}


def test_dead_jobs_become_dead_letters_after_a_restart(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        publish(on, 1)
        ann = hire(on, max_deliveries=1)
        monkeypatch.setattr(on.core.queues._dead_letter_moves, "move", lambda *_: None)
        ann.say(OutcomeKind.NACK, ann.jobs(), reason="so it goes")
        on.run()
    with stage(data) as on:
        later(on, 0.1)
        ((*_, death),) = letters(on)
        assert (death.reason, death.deliveries) == ("so it goes", 1)
        assert hire(on).jobs() == []


def test_a_snapshot_of_the_ledger_keeps_all_that_counts(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.broker.state.ledger._SNAPSHOT_AFTER_RECORDS", 10)
    with stage(data) as on:
        publish(on, 100)
        ann = hire(on)
        jobs = ann.jobs()
        for job in jobs[1::2]:
            ann.ack([job])
        ann.nack(jobs[:1])
    with stage(data) as on:
        got = {job.offset: job.deliveries for job in hire(on).jobs()}
        assert got == {offset: 2 if not offset else 1 for offset in range(0, 100, 2)}


def test_a_topic_in_memory_begins_anew_with_the_broker(data: Path) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {"durability": "memory"})
        publish(on, 5)
        ann = hire(on)
        old = ann.jobs()
        ann.ack(old[:3])
    with stage(data) as on:
        on.core.create_topic("t", {"durability": "memory"})
        publish(on, 2)
        ann = hire(on)
        assert ann.offsets_taken() == [0, 1]


# For operators


def test_a_queue_is_described() -> None:
    with stage() as on:
        publish(on, 10)
        ann = hire(on, "ann", prefetch=4)
        hire(on, "bob", prefetch=3)
        jobs = ann.jobs()
        ann.nack(jobs[:1], delay_ms=60_000)
        info = described(on)
        (partition,) = info.partitions
        assert (info.name, info.kind, info.state) == ("q", "queue", "active")
        assert [(m.id, m.in_flight, m.present) for m in info.members] == [
            ("ann", 4, True),
            ("bob", 3, True),
        ]
        assert (partition.committed, partition.end_offset, partition.lag) == (0, 10, 10)
        assert (partition.in_flight, partition.waiting) == (7, 1)
        assert on.core.queues.names() == ["q"]


def reset(on: Stage, **wanted: object) -> list:
    async def ask() -> list:
        asked = ResetGroup(group="q", **wanted)  # type: ignore[arg-type]
        resetting = asyncio.ensure_future(on.core.queues.reset(asked))
        while not resetting.done():
            await asyncio.sleep(0)
            on.run()
        return await resetting

    return asyncio.run(ask())


def test_a_queue_without_workers_can_be_reset(data: Path) -> None:
    with stage(data) as on:
        publish(on, 10)
        ann = hire(on)
        ann.ack(ann.jobs())
        with pytest.raises(errors.GroupActiveError, match="ann"):
            reset(on, start=Start("earliest"))
        on.core.queues.leave(ann.subscription)
        (step,) = reset(on, start=Start("offset", 7), dry_run=True)
        assert (step.topic, step.partition, step.before, step.after) == ("t", 0, 10, 7)
        assert described(on).lag == 0
        reset(on, start=Start("offset", 7))
        on.run()
        assert described(on).lag == 3
    with stage(data) as on:
        assert hire(on).offsets_taken() == [7, 8, 9]


def test_a_queue_without_workers_can_be_deleted(data: Path) -> None:
    with stage(data) as on:
        publish(on, 3)
        ann = hire(on)
        ann.ack(ann.jobs())
        with pytest.raises(errors.GroupActiveError):
            on.core.queues.delete("q", succeeded)
        on.core.queues.leave(ann.subscription)
        on.core.queues.delete("q", succeeded)
        on.run()
        with pytest.raises(errors.GroupNotFoundError):
            on.core.queues.delete("q", succeeded)
    with stage(data) as on:
        assert on.core.queues.names() == []
        assert hire(on).offsets_taken() == [0, 1, 2]


def test_a_deleted_queues_dead_letters_do_not_count_for_a_new_one_of_its_name(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        publish(on, 2)
        ann = hire(on)
        with monkeypatch.context() as full:
            full.setattr("os.pwrite", no_room)
            ann.settle(OutcomeKind.REJECT, ann.jobs())
        on.core.queues.leave(ann.subscription)
        on.core.queues.delete("q", succeeded)
        on.run()
        assert hire(on).offsets_taken() == [0, 1]
        later(on, 6)
    with stage(data) as on:
        assert hire(on).offsets_taken() == [0, 1]


def test_queues_and_workers_are_limited() -> None:
    with stage(options=BrokerOptions(queues_max=1, queue_workers_max=2)) as on:
        hire(on, "a")
        hire(on, "b")
        with pytest.raises(errors.LimitError, match="queue_workers_max"):
            hire(on, "c")
        with pytest.raises(errors.LimitError, match="queues_max"):
            hire(on, queue="other")


def test_a_worker_that_is_refused_changes_nothing() -> None:
    with stage(options=BrokerOptions(queue_workers_max=1)) as on:
        hire(on, "a", max_deliveries=3)
        with pytest.raises(errors.LimitError):
            hire(on, "b", max_deliveries=9)
        info = described(on)
        assert info.queue is not None
        assert (info.queue.max_deliveries, len(info.members)) == (3, 1)


def test_a_queue_does_not_work_on_its_own_dead_letters() -> None:
    with stage() as on:
        publish(on, 1, topic="a.x")
        ann = hire(on, target="a.>", dead_letter="a.dead")
        on.core.create_topic("a.dead", {})
        ann.settle(OutcomeKind.REJECT, ann.jobs())
        assert ann.jobs() == []
        assert len(letters(on, "a.dead")) == 1


def test_two_workers_of_one_connection_need_names_of_their_own() -> None:
    with stage() as on:
        ann = hire(on, "ann")
        wanted = Work(queue="q", worker="ann", target="t")
        with pytest.raises(errors.InvalidArgumentError, match="name of its own"):
            on.core.queues.work(2, wanted, ann, Ear(ann))


# Inboxes


def test_patterns_mean_inboxes_only_when_they_begin_so() -> None:
    with stage() as on:
        everything = asyncio.run(on.subscribe(">"))
        inboxes = asyncio.run(on.subscribe("_inbox.>"))
        on.publish("_inbox.1", [b"reply"])
        on.run()
        assert (everything.joins, everything.offsets) == ([], [])
        assert inboxes.offsets == [0]
        assert on.core.list_topics(ListTopics()).topics == ()
        assert on.core.catalog.get("_inbox.1").settings.durability == "memory"


def test_an_inbox_that_nobody_reads_is_deleted() -> None:
    with stage(options=BrokerOptions(inbox_idle_seconds=60)) as on:
        reader = asyncio.run(on.subscribe("_inbox.1"))
        on.core.open_topic("_inbox.2", create=True)
        on.core.housekeeping()
        on.runtime.time_us += 60_000_000
        on.core.housekeeping()
        assert on.core.catalog.find("_inbox.1") is not None
        assert on.core.catalog.find("_inbox.2") is None
        assert reader.feed is not None
        on.core.subscriptions.remove(reader.feed)
        on.core.housekeeping()
        on.runtime.time_us += 59_000_000
        on.core.housekeeping()
        assert on.core.catalog.find("_inbox.1") is not None
        on.runtime.time_us += 1_000_000
        on.core.housekeeping()
        assert on.core.catalog.find("_inbox.1") is None


@pytest.mark.parametrize("same_turn", [False, True])
def test_a_late_ack_does_not_undo_a_dead_letter_that_is_on_its_way(
    data: Path, tmp_path: Path, same_turn: bool
) -> None:
    with stage(data, durability="fsync") as on:
        on.publish("t", [b"0", b"1"])
        on.run()
        on.sync_group.sync()
        on.run()
        ann = hire(on, "ann", max_deliveries=1)
        bob = hire(on, "bob", max_deliveries=1)
        jobs = ann.jobs()
        assert len(jobs) == 2
        ann.say(OutcomeKind.NACK, jobs[:1], reason="no good")
        if not same_turn:
            on.run()
        answers = bob.say(OutcomeKind.ACK, jobs)
        on.run()
        (answer,) = answers
        assert isinstance(answer, Settled)
        assert [(late.first, late.next) for late in answer.late] == [(0, 1)]
        # The dead letter is not durable yet when the process dies.
        crash = tmp_path / "crash"
        shutil.copytree(data, crash)
        for folder in crash.glob("topics/*-dead.t/0"):
            shutil.rmtree(folder)
    with stage(crash, durability="fsync") as on:
        for _ in range(3):
            later(on, 1)
            on.sync_group.sync()
            on.run()
        assert [letter.value for letter in letters(on)] == [b"0"]
