"""The tail: newest pieces in memory, handed out as they are."""

from __future__ import annotations

import sys
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.format.batch import Batch
from fanlog.format.header import read_header
from fanlog.format.sparse import thinned, widened
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner
from fanlog.log.tail import PIECES_PER_READ_MAX, Tail
from fanlog.model import TopicSettings
from tests.log.pieces import Sample, make_batch

PLENTY = 1 << 30


def filled(*counts: int, start: int = 0) -> tuple[Tail, list[Sample]]:
    """A tail with a piece of one batch for each of `counts` records."""
    tail = Tail(start)
    samples: list[Sample] = []
    for i, count in enumerate(counts):
        sample = make_batch(tail.end_offset, count=count, time_us=100 * i)
        tail.append(sample.data, sample.next, sample.time_us)
        samples.append(sample)
    return tail, samples


def test_an_empty_tail_begins_and_ends_at_its_offset() -> None:
    tail = Tail(42)
    assert (tail.start_offset, tail.end_offset, tail.bytes) == (42, 42, 0)
    assert tail.drop_first() == 0
    assert tail.trim(0) == 0
    assert tail.drop_older(PLENTY) == 0
    assert tail.drop_before(PLENTY) == 0
    assert tail.offset_at(0) is None


def test_a_whole_piece_is_handed_out_without_a_copy() -> None:
    tail, samples = filled(1, 3, 2)
    views, after = tail.read(1, 6, PLENTY)
    assert after == 6
    assert [view.obj for view in views] == [samples[1].data, samples[2].data]
    assert all(view.obj is sample.data for view, sample in zip(views, samples[1:], strict=True))


def test_a_read_from_inside_a_piece_begins_with_the_batch_that_holds_the_offset() -> None:
    tail = Tail()
    parts = [make_batch(0, count=2), make_batch(2, count=3), make_batch(5, count=1)]
    piece = b"".join(part.data for part in parts)
    tail.append(piece, 6, 0)
    for offset, first in ((0, 0), (1, 0), (2, 1), (4, 1), (5, 2)):
        views, after = tail.read(offset, 6, PLENTY)
        assert bytes(views[0]) == b"".join(part.data for part in parts[first:])
        assert views[0].obj is piece
        assert after == 6


def test_a_read_ends_at_the_end_it_is_given() -> None:
    tail, _ = filled(1, 1, 1, 1)
    assert tail.read(0, 2, PLENTY)[1] == 2


def test_a_read_gives_one_piece_however_large_and_no_more_than_bytes_max_after_it() -> None:
    tail, samples = filled(1, 1, 1)
    size = len(samples[0].data)
    assert tail.read(0, 3, 1) == ([memoryview(samples[0].data)], 1)
    assert tail.read(0, 3, 2 * size)[1] == 2
    assert tail.read(0, 3, 3 * size - 1)[1] == 2


def test_a_read_gives_at_most_64_pieces() -> None:
    tail, _ = filled(*[1] * 100)
    views, after = tail.read(3, 100, PLENTY)
    assert len(views) == PIECES_PER_READ_MAX
    assert after == 3 + PIECES_PER_READ_MAX


@pytest.mark.parametrize(("offset", "end"), [(9, 12), (12, 12), (15, 20), (11, 11)])
def test_a_read_outside_the_tail_is_the_callers_mistake(offset: int, end: int) -> None:
    tail, _ = filled(1, 1, 1, 1, 1, start=10)
    with pytest.raises(ValueError, match="holds 10 to 15"):
        tail.read(offset, end, PLENTY)


def test_trim_keeps_the_newest_piece() -> None:
    tail, samples = filled(1, 1, 1)
    assert tail.trim(0) == len(samples[0].data) * 2
    assert (tail.start_offset, tail.end_offset) == (2, 3)
    assert tail.bytes == len(samples[2].data)


def test_drop_older_takes_pieces_whose_last_append_was_before_the_time() -> None:
    tail, _ = filled(1, 1, 1)
    tail.drop_older(100)
    assert tail.start_offset == 1
    tail.drop_older(PLENTY)
    assert (tail.start_offset, tail.bytes) == (3, 0)


def test_drop_before_takes_only_pieces_that_end_by_then() -> None:
    tail, _ = filled(2, 2, 2)
    tail.drop_before(3)
    assert tail.start_offset == 2
    tail.drop_before(6)
    assert tail.start_offset == 6


def test_an_emptied_tail_goes_on() -> None:
    tail, _ = filled(1, 2)
    tail.drop_before(3)
    sample = make_batch(3)
    tail.append(sample.data, 4, 0)
    assert tail.read(3, 4, PLENTY) == ([memoryview(sample.data)], 4)


def test_a_time_is_found_inside_a_piece() -> None:
    tail = Tail()
    parts = [make_batch(i, time_us=time_us) for i, time_us in enumerate((5, 5, 9, 12))]
    tail.append(b"".join(part.data for part in parts), 4, 12)
    later = make_batch(4, time_us=20)
    tail.append(later.data, 5, 20)
    found = [tail.offset_at(time_us) for time_us in (0, 5, 6, 9, 10, 12, 13, 20, 21)]
    assert found == [0, 0, 2, 2, 3, 3, 4, 4, None]


def test_a_time_can_be_looked_for_while_pieces_come_and_go() -> None:
    tail = Tail()
    faults: list[BaseException] = []
    stop = threading.Event()

    def look() -> None:
        try:
            while not stop.is_set():
                time_us = tail.end_offset - 50
                found = tail.offset_at(time_us)
                assert found is None or found >= time_us
        except BaseException as fault:  # noqa: BLE001 - the test's thread reports it
            faults.append(fault)

    thread = threading.Thread(target=look)
    thread.start()
    for i in range(20_000):
        sample = make_batch(i, time_us=i, size=8)
        tail.append(sample.data, i + 1, i)
        if i % 3 == 0:
            tail.trim(100 * len(sample.data))
        if i % 1000 == 0:
            tail.drop_before(i)
    stop.set()
    thread.join()
    assert not faults


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 4)),
            st.tuples(st.sampled_from(["drop", "trim", "older", "before"]), st.integers(0, 400)),
        ),
        max_size=300,
    )
)
def test_a_tail_holds_what_a_plain_list_of_pieces_would(steps: list[tuple[str, int]]) -> None:
    tail = Tail()
    model: list[Sample] = []
    for now, (step, n) in enumerate(steps):
        if step == "append":
            sample = make_batch(tail.end_offset, count=n, time_us=now, size=8)
            tail.append(sample.data, sample.next, now)
            model.append(sample)
        elif step == "drop":
            tail.drop_first()
            del model[:1]
        elif step == "trim":
            tail.trim(n)
            while len(model) > 1 and sum(len(s.data) for s in model) > n:
                del model[0]
        elif step == "older":
            tail.drop_older(n)
            model = [s for s in model if s.time_us >= n]
        else:
            tail.drop_before(n)
            model = [s for s in model if s.next > n]
        assert tail.bytes == sum(len(s.data) for s in model)
        assert tail.start_offset == (model[0].base if model else tail.end_offset)
    for sample in model:
        for offset in range(sample.base, sample.next):
            views, _ = tail.read(offset, tail.end_offset, 0)
            assert read_header(views[0]).base_offset == sample.base
        expected = next(s.base for s in model if s.time_us >= sample.time_us)
        assert tail.offset_at(sample.time_us) == expected


def test_an_empty_memory_log_costs_less_than_a_kilobyte() -> None:
    settings = TopicSettings(durability="memory")
    count = 1000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        logs = [PartitionLog(settings, Owner(1, 0)) for _ in range(count)]
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert len(logs) == count
    assert each < 1024, f"{each} bytes on {sys.version}"


def test_sparse_batches_are_stepped_over_by_what_they_cover() -> None:
    dense = make_batch(0, count=4, time_us=10)
    wide = widened(Batch(thinned(Batch(dense.data), [1, 3])), 9)
    last = make_batch(9, count=2, time_us=20)
    tail = Tail()
    tail.append(wide + last.data, 11, 20)
    for offset in range(9):
        assert tail.read(offset, 11, 1 << 20) == ([memoryview(wide + last.data)], 11)
    for offset in (9, 10):
        assert tail.read(offset, 11, 1 << 20) == ([memoryview(last.data)], 11)
    assert tail.offset_at(11) == 9
