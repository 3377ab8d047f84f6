"""Batches of messages as an application sees them, dense and sparse."""

from __future__ import annotations

import pytest

from fanlog.client.message import MessageBatch
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.sparse import placeholder, thinned, widened

DENSE = Batch(
    stamp(
        encode_batch([b"a", b"b", b"c", b"d"], keys=[b"1", b"2", b"3", b"4"]),
        base_offset=100,
        append_time_us=1,
        leader_epoch=1,
        topic=1,
    )
)
SPARSE = Batch(widened(Batch(thinned(DENSE, [1, 3])), 110))
EMPTY = Batch(placeholder(DENSE.header, 120))


@pytest.mark.parametrize(
    ("batch", "offset", "left"),
    [
        (DENSE, 0, [100, 101, 102, 103]),
        (DENSE, 102, [102, 103]),
        (SPARSE, 100, [101, 103]),
        (SPARSE, 101, [101, 103]),
        (SPARSE, 102, [103]),
        (SPARSE, 104, []),
        (EMPTY, 110, []),
    ],
)
def test_a_batch_begins_with_the_first_message_from_an_offset_on(
    batch: Batch, offset: int, left: list[int]
) -> None:
    found = MessageBatch(batch).from_offset(offset)
    assert [message.offset for message in found] == left
    assert len(found) == len(found.values) == len(left)
    assert found.base_offset == (left[0] if left else batch.next_offset)
    assert found.next_offset == batch.next_offset


def test_a_message_of_a_sparse_batch_has_its_own_key_and_value() -> None:
    found = [(m.offset, m.key, m.value) for m in MessageBatch(SPARSE).from_offset(101)]
    assert found == [(101, b"2", b"b"), (103, b"4", b"d")]
