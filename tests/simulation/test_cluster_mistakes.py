"""The simulation of a cluster notices mistakes that are planted in it."""

from __future__ import annotations

import re

import pytest

from tests.simulation.cluster import mistakes
from tests.simulation.mistakes import Mistake
from tests.simulation.run import run_seed
from tests.simulation.workload import Workload
from tests.simulation.workloads.publishing import Publishing

_SEEDS = 60
# What the auditor may say first of a history that has parted.
_PARTED = "differ|were committed|than was committed|another batch|was acknowledged|taken back"


@pytest.mark.parametrize(
    ("mistake", "kind", "noticed"),
    [
        (mistakes.wait_for_nobody_who_joins, Publishing, "commits without"),
        (mistakes.forget_at_once_who_leaves, Publishing, "commits without"),
        (mistakes.answer_before_the_commit, Publishing, _PARTED),
        (mistakes.keep_the_place_after_a_power_cut, Publishing, f"was promoted|{_PARTED}"),
        (mistakes.promote_anybody, Publishing, "was not in sync"),
        (mistakes.acknowledge_before_the_sync, Publishing, _PARTED),
        (mistakes.serve_before_the_opening, Publishing, _PARTED),
        (mistakes.cut_nothing, Publishing, _PARTED),
    ],
)
def test_a_mistake_planted_in_a_cluster_is_found(
    mistake: Mistake, kind: type[Workload], noticed: str
) -> None:
    runs = (run_seed(seed, (kind,), plant=mistake, cluster=True)[0] for seed in range(_SEEDS))
    failure = next((result.failure for result in runs if result.failure), "")
    assert re.search(noticed, failure), failure or f"not found by {_SEEDS} seeds"
