"""Receipts of jobs without a broker: what they hold, and the frames that settle them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.job_receipts import (
    JobReceipt,
    UnreadableJobs,
    read_receipt,
    receipt_settles,
    received_jobs,
)
from fanlog.client.core.leases import LeaseInHand
from fanlog.client.message import MessageBatch
from fanlog.errors import InvalidArgumentError
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.frames import Lease
from fanlog.format.messages import JobOutcome, OutcomeKind, Settled
from fanlog.format.sparse import thinned, widened
from tests.client.core.stepped_client import stored_batch

ACK = OutcomeKind.ACK
EPOCH = 7
SMALL = st.integers(0, 1 << 40)


def receipts_of(batch: Batch, first: int, next: int) -> list[JobReceipt]:
    jobs = received_jobs("q", "w", lease_of(batch, first, next))
    assert not isinstance(jobs, UnreadableJobs)
    return [read_receipt(job.receipt) for job in jobs]


def lease_of(batch: Batch, first: int, next: int) -> LeaseInHand:
    lease = Lease(3, 1, 2, batch.header.base_offset, first, next, fresh=True)
    return LeaseInHand(lease, MessageBatch(batch), EPOCH)


def settled(*late: tuple[int, int]) -> bytes:
    outcomes = tuple(JobOutcome(3, 1, ACK, first, next) for first, next in late)
    return msgspec.msgpack.encode(Settled(outcomes))


@given(st.builds(JobReceipt, st.text(min_size=1), st.text(), SMALL, SMALL, SMALL, SMALL, SMALL))
def test_a_receipt_is_read_as_it_was_printed(receipt: JobReceipt) -> None:
    receipt = msgspec.structs.replace(receipt, next=receipt.first + receipt.next + 1)
    assert read_receipt(receipt.print()) == receipt
    assert receipt.print().isascii()


@given(st.text(max_size=80))
def test_any_other_text_is_refused_with_one_error(text: str) -> None:
    try:
        receipt = read_receipt(text)
    except InvalidArgumentError:
        return
    assert read_receipt(receipt.print()) == receipt


def test_each_job_of_a_lease_has_its_own_receipt() -> None:
    batch = stored_batch(10, b"a", b"b", b"c")
    assert receipts_of(batch, 11, 13) == [
        JobReceipt("q", "w", 3, 1, EPOCH, 11, 12),
        JobReceipt("q", "w", 3, 1, EPOCH, 12, 13),
    ]


def test_receipts_cover_the_neighbours_that_compaction_has_removed() -> None:
    batch = Batch(widened(Batch(thinned(stored_batch(10, b"0", b"1", b"2", b"3"), [1, 3])), 20))
    assert [(r.first, r.next) for r in receipts_of(batch, 10, 20)] == [(10, 13), (13, 20)]


def test_jobs_that_no_worker_can_read_have_one_receipt_and_a_reason() -> None:
    packed = Batch(encode_batch([b"x" * 5000] * 2, codec=Codec.ZLIB), limits=UnpackLimits(100))
    jobs = received_jobs("q", "w", lease_of(packed, 0, 2))
    assert isinstance(jobs, UnreadableJobs)
    assert read_receipt(jobs.receipt) == JobReceipt("q", "w", 3, 1, EPOCH, 0, 2)
    assert jobs.reason


def test_the_receipts_of_one_worker_and_epoch_go_in_one_frame() -> None:
    texts = [
        JobReceipt(queue, worker, 3, 1, epoch, first, first + 1).print()
        for queue, worker, epoch, first in (
            ("q", "a", 1, 0),
            ("q", "b", 1, 1),
            ("q", "a", 1, 2),
            ("q", "a", 2, 3),
            ("other", "a", 1, 4),
        )
    ]
    frames = [frame.wanted for frame in receipt_settles([*texts, texts[0]], ACK, reason="why")]
    assert [
        (f.queue, f.worker, f.epoch, [(o.first, o.reason) for o in f.outcomes]) for f in frames
    ] == [
        ("q", "a", 1, [(0, "why"), (2, "why")]),
        ("q", "b", 1, [(1, "why")]),
        ("q", "a", 2, [(3, "why")]),
        ("other", "a", 1, [(4, "why")]),
    ]


def test_a_frame_has_a_bounded_number_of_outcomes() -> None:
    texts = [JobReceipt("q", "w", 3, 1, EPOCH, i, i + 1).print() for i in range(5000)]
    frames = list(receipt_settles(texts, ACK))
    assert [len(frame.wanted.outcomes) for frame in frames] == [4096, 904]
    assert frames[1].late(settled((4096, 4097))) == [texts[4096]]


def test_the_broker_names_ranges_that_were_late_and_each_receipt_in_them_is_named() -> None:
    texts = [JobReceipt("q", "w", 3, 1, EPOCH, i, i + 2).print() for i in (0, 2, 4)]
    (frame,) = receipt_settles(texts, ACK)
    assert frame.late(settled()) == []
    assert frame.late(settled((1, 3))) == texts[:2]
    assert frame.late(settled((4, 6))) == texts[2:]


def test_nothing_is_settled_if_one_of_the_receipts_is_wrong() -> None:
    good = JobReceipt("q", "w", 3, 1, EPOCH, 0, 1).print()
    with pytest.raises(InvalidArgumentError, match="is not a receipt"):
        next(receipt_settles([good, "wrong"], ACK))
