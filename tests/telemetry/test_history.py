"""The rings of the history against a simple model: a list of all samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.telemetry.history import HistoryRings, Tier
from fanlog.telemetry.history_reading import Captured, Grid, make_grid

TIERS = (Tier(5, 12), Tier(20, 9), Tier(100, 7))
NOON = 1_790_000_000
MEAN, HIGHEST = "published_messages", "turn_p99"

Sample = tuple[int, Mapping[str, float]]
# Whole numbers that a float32 holds exactly.
values = st.integers(0, 1 << 20).map(float)
samples = st.lists(
    st.tuples(
        # Mostly the next slot, sometimes after a break.
        st.sampled_from([5, 5, 5, 5, 5, 5, 10, 25, 60, 300]),
        st.dictionaries(st.sampled_from([MEAN, HIGHEST, "topic.a.b.messages"]), values),
    ),
    max_size=120,
)


def at_times(found: Sequence[tuple[int, Mapping[str, float]]]) -> list[Sample]:
    now, timed = NOON, list[Sample]()
    for after, given_values in found:
        now += after
        timed.append((now, given_values))
    return timed


def read(history: HistoryRings, name: str, grid: Grid, now: float) -> list[float | None]:
    return Captured(history, [name]).read(grid, now)[name]


def expected(history: list[Sample], name: str, begin: int, end: int) -> float | None:
    """What the model says of one cell."""
    found = [given[name] for when, given in history if begin <= when < end and name in given]
    if not found:
        return None
    return max(found) if name == HIGHEST else sum(found) / len(found)


def close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-5)


@settings(max_examples=200, deadline=None)
@given(samples)
def test_the_newest_samples_are_there_as_they_were(found: list[tuple[int, dict]]) -> None:
    timed = at_times(found)
    history = HistoryRings(10, TIERS)
    for when, given_values in timed:
        history.add(when, given_values)
    if not timed:
        return
    now = timed[-1][0]
    grid = Grid(now - 55, 5, 12)
    for name in (MEAN, HIGHEST, "topic.a.b.messages"):
        shown = read(history, name, grid, now)
        wanted = [expected(timed, name, begin, begin + 5) for begin in grid.times()]
        assert all(map(close, shown, wanted))


@settings(max_examples=200, deadline=None)
@given(samples)
def test_coarser_cells_are_averages_or_the_highest(found: list[tuple[int, dict]]) -> None:
    """Of as many slots as fit; also while the newest cells are not over yet."""
    timed = at_times(found)
    history = HistoryRings(10, TIERS)
    for when, given_values in timed:
        history.add(when, given_values)
    if not timed:
        return
    now = timed[-1][0]
    # The second tier: begins before the first one does.
    grid = make_grid(TIERS, now - 150, now + 1, now, 1000)
    assert grid.step == 20
    for name in (MEAN, HIGHEST):
        shown = read(history, name, grid, now)
        wanted = [expected(timed, name, begin, begin + 20) for begin in grid.times()]
        assert all(map(close, shown, wanted)), (shown, wanted)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            # Clocks that jump to and fro.
            st.one_of(st.integers(1, 30), st.integers(-5000, 5000)),
            st.sets(st.integers(0, 12), max_size=6),
        ),
        max_size=80,
    )
)
def test_a_series_never_shows_the_values_of_another(found: list[tuple[int, set[int]]]) -> None:
    """However often columns change hands, and wherever the clock goes."""
    history = HistoryRings(5, TIERS)
    now = NOON
    for after, names in found:
        now += after
        history.add(now, {f"topic.{name}.messages": 100.0 + name for name in sorted(names)})
        assert len(history.columns) <= 5
        assert all(len(ring.rows) <= ring.tier.rows_max for ring in history.rings)
        for tier in TIERS:
            grid = Grid(now - now % 100 - tier.span_seconds, tier.step_seconds, tier.rows_max + 20)
            for name in range(13):
                shown = set(read(history, f"topic.{name}.messages", grid, now))
                assert shown <= {None, 100.0 + name}


def test_the_series_without_values_for_longest_goes_first() -> None:
    history = HistoryRings(3, TIERS)
    history.add(NOON, {"topic.a.messages": 1, "topic.b.messages": 2, "topic.c.messages": 3})
    history.add(NOON + 5, {"topic.a.messages": 1, "topic.c.messages": 3})
    history.add(NOON + 10, {"topic.a.messages": 1, "topic.d.messages": 4})
    assert set(history.columns) == {"topic.a.messages", "topic.c.messages", "topic.d.messages"}
    grid = Grid(NOON, 5, 3)
    assert read(history, "topic.d.messages", grid, NOON + 10) == [None, None, 4]
    assert read(history, "topic.b.messages", grid, NOON + 10) == [None, None, None]


def test_more_series_than_fit_leave_the_first_alone() -> None:
    history = HistoryRings(2, TIERS)
    many = {f"topic.{i}.messages": float(i) for i in range(10)}
    for after in range(0, 50, 5):
        history.add(NOON + after, many)
    assert list(history.columns) == ["topic.0.messages", "topic.1.messages"]


def test_a_clock_that_was_wrong_for_a_while_loses_nothing() -> None:
    history = HistoryRings(10, TIERS)
    for after in range(0, 30, 5):
        history.add(NOON + after, {MEAN: 1})
    for after in (0, 5):
        history.add(after, {MEAN: 2})  # 1970, before the clock was set
    for after in (30, 35):
        history.add(NOON + after, {MEAN: 3})
    assert read(history, MEAN, Grid(NOON, 5, 8), NOON + 35) == [1] * 6 + [3, 3]


def test_of_two_values_for_one_time_the_later_counts() -> None:
    history = HistoryRings(10, TIERS)
    for value, after in ((1, 0), (1, 5), (1, 10), (2, 0), (2, 5)):
        history.add(NOON + after, {MEAN: value})
    assert read(history, MEAN, Grid(NOON, 5, 3), NOON + 10) == [2, 2, 1]


def test_what_a_wrong_clock_put_into_the_future_is_not_shown() -> None:
    history = HistoryRings(10, TIERS)
    history.add(NOON + 1000, {MEAN: 9})
    history.add(NOON, {MEAN: 1})
    assert read(history, MEAN, Grid(NOON, 5, 300), NOON)[1:] == [None] * 299


def test_values_that_are_no_numbers_are_gaps() -> None:
    history = HistoryRings(10, TIERS)
    history.add(NOON, {MEAN: math.nan, HIGHEST: math.inf})
    assert read(history, MEAN, Grid(NOON, 5, 1), NOON) == [None]
    assert read(history, HIGHEST, Grid(NOON, 5, 1), NOON) == [None]


def test_a_grid_has_as_many_cells_as_wanted_and_begins_at_multiples_of_its_step() -> None:
    grid = make_grid(TIERS, NOON - 57.5, NOON, NOON, 4)
    assert grid.cells <= 5
    assert grid.start % grid.step == 0
    assert grid.start <= NOON - 57.5
    assert grid.end >= NOON
    assert make_grid(TIERS, NOON - 650, NOON, NOON, 1000).step == 100
    assert make_grid(TIERS, NOON, NOON, NOON, 1000).cells == 1


def test_the_finest_rows_are_shown_although_the_first_cell_begins_before_them() -> None:
    history = HistoryRings(10, TIERS)
    now = NOON + 997
    for i in range(30):
        history.add(now - 5 * (29 - i), {MEAN: i})
    for points in (3, 6, 12):
        grid = make_grid(TIERS, now - 60, now, now, points)
        shown = read(history, MEAN, grid, now)
        assert shown[-1] is not None
        assert shown[-2] == shown[-1] - grid.step / 5 or shown[-1] == 29
        assert len({value for value in shown if value is not None}) >= grid.cells - 1
