"""Leases in hand: which jobs they are of, and which of them are kept from running out."""

from __future__ import annotations

import gc
import logging

import pytest

from fanlog.client.core.leases import HeldLeases, LeaseInHand
from fanlog.client.message import MessageBatch
from fanlog.format.batch import Batch
from fanlog.format.frames import Lease
from fanlog.format.sparse import thinned, widened
from tests.client.core.stepped_client import stored_batch

DENSE = stored_batch(10, b"0", b"1", b"2", b"3")
SPARSE = Batch(widened(Batch(thinned(DENSE, [1, 3])), 20))


def lease_of(batch: Batch, first: int, next: int) -> LeaseInHand:
    lease = Lease(1, 0, 1, batch.header.base_offset, first, next, fresh=True)
    return LeaseInHand(lease, MessageBatch(batch), 7)


def test_a_lease_is_a_part_of_a_batch() -> None:
    lease = lease_of(DENSE, 11, 13)
    assert [message.offset for message in lease.messages] == [11, 12]
    assert (lease.stretch, lease.left) == ((1, 0, 7), 2)
    assert not lease.is_empty()
    assert lease_of(SPARSE, 12, 13).is_empty()


@pytest.mark.parametrize(
    ("batch", "first", "next", "offset", "extent"),
    [
        (DENSE, 10, 14, 12, (12, 13)),
        (SPARSE, 10, 20, 11, (10, 13)),
        (SPARSE, 10, 20, 13, (13, 20)),
        (SPARSE, 12, 20, 13, (12, 20)),
        (SPARSE, 10, 12, 11, (10, 12)),
    ],
)
def test_an_outcome_is_also_of_neighbours_that_compaction_has_removed(
    batch: Batch, first: int, next: int, offset: int, extent: tuple[int, int]
) -> None:
    assert lease_of(batch, first, next).extent(offset) == extent


def test_a_part_of_a_lease_is_a_lease_of_its_own() -> None:
    part = lease_of(DENSE, 10, 14).part(12, 14)
    assert (part.first, part.next, part.left) == (12, 14, 2)


def test_a_lease_is_held_until_all_jobs_have_their_outcome_or_are_dropped() -> None:
    held = HeldLeases("q", 1)
    lease = lease_of(DENSE, 10, 12)
    held.add(lease)
    held.count(lease, 1)
    assert list(held.ranges()) == [((1, 0, 7), 10, 12)]
    held.count(lease, 1)
    assert list(held.ranges()) == []
    # The broker does not have it after all.
    held.count(lease, -1)
    assert len(list(held.ranges())) == 1
    del lease
    gc.collect()
    assert list(held.ranges()) == []


def test_a_worker_that_waits_in_vain_with_forgotten_jobs_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = HeldLeases("mailers", 2)
    lease = lease_of(DENSE, 10, 12)
    held.add(lease)
    with caplog.at_level(logging.WARNING, "fanlog.client"):
        for waited in (True, False, True):
            held.warn_if_stuck(waited=waited)
        assert not caplog.records
        for _ in range(3):
            held.warn_if_stuck(waited=True)
    assert [record.getMessage()[:29] for record in caplog.records] == [
        "a worker of queue mailers wai"
    ]
    assert lease.left == 2
