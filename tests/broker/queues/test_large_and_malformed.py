"""Jobs in batches that are large, or that do not decode: the queue goes on, within its bounds."""

from __future__ import annotations

import random

from fanlog.config import BrokerOptions
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec
from fanlog.format.columns import KEYS
from fanlog.format.frames import Lease
from fanlog.format.messages import JobOutcome, OutcomeKind, Settled
from fanlog.format.messages import Settle as SettleFrame
from fanlog.model import KIB, MIB
from tests.broker.queues.workers import Hand, described, hire, letters
from tests.broker.stage import Publisher, Stage, stage
from tests.broker.test_unpacking import Unpacked, unpacked
from tests.format.crafted import column, crafted

__all__ = ["unpacked"]

OPTIONS = BrokerOptions(unpack_loop_bytes_max=16 * KIB)
CHANCE = random.Random(3)


def take(on: Stage, data: bytes) -> None:
    by = Publisher()
    on.core.take(data, 0, by)
    on.run()
    assert len(by.acks) == 1


def number(on: Stage) -> int:
    return on.core.open_topic("t", create=True).number


def put_large(on: Stage, keys: bytes) -> None:
    """A job for each letter, which is its key, in a batch that is large once it is unpacked."""
    values = [CHANCE.randbytes(300) + bytes(10 * KIB) for _ in keys]
    each = [b"%c" % key for key in keys]
    take(on, encode_batch(values, keys=each, codec=Codec.ZSTD, topic=number(on)))


def reject_all(on: Stage, hand: Hand, first: int, next: int) -> None:
    """Says of a whole lease that none of its jobs can be done."""
    answers: list[object] = []
    said = JobOutcome(number(on), 0, OutcomeKind.REJECT, first, next, -1, "no good")
    settle = SettleFrame((said,), on.core.epoch)
    on.core.queues.settle(hand.subscription, settle, answers.append)
    on.run()
    (answer,) = answers
    assert isinstance(answer, Settled)


def test_keys_of_large_batches_are_read_in_a_thread(unpacked: Unpacked) -> None:
    with stage(options=OPTIONS) as on:
        put_large(on, b"aabab")
        put_large(on, b"abc")
        ann = hire(on, ordered=True)
        taken: list[int] = []
        while got := ann.jobs():
            keys = [b"aabababc"[job.offset] for job in got]
            assert len(set(keys)) == len(keys)
            taken += [job.offset for job in got]
            ann.ack(got)
        assert sorted(taken) == list(range(8))
        assert [o for o in taken if b"aabababc"[o] == ord("a")] == [0, 1, 3, 5]
        # The worker in this test decodes as well; the broker did nothing of it on the loop.
        assert unpacked.in_background.count(True) == 2


def test_jobs_that_do_not_decode_have_no_order_and_hold_nothing_up() -> None:
    with stage(options=OPTIONS) as on:
        bad = column([0, 9, 2], b"xy") + column([0, 1, 2], b"aa")
        take(on, crafted(bad, count=2, flags=KEYS, topic=number(on)))
        put_large(on, b"a")
        ann = hire(on, ordered=True, prefetch=10)
        leased = [(lease.first, lease.next) for lease in cut(ann)]
        assert leased == [(0, 2), (2, 3)]


def cut(hand: Hand) -> list[Lease]:
    """The leases that a worker was sent, without a look into their batches."""
    hand._jobs = lambda lease: []  # type: ignore[method-assign,assignment]
    hand.jobs()
    return list(hand.leases)


def test_a_rejected_batch_that_does_not_decode_becomes_bare_letters() -> None:
    with stage(options=OPTIONS) as on:
        take(on, crafted(column([0, 9, 2], b"xy"), count=2, topic=number(on)))
        ann = hire(on)
        cut(ann)
        reject_all(on, ann, 0, 2)
        found = letters(on)
        assert [(letter.value, letter.death.offset) for letter in found] == [(b"", 0), (b"", 1)]
        assert all(letter.death.null for letter in found)
        assert "Offsets 0 to 1 of partition 0 of 't' can't be read" in found[0].death.reason
        assert (described(on).dead_lettered, described(on).lag) == (2, 0)


def test_many_dead_jobs_become_many_small_batches_of_letters(unpacked: Unpacked) -> None:
    with stage(options=OPTIONS, tail_bytes=256 * MIB) as on:
        values = [b"%d" % i for i in range(5000)]
        take(on, encode_batch(values, codec=Codec.ZSTD, topic=number(on)))
        ann = hire(on, prefetch=5000)
        assert len(ann.jobs()) == 5000
        unpacked.in_background.clear()
        reject_all(on, ann, 0, 5000)
        assert [letter.value for letter in letters(on)] == values
        partition = on.core.catalog.get("dead.t").partitions[0]
        sizes: list[int] = []
        offset = 0
        while offset < partition.visible_end:
            for batch in on.fetch("dead.t", offset):
                sizes.append(len(batch))
                offset = batch.next_offset
        assert sizes == [1000] * 5
        # Unpacked once for all of them, and not on the loop.
        assert unpacked.in_background == [True]


def test_a_job_that_is_too_large_for_a_letter_becomes_a_bare_one() -> None:
    """Or it would be tried again for ever."""
    with stage(options=OPTIONS, message_bytes_max=64 * KIB) as on:
        on.core.create_topic("small", {"message_bytes_max": 1 * KIB})
        on.publish("t", [bytes(32 * KIB)])
        on.publish("t", [b"fits"])
        on.run()
        ann = hire(on, dead_letter="small")
        ann.settle(OutcomeKind.REJECT, ann.jobs())
        found = {letter.death.offset: letter for letter in letters(on, "small")}
        assert found[0].value == b""
        assert "message_bytes_max" in found[0].death.reason
        assert found[1].value == b"fits"
        assert described(on).lag == 0
