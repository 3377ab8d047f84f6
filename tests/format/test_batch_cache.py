"""The cache of batches that broker and client keep alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanlog.format import batch_cache as module
from fanlog.format.batch_cache import BATCHES_MAX, BYTES_MAX, BatchCache


def test_the_last_used_batches_stay() -> None:
    cache: BatchCache[int] = BatchCache()
    for i in range(BATCHES_MAX):
        cache.put((1, 0, i), i, 10)
    assert cache.get((1, 0, 0)) == 0
    cache.put((1, 0, 1000), 1000, 10)
    assert cache.get((1, 0, 1)) is None
    assert cache.get((1, 0, 0)) == 0
    assert len(cache) == BATCHES_MAX


def test_one_batch_stays_whatever_its_size() -> None:
    cache: BatchCache[int] = BatchCache()
    cache.put((1, 0, 0), 0, 10)
    cache.put((1, 0, 1), 1, BYTES_MAX * 2)
    assert len(cache) == 1
    assert cache.get((1, 0, 1)) == 1
    cache.put((1, 0, 2), 2, 10)
    assert cache.get((1, 0, 1)) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=80))
def test_both_sides_always_have_the_same_batches(uses: list[tuple[int, int]]) -> None:
    """The broker sends a batch that it thinks the client lacks; the client must agree."""
    broker: BatchCache[bool] = BatchCache()
    client: BatchCache[int] = BatchCache()
    sizes: dict[int, int] = {}
    batches_max, bytes_max = module.BATCHES_MAX, module.BYTES_MAX
    module.BATCHES_MAX, module.BYTES_MAX = 4, 100
    try:
        for batch, chosen in uses:
            size = sizes.setdefault(batch, chosen)
            place = (1, 0, batch)
            if broker.get(place) is None:
                broker.put(place, True, size)
                assert client.get(place) is None
                client.put(place, batch, size)
            else:
                assert client.get(place) == batch
            assert len(broker) == len(client) <= 4
    finally:
        module.BATCHES_MAX, module.BYTES_MAX = batches_max, bytes_max
