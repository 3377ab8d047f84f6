"""The shelf of batches that broker and client keep alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanlog.format import shelf as shelf_module
from fanlog.format.shelf import SHELF_BATCHES_MAX, SHELF_BYTES_MAX, BatchShelf


def test_the_last_used_batches_stay() -> None:
    shelf: BatchShelf[int] = BatchShelf()
    for i in range(SHELF_BATCHES_MAX):
        shelf.put((1, 0, i), i, 10)
    assert shelf.get((1, 0, 0)) == 0
    shelf.put((1, 0, 1000), 1000, 10)
    assert shelf.get((1, 0, 1)) is None
    assert shelf.get((1, 0, 0)) == 0
    assert len(shelf) == SHELF_BATCHES_MAX


def test_one_batch_stays_whatever_its_size() -> None:
    shelf: BatchShelf[int] = BatchShelf()
    shelf.put((1, 0, 0), 0, 10)
    shelf.put((1, 0, 1), 1, SHELF_BYTES_MAX * 2)
    assert len(shelf) == 1
    assert shelf.get((1, 0, 1)) == 1
    shelf.put((1, 0, 2), 2, 10)
    assert shelf.get((1, 0, 1)) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=80))
def test_both_sides_always_have_the_same_batches(uses: list[tuple[int, int]]) -> None:
    """The broker sends a batch that it thinks the client lacks; the client must agree."""
    broker: BatchShelf[bool] = BatchShelf()
    client: BatchShelf[int] = BatchShelf()
    sizes: dict[int, int] = {}
    batches_max, bytes_max = shelf_module.SHELF_BATCHES_MAX, shelf_module.SHELF_BYTES_MAX
    shelf_module.SHELF_BATCHES_MAX, shelf_module.SHELF_BYTES_MAX = 4, 100
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
        shelf_module.SHELF_BATCHES_MAX, shelf_module.SHELF_BYTES_MAX = batches_max, bytes_max
