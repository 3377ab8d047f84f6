"""Priorities in queues: what is urgent goes out first, and the rest is never left behind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.broker.queues.queue import URGENT_JOBS
from fanlog.broker.queues.queue_partition import QueuePartition
from fanlog.broker.queues.urgent_jobs import UrgentJobs
from fanlog.config import BrokerOptions, LogOptions
from fanlog.errors import FormatError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.messages import OutcomeKind
from fanlog.format.sparse import thinned
from tests.broker.queues.workers import Hand, Job, described, hire, later, letters
from tests.broker.stage import Publisher, Stage, stage


def publish(
    on: Stage, priority: int, *values: bytes, topic: str = "t", partition: int = 0
) -> Publisher:
    """One batch."""
    number = on.core.open_topic(topic, create=True).number
    origin = Publisher()
    data = encode_batch(list(values), topic=number, partition=partition, priority=priority)
    on.core.take(data, 0, origin)
    on.run()
    return origin


def work_off(on: Stage, hand: Hand, count: int = 100_000) -> list[bytes | None]:
    """Takes one job after the other and acks it; what they were."""
    done: list[bytes | None] = []
    while len(done) < count:
        jobs = hand.jobs()
        if not jobs:
            break
        done += [job.value for job in jobs]
        hand.ack(jobs)
    return done


def test_the_most_urgent_jobs_go_out_first_each_priority_in_order() -> None:
    with stage() as on:
        for i, priority in enumerate((0, 3, 9, 0, 3, 9, 1)):
            publish(on, priority, b"%d.%d" % (priority, i))
        ann = hire(on, prefetch=1)
        assert work_off(on, ann) == [b"9.2", b"9.5", b"3.1", b"3.4", b"1.6", b"0.0", b"0.3"]
        (partition,) = described(on).partitions
        assert (partition.committed, partition.lag, partition.urgent) == (7, 0, {})


def test_a_queue_without_priorities_looks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it costs anything where it is not used."""

    def nobody(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(UrgentJobs, "__init__", nobody)
    with stage() as on:
        publish(on, 0, *(b"%d" % i for i in range(100)))
        assert len(work_off(on, hire(on, prefetch=10))) == 100
        assert on.core.catalog.get("t").partitions[0].ranked_from is None


def test_an_urgent_job_that_comes_later_is_the_next_to_go_out() -> None:
    with stage() as on:
        publish(on, 0, *(b"%d" % i for i in range(1000)))
        ann = hire(on, prefetch=1)
        assert work_off(on, ann, 3) == [b"0", b"1", b"2"]
        publish(on, 5, b"now")
        assert work_off(on, ann, 3) == [b"3", b"now", b"4"]


def test_an_urgent_batch_is_shared_like_any_other() -> None:
    with stage() as on:
        publish(on, 0, *(b"low" for _ in range(100)))
        publish(on, 9, *(b"%d" % i for i in range(6)))
        ann, bob = hire(on, "ann", prefetch=3), hire(on, "bob", prefetch=3)
        got = [job.value for job in ann.jobs() + bob.jobs()]
        assert got == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_low_jobs_get_their_share_however_many_urgent_ones_there_are() -> None:
    """Of ten jobs that go out, nine at most because they are urgent."""
    with stage() as on:
        publish(on, 0, *(b"low" for _ in range(500)))
        for _ in range(500):
            publish(on, 9, *(b"urgent" for _ in range(10)))
        ann = hire(on, prefetch=1)
        done = work_off(on, ann, 1000)
        assert Counter(done) == {b"urgent": 900, b"low": 100}
        # And evenly: none waits for more than nine others to pass.
        for first in range(0, 1000, URGENT_JOBS + 1):
            assert done[first : first + URGENT_JOBS + 1].count(b"low") == 1


def test_low_jobs_get_their_share_of_large_leases_too() -> None:
    with stage() as on:
        publish(on, 0, *(b"low" for _ in range(5000)))
        for _ in range(50):
            publish(on, 9, *(b"urgent" for _ in range(100)))
        ann = hire(on, prefetch=100)
        done = work_off(on, ann, 4000)[:4000]
        assert 400 <= done.count(b"low") <= 800


def test_what_is_between_is_not_starved_either() -> None:
    """The oldest job has its turn, whatever its priority."""
    with stage() as on:
        publish(on, 5, *(b"middle" for _ in range(20)))
        publish(on, 0, *(b"low" for _ in range(20)))
        publish(on, 9, *(b"urgent" for _ in range(1000)))
        ann = hire(on, prefetch=1)
        assert Counter(work_off(on, ann, 400)) == {b"urgent": 360, b"middle": 20, b"low": 20}


def test_a_job_between_that_comes_again_is_not_starved() -> None:
    with stage() as on:
        publish(on, 5, b"middle")
        publish(on, 0, *(b"low" for _ in range(100)))
        ann = hire(on, prefetch=1)
        (job,) = ann.jobs()
        assert job.value == b"middle"
        publish(on, 9, *(b"urgent" for _ in range(1000)))
        ann.nack([job], delay_ms=0)
        done = work_off(on, ann, 400)
        assert Counter(done) == {b"urgent": 360, b"low": 39, b"middle": 1}
        assert done.index(b"middle") < 30


def test_the_most_urgent_job_of_all_partitions_goes_first() -> None:
    with stage(partitions=3) as on:
        on.core.open_topic("t", create=True)
        for partition, priority in ((0, 2), (1, 7), (2, 4)):
            publish(on, 0, *(b"low" for _ in range(5)), partition=partition)
            publish(on, priority, b"%d" % priority, b"%d" % priority, partition=partition)
        ann = hire(on, prefetch=1)
        assert work_off(on, ann, 6) == [b"7", b"7", b"4", b"4", b"2", b"2"]
        assert work_off(on, ann) == [b"low"] * 15


def test_handing_out_looks_at_each_of_many_partitions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every lease: a thousand of each would hold up everybody else for seconds."""
    looks = 0
    top = QueuePartition.top

    def counted(part: QueuePartition, now_us: int) -> int:
        nonlocal looks
        looks += 1
        return top(part, now_us)

    monkeypatch.setattr(QueuePartition, "top", counted)
    with stage(partitions=50) as on:
        on.core.open_topic("t", create=True)
        for partition in range(50):
            publish(on, 0, b"low", partition=partition)
            publish(on, 1 + partition % 9, b"%d" % (1 + partition % 9), partition=partition)
        ann = hire(on, prefetch=100)
        got = [job.value or b"" for job in ann.jobs()]
        assert len(got) == 100
        urgent = [value for value in got if value != b"low"]
        assert urgent == sorted(urgent, reverse=True)
        assert looks < 300


def test_a_partition_without_urgent_jobs_has_its_turn() -> None:
    with stage(partitions=2) as on:
        on.core.open_topic("t", create=True)
        publish(on, 0, *(b"low" for _ in range(100)), partition=0)
        for _ in range(100):
            publish(on, 9, *(b"urgent" for _ in range(20)), partition=1)
        ann = hire(on, prefetch=1)
        assert Counter(work_off(on, ann, 1000))[b"low"] >= 45


# Failures, dead letters, restarts


def test_a_job_that_comes_again_keeps_its_priority() -> None:
    with stage() as on:
        publish(on, 0, *(b"low%d" % i for i in range(10)))
        publish(on, 9, b"urgent")
        publish(on, 4, b"middle")
        ann = hire(on, prefetch=1, retry_delay_seconds=5)
        (job,) = ann.jobs()
        assert job.value == b"urgent"
        ann.nack([job])
        assert [job.value for job in ann.jobs()] == [b"middle"]
        later(on, 5)
        ann.settle(OutcomeKind.ACK, held(ann))
        assert work_off(on, ann, 2) == [b"urgent", b"low0"]


def held(hand: Hand) -> list[Job]:
    """What its last lease is of."""
    return hand._jobs(hand.leases[-1])


def test_a_low_job_that_comes_again_does_not_pass_urgent_ones() -> None:
    with stage() as on:
        publish(on, 0, b"low", b"other")
        ann = hire(on, prefetch=1)
        (job,) = ann.jobs()
        publish(on, 9, b"urgent")
        ann.nack([job], delay_ms=0)
        assert work_off(on, ann) == [b"urgent", b"low", b"other"]


def test_a_dead_letter_says_the_jobs_priority() -> None:
    with stage() as on:
        publish(on, 0, b"low")
        publish(on, 9, b"urgent")
        ann = hire(on, max_deliveries=1)
        ann.nack(ann.jobs())
        found = {letter.value: letter.death.priority for letter in letters(on)}
        assert found == {b"urgent": 9, b"low": 0}


@pytest.mark.parametrize("clean", [True, False])
def test_priorities_and_failures_survive_a_restart(data: Path, clean: bool) -> None:
    with stage(data) as on:
        publish(on, 0, *(b"low%d" % i for i in range(5)))
        publish(on, 9, b"urgent1", b"urgent2", b"urgent3")
        publish(on, 5, b"middle")
        ann = hire(on, prefetch=1, retry_delay_seconds=5, max_deliveries=10)
        (job,) = ann.jobs()
        assert job.value == b"urgent1"
        ann.nack([job])
        (job,) = ann.jobs()
        assert job.value == b"urgent2"
        ann.ack([job])
        later(on, 0)
        if clean:
            on.core.close()
        time_us = on.runtime.time_us
    with stage(data, time_us=time_us) as on:
        assert on.core.catalog.get("t").partitions[0].ranked_from == 0
        ann = hire(on, prefetch=1)
        assert [job.value for job in ann.jobs()] == [b"urgent3"]
        later(on, 5)
        ann.settle(OutcomeKind.ACK, held(ann))
        assert work_off(on, ann, 2) == [b"urgent1", b"middle"]
        assert work_off(on, ann) == [b"low%d" % i for i in range(5)]
        assert described(on).lag == 0


def test_a_backlog_on_disk_is_searched_by_headers_and_not_decoded(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Urgent jobs at its very end are found after a restart, in segments that are sealed."""
    small = LogOptions()
    with stage(data, log_options=small, tail_bytes=4096) as on:
        for i in range(300):
            publish(on, 0, *(b"low %d %d" % (i, j) for j in range(100)))
        publish(on, 9, b"urgent")
        later(on, 0)
    monkeypatch.setattr(Batch, "columns", property(lambda _: pytest.fail("decoded")))
    with stage(data, log_options=small, tail_bytes=4096) as on:
        ann = hire(on, prefetch=1)
        # The first may have gone out before all headers were read.
        taken = [lease.first for lease in leases(on, ann, 3)]
        assert 30_000 in taken


def leases(on: Stage, hand: Hand, count: int) -> list[Any]:
    """So many leases, each acked, without a look at the jobs."""
    from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, read_lease  # noqa: PLC0415
    from fanlog.format.messages import JobOutcome, Settle  # noqa: PLC0415

    found: list[Any] = []
    for _ in range(count * 10):
        on.run()
        taken, hand.taken = hand.taken, b""
        for kind, data, at, end in hand._cutter.cut(taken):
            if kind != FrameKind.LEASE:
                continue
            lease = read_lease(memoryview(data)[at + FRAME_HEADER_BYTES : end])
            found.append(lease)
            done = JobOutcome(
                lease.number, lease.partition, OutcomeKind.ACK, lease.first, lease.next
            )
            settle = Settle((done,), on.core.epoch)
            on.core.queues.settle(hand.subscription, settle, lambda _: None)
        if len(found) >= count:
            break
    return found


# Limits


def test_a_queue_that_tracks_too_many_ranges_takes_the_oldest_first() -> None:
    with stage(options=BrokerOptions(queue_ranges_max=16)) as on:
        for i in range(100):
            publish(on, 0, b"low%d" % i)
            publish(on, 9, b"urgent%d" % i)
        ann = hire(on, prefetch=1)
        done = work_off(on, ann)
        assert sorted(str(value) for value in done) == sorted(
            str(b"%s%d" % (kind, i)) for i in range(100) for kind in (b"low", b"urgent")
        )
        queue = on.core.queues.find("q")
        assert queue is not None
        assert described(on).lag == 0


def test_only_so_many_urgent_runs_are_known_ahead_and_the_others_come_later() -> None:
    with stage(options=BrokerOptions(queue_priority_runs_max=4)) as on:
        for i in range(50):
            publish(on, 0, b"low%d" % i)
            publish(on, 9, b"urgent%d" % i)
        ann = hire(on, prefetch=1)
        done = work_off(on, ann)
        assert len(done) == 100
        assert Counter(value[:3] for value in done[:40] if value)[b"urg"] == 36


def test_an_ordered_queue_goes_by_its_order_and_not_by_priority() -> None:
    with stage() as on:
        publish(on, 0, b"1")
        publish(on, 9, b"2")
        ann = hire(on, prefetch=1, ordered=True)
        assert work_off(on, ann) == [b"1", b"2"]


def test_an_urgent_job_of_an_ordered_queue_comes_again_when_it_fails() -> None:
    with stage() as on:
        publish(on, 9, b"1")
        publish(on, 0, b"2")
        ann = hire(on, prefetch=1, ordered=True)
        ann.nack(ann.jobs(), delay_ms=0)
        assert work_off(on, ann) == [b"1", b"2"]


def test_an_urgent_job_comes_again_where_a_crash_took_the_note_of_priorities(data: Path) -> None:
    with stage(data) as on:
        publish(on, 9, b"urgent")
        publish(on, 0, b"low")
    with stage(data) as on:
        on.core.catalog.get("t").partitions[0].ranked_from = None
        ann = hire(on, prefetch=1)
        ann.nack(ann.jobs(), delay_ms=0)
        assert sorted(value or b"" for value in work_off(on, ann)) == [b"low", b"urgent"]


def test_deleted_urgent_jobs_are_lost_and_the_others_go_on(data: Path) -> None:
    with stage(data) as on:
        publish(on, 9, b"gone")
        publish(on, 0, b"low")
        publish(on, 9, b"urgent")
        on.core.catalog.get("t").partitions[0].log.delete_before(1)
        ann = hire(on, prefetch=1)
        assert work_off(on, ann) == [b"urgent", b"low"]


def test_a_report_counts_urgent_jobs_that_wait() -> None:
    with stage() as on:
        publish(on, 0, b"low", b"low")
        publish(on, 9, b"1", b"2", b"3")
        publish(on, 4, b"4")
        ann = hire(on, prefetch=1, retry_delay_seconds=5)
        (job,) = ann.jobs()
        assert described(on).partitions[0].urgent == {9: 2, 4: 1}
        ann.nack([job])
        assert described(on).partitions[0].urgent == {9: 2, 4: 1}


# Bytes


def test_a_priority_that_there_is_none_of_is_refused() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        for priority in (10, 15):
            data = encode_batch([b"x"], topic=number, priority=priority)
            with pytest.raises(FormatError, match=f"priority {priority}"):
                on.core.take(data, 0, Publisher())


def test_compaction_keeps_the_priority_and_the_codec() -> None:
    data = stamp(
        encode_batch([b"a", b"b"], keys=[b"k", b"l"], priority=7),
        base_offset=5,
        append_time_us=1,
        leader_epoch=1,
        topic=1,
    )
    batch = Batch(data)
    assert (batch.header.priority, batch.header.codec) == (7, 0)
    left = Batch(thinned(batch, [1]))
    assert (left.header.priority, left.header.codec, left.values) == (7, 0, [b"b"])
    assert Batch(thinned(batch, [])).header.priority == 7


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.lists(st.sampled_from(["ack", "nack", "lose", "later"]), max_size=40),
)
def test_every_job_is_done_once_whatever_happens_on_the_way(
    batches: list[tuple[int, int]], prefetch: int, steps: list[str]
) -> None:
    with stage() as on:
        expected: list[bytes] = []
        for i, (priority, count) in enumerate(batches):
            values = [b"%d.%d" % (i, j) for j in range(count)]
            expected += values
            publish(on, priority, *values)
        ann = hire(on, "ann", prefetch=prefetch, max_deliveries=10_000, visibility_seconds=999)
        acked: list[bytes | None] = []
        jobs = ann.jobs()
        for step in steps:
            if step == "ack":
                acked += [job.value for job in jobs]
                ann.ack(jobs)
            elif step == "nack":
                ann.nack(jobs, delay_ms=1000)
            elif step == "lose":
                on.core.queues.leave(ann.subscription)
                ann = hire(on, "ann", prefetch=prefetch)
            later(on, 2 if step == "later" else 0)
            if step != "later":
                jobs = []
            jobs += ann.jobs()
        acked += [job.value for job in jobs]
        ann.ack(jobs)
        for _ in range(3):
            acked += work_off(on, ann)
            later(on, 2)
        assert sorted(value or b"" for value in acked) == sorted(expected)
        assert described(on).lag == 0
