"""The seeds of a cluster that every run of the tests simulates. `make simulate ARGS=--cluster` runs
more."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import new_seed, run_seeds

_SEEDS = 75
_SEEDS_A_TEST = 15
_NEW_SEEDS = 25


@pytest.mark.parametrize("first", range(0, _SEEDS, _SEEDS_A_TEST))
def test_every_promise_of_a_cluster_is_kept(first: int) -> None:
    done = run_seeds(first, _SEEDS_A_TEST, "--cluster")
    assert done.returncode == 0, done.stdout + done.stderr


def test_seeds_that_only_this_commit_has_keep_every_promise() -> None:
    done = run_seeds(new_seed(), _NEW_SEEDS, "--cluster")
    assert done.returncode == 0, done.stdout + done.stderr
