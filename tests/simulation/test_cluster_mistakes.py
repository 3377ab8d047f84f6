"""The simulation of a cluster notices mistakes that are planted in it."""

from __future__ import annotations

import re

import pytest

from tests.simulation.cluster import mistakes
from tests.simulation.mistakes import Mistake
from tests.simulation.run import run_seed
from tests.simulation.workload import Workload
from tests.simulation.workloads.compacting import Compacting
from tests.simulation.workloads.publishing import Publishing, PublishingUnsynced
from tests.simulation.workloads.transacting import Transacting

# Some mistakes need a rare order of events, and every change of the code shuffles the seeds.
_SEEDS = 200
# The seeds before these do not find a mistake, and take long.
_FIRST = {
    mistakes.copy_on_behind_lost_tombstones: 40,
    mistakes.compact_before_the_opening: 640,
}
# What the auditor may say first of a history that has parted.
_PARTED = (
    "differ|were committed|than was committed|another batch|was acknowledged|taken back"
    "|has changed since it was read|has forgotten this producer"
)


@pytest.mark.parametrize(
    ("mistake", "kind", "noticed"),
    [
        (mistakes.wait_for_nobody_who_joins, Publishing, "commits without"),
        (mistakes.let_join_who_was_only_sent_everything, Publishing, "joins the in-sync set"),
        (mistakes.forget_at_once_who_leaves, Publishing, "commits without"),
        (mistakes.answer_before_the_commit, Publishing, "and 0 is committed"),
        (mistakes.answer_of_ledgers_before_the_commit, Publishing, "and 0 is committed"),
        (mistakes.keep_the_place_after_a_power_cut, Publishing, f"was promoted|{_PARTED}"),
        (mistakes.promote_anybody, Publishing, "was not in sync"),
        (mistakes.acknowledge_before_the_sync, Publishing, _PARTED),
        (mistakes.serve_before_the_opening, Publishing, _PARTED),
        (mistakes.cut_nothing, Publishing, _PARTED),
        (mistakes.cut_too_much, Publishing, "is in sync and cuts"),
        (mistakes.cut_before_the_mark, Publishing, "its folder says that it is whole"),
        (mistakes.go_on_after_a_higher_epoch, Publishing, "does not acknowledge"),
        (mistakes.resume_the_reign, Publishing, "reign in epoch"),
        (mistakes.trust_any_etcd, Publishing, "etcd had been restored|reign in epoch"),
        (mistakes.leave_too_few, Publishing, "has become too small"),
        (mistakes.use_an_epoch_again, Publishing, "No acknowledgement|reign in epoch"),
        (mistakes.look_for_nothing_after_a_power_cut, PublishingUnsynced, "than was committed"),
        (mistakes.let_the_journal_bring_back_what_was_cut, Transacting, "is cut at .* again"),
        (mistakes.compact_before_the_opening, Compacting, "is in sync and cuts"),
        (mistakes.copy_on_behind_lost_tombstones, Compacting, "differ|returns"),
        (mistakes.drop_staged_bytes_before_the_commit, Transacting, "of the data folder are gone"),
        (mistakes.keep_staged_bytes_to_itself, Transacting, "Files of the data folder are gone"),
    ],
)
def test_a_mistake_planted_in_a_cluster_is_found(
    mistake: Mistake, kind: type[Workload], noticed: str
) -> None:
    failures: list[str] = []
    first = _FIRST.get(mistake, 0)
    for seed in range(first, first + _SEEDS):
        failure = run_seed(seed, (kind,), plant=mistake, cluster=True)[0].failure
        if re.search(noticed, failure):
            return
        if failure:
            failures.append(failure)
    pytest.fail("\n".join(failures[:1]) or f"not found by {_SEEDS} seeds")
