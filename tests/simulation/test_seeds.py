"""The seeds that every run of the tests simulates. `make simulate SEEDS=100000` runs more."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import run_seeds

_SEEDS = 300
_SEEDS_A_TEST = 25


@pytest.mark.parametrize("first", range(0, _SEEDS, _SEEDS_A_TEST))
def test_every_promise_is_kept(first: int) -> None:
    done = run_seeds(first, _SEEDS_A_TEST)
    assert done.returncode == 0, done.stdout + done.stderr
