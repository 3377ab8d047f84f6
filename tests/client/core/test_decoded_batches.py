"""Batches that several followers of a client get."""

from __future__ import annotations

from fanlog.client.core.decoded_batches import DecodedBatches
from fanlog.format.batch import Batch
from fanlog.format.sparse import thinned
from tests.client.core.stepped_client import stored_batch


def test_followers_share_one_batch_and_each_partition_has_its_own() -> None:
    decoded = DecodedBatches()
    first = decoded.get(stored_batch(0, b"tea"))
    assert decoded.get(stored_batch(0, b"tea")) is first
    assert decoded.get(stored_batch(0, b"tea", topic=2)) is not first
    assert decoded.get(stored_batch(1, b"tea")) is not first


def test_what_compaction_has_left_of_a_batch_is_another_batch() -> None:
    decoded = DecodedBatches()
    whole = stored_batch(0, b"tea", b"coffee")
    assert len(decoded.get(whole)) == 2
    assert [m.offset for m in decoded.get(Batch(thinned(whole, [1])))] == [1]


def test_only_the_last_megabytes_stay_and_one_batch_always_does() -> None:
    decoded = DecodedBatches()
    large = [stored_batch(i, b"x" * 3_000_000) for i in range(2)]
    kept = [decoded.get(batch) for batch in large]
    assert decoded.get(large[1]) is kept[1]
    assert decoded.get(large[0]) is not kept[0]
    huge = stored_batch(9, b"x" * 5_000_000)
    assert decoded.get(huge) is decoded.get(huge)
