"""The simulation notices mistakes that are planted in Fanlog."""

from __future__ import annotations

import re

import pytest

from tests.simulation import mistakes
from tests.simulation.mistakes import Mistake
from tests.simulation.run import run_seed
from tests.simulation.workload import Workload
from tests.simulation.workloads.handling import Handling
from tests.simulation.workloads.publishing import Publishing
from tests.simulation.workloads.queueing import Queueing
from tests.simulation.workloads.transacting import Transacting
from tests.simulation.workloads.transforming import Transforming

_SEEDS = 40


@pytest.mark.parametrize(
    ("mistake", "kind", "noticed"),
    [
        (mistakes.acknowledge_before_the_sync, Publishing, "was acknowledged|MessagesLost|hole"),
        (mistakes.forget_to_sync_the_journal, Publishing, "was acknowledged|MessagesLost|hole"),
        (mistakes.forget_to_sync_folders, Publishing, "was acknowledged|There is no topic"),
        (mistakes.forget_sequences_at_a_start, Publishing, "stored twice|UnknownProducerError"),
        (mistakes.forget_acks_at_a_restart, Queueing, "is handed out again"),
        (mistakes.forget_failures_at_a_restart, Queueing, "has failed at"),
        (mistakes.hand_out_jobs_of_a_key_together, Queueing, "of its key were handed out"),
        (mistakes.drop_positions_of_transactions, Transforming, "are there twice"),
        (
            mistakes.commit_messages_in_hand,
            Handling,
            "never handled|neither handled|and done up to",
        ),
        (mistakes.go_on_behind_a_failure, Handling, "is not done"),
        (mistakes.store_no_dead_letters, Handling, "never handled"),
        (mistakes.take_no_id_for_transactions, Transacting, "times, and not"),
        (mistakes.commit_what_is_aborted, Transacting, "was not committed, and is in"),
        (mistakes.stage_batches_backwards, Transacting, "is not in order"),
    ],
)
def test_a_planted_mistake_is_found(mistake: Mistake, kind: type[Workload], noticed: str) -> None:
    runs = (run_seed(seed, (kind,), plant=mistake)[0] for seed in range(_SEEDS))
    failure = next((result.failure for result in runs if result.failure), "")
    assert re.search(noticed, failure), failure or f"not found by {_SEEDS} seeds"
