"""A deleted topic's positions do not count at once, and are dropped in slices."""

from __future__ import annotations

from pathlib import Path

from fanlog.format.messages import Position
from tests.broker.stage import Stage, stage
from tests.broker.test_large_patterns import make_slow

NAMES = 20


def commit(on: Stage, offset: int) -> None:
    for number in range(NAMES):
        places = tuple(Position("t", index, offset) for index in range(3))
        on.core.durable.commit_positions([(f"n{number}", places)])
    on.core.durable.commit_positions([("other", (Position("u", 0, 7),))])
    on.run()


def offsets(on: Stage) -> set[int]:
    found = (on.core.durable.position(f"n{n}", "t", i) for n in range(NAMES) for i in range(3))
    return {position.offset for position in found if position is not None}


def test_positions_of_a_deleted_topic_go_in_slices_and_never_apply_to_the_next(data: Path) -> None:
    for durability in ("os", "memory"):
        folder = data / durability
        with stage(folder, durability=durability, partitions=3) as on:
            on.core.create_topic("t", {})
            on.core.create_topic("u", {})
            commit(on, 5)
            make_slow(on)
            on.core.delete_topic("t")
            assert 1 < on.core.durable.count <= 3 * NAMES
            assert offsets(on) == set()
            on.core.create_topic("t", {})
            assert offsets(on) == set()
            assert on.core.durable.names_in("t") == set()
            on.core.durable.commit_positions([("n19", (Position("t", 2, 3),))])
            on.run()
            assert offsets(on) == {3}
            assert on.core.durable.names_in("t") == {"n19"}
            assert on.core.durable.count == 2
        if durability == "os":
            with stage(folder, partitions=3) as on:
                assert offsets(on) == {3}
                assert on.core.durable.count == 2


def test_names_in_a_topic_are_known_without_a_look_at_all(data: Path) -> None:
    with stage(data, partitions=3) as on:
        on.core.create_topic("t", {})
        on.core.create_topic("u", {})
        commit(on, 1)
        assert on.core.durable.names_in("t") == {f"n{number}" for number in range(NAMES)}
        assert on.core.durable.names_in("u") == {"other"}
        on.core.durable.forget("n0", "other")
        on.run()
        assert on.core.durable.names_in("t") == {f"n{number}" for number in range(1, NAMES)}
        assert on.core.durable.names_in("u") == set()
        assert on.core.durable.count == 3 * (NAMES - 1)
