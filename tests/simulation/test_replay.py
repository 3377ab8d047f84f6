"""A seed replays exactly: the same events at the same moments, here and in another process."""

from __future__ import annotations

import re

import pytest

from tests.simulation.seeds import run_seeds

SEEDS = (3, 8)
CLUSTER = "--cluster"


def digest(seed: int, *options: str, first: int | None = None) -> str:
    """The hash of all that happened. With `first` other seeds ran before, in the same process."""
    begin = seed if first is None else first
    done = run_seeds(begin, seed - begin + 1, "--verbose", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall(rf"^seed {seed}: (\w+)", done.stdout, re.MULTILINE)
    return found


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (SEEDS[0], ()),
        (SEEDS[1], ()),
        # With dead letters, which have a time.
        (100, ("--workload", "Handling")),
        (4, (CLUSTER,)),
        (22, (CLUSTER,)),
    ],
)
def test_a_seed_replays_exactly_whatever_ran_before_it(seed: int, options: tuple[str, ...]) -> None:
    assert digest(seed, *options) == digest(seed, *options, first=seed - 2)


def test_another_seed_is_another_run() -> None:
    assert digest(SEEDS[0]) != digest(SEEDS[1])
