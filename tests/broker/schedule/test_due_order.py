"""The order of what is due, against a sorted list."""

from __future__ import annotations

from bisect import insort

from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.broker.schedule.due_order import Due, DueOrder

MOMENTS = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), MOMENTS),
        st.tuples(st.just("remove"), st.integers(0, 5000)),
        st.tuples(st.just("back"), MOMENTS),
        st.tuples(st.just("take"), MOMENTS),
        st.tuples(st.just("after"), MOMENTS),
    ),
    max_size=300,
)


@settings(max_examples=200)
@given(STEPS)
def test_entries_are_taken_in_their_order(steps: list[tuple[str, int]]) -> None:
    order, model = DueOrder(), list[Due]()
    for offset, (step, number) in enumerate(steps):
        if step == "add":
            order.add(number, offset)
            insort(model, Due(number, offset))
        elif step == "remove":
            gone = model.pop(number % len(model)) if model else Due(number, 1_000_000)
            assert order.remove(gone) == (gone.offset != 1_000_000)
        elif step == "back":
            # An entry that was taken comes back, behind newer ones of its moment.
            order.add(number, -offset)
            insort(model, Due(number, -offset))
        elif step == "take":
            due = [entry for entry in model if entry.moment_us <= number][:7]
            assert order.take(number, 7) == due
            del model[: len(due)]
        else:
            assert list(order.after(Due(number, 3))) == [e for e in model if e > Due(number, 3)]
        assert len(order) == len(model)
        assert order.first == (model[0] if model else None)


def test_100_000_entries_of_one_moment_are_found_one_by_one() -> None:
    order = DueOrder()
    for offset in range(100_000):
        order.add(5, offset)
    for offset in range(0, 100_000, 2):
        assert order.remove(Due(5, offset))
        assert not order.remove(Due(5, offset))
    assert [due.offset for due in order.take(5, 200_000)] == list(range(1, 100_000, 2))


def test_entries_that_come_from_last_to_first_are_in_order() -> None:
    order = DueOrder()
    for moment in range(20_000, 0, -1):
        order.add(moment, moment)
    assert [due.moment_us for due in order.take(10_000, 20_000)] == list(range(1, 10_001))
    assert len(order) == 10_000
