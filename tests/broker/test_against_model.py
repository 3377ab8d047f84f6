"""The broker does what plain lists and dicts say, whatever comes in between: see `model/`.

A run is short. For longer ones say how many examples each machine should try:

    FANLOG_MODEL_EXAMPLES=1000 pytest tests/broker/test_against_model.py --timeout 0

Below the machines are the bugs that they have found, each as small as it gets.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from fanlog.config import BrokerOptions
from fanlog.format.messages import PartitionOffset
from fanlog.model import TopicSettings
from tests.broker.deletions import delete_records
from tests.broker.model.group_machine import GroupRules
from tests.broker.model.log_machine import LogRules
from tests.broker.model.queue_machine import QueueRules
from tests.broker.model.transaction_machine import GroupTransactionRules
from tests.broker.model.whole_machine import WholeRules
from tests.broker.model.world import World
from tests.broker.queues.workers import hire, later, letters
from tests.broker.stage import Publisher, stage

EXAMPLES = int(os.environ.get("FANLOG_MODEL_EXAMPLES", "25"))
# Without `explain`, which traces every line and takes far longer than the search.
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)

TestLogAndProducers = LogRules.TestCase
TestGroups = GroupRules.TestCase
TestQueues = QueueRules.TestCase
TestTransactions = GroupTransactionRules.TestCase
TestAllTogether = WholeRules.TestCase
for case in (TestLogAndProducers, TestGroups, TestQueues, TestTransactions, TestAllTogether):
    case.settings = SETTINGS
del case


def test_what_a_crash_leaves_of_a_synced_topic_is_durable_before_it_is_seen() -> None:
    """The process dies before the sync, another one finds the records and shows them; from then
    on a power failure must not take them back."""
    world = World(BrokerOptions(), TopicSettings(durability="fsync"), 20_000)
    try:
        world.on.publish("t", [b"a", b"b"], Publisher(1))
        world.on.run()
        world.crash()
        assert world.on.values("t") == [b"a", b"b"]
        repeat = world.on.publish("t", [b"a", b"b"], Publisher(1))
        world.on.run()
        world.sync()
        world.on.run()
        assert [ack.duplicate for ack in repeat.acks] == [1]
        world.power_loss(sidecars=True)
        assert world.on.values("t") == [b"a", b"b"]
    finally:
        world.close()


@pytest.mark.parametrize("more", [[], [b"c"]])
def test_deleted_records_are_not_damaged_after_a_power_failure(more: list[bytes]) -> None:
    """They had been synced, so that the start after it knows that they were promised."""
    world = World(BrokerOptions(), TopicSettings(durability="fsync"), 20_000)
    try:
        world.on.publish("t", [b"a", b"b"], Publisher(1))
        world.on.run()
        world.sync()
        world.on.run()
        world.restart()
        assert delete_records(world.on.core, "t", {0: 2}) == [PartitionOffset(0, 2)]
        world.on.run()
        if more:
            world.on.publish("t", more, Publisher(2))
            world.on.run()
            world.sync()
            world.on.run()
        for _ in range(2):
            world.power_loss(sidecars=True)
            log = world.on.core.catalog.get("t").partitions[0].log
            assert (log.start_offset, log.end_offset, log.damaged) == (2, 2 + len(more), [])
    finally:
        world.close()


def test_jobs_behind_deleted_ones_get_their_dead_letters(data: Path) -> None:
    """They were handed out, and are dead, together with some that are deleted meanwhile."""
    with stage(data) as on:
        on.publish("t", [b"0", b"1", b"2", b"3"])
        on.run()
        ann = hire(on, max_deliveries=1, visibility_seconds=10)
        assert len(ann.jobs()) == 4
        delete_records(on.core, "t", {0: 2})
        later(on, 10)
        assert [(letter.death.offset, letter.value) for letter in letters(on)] == [
            (2, b"2"),
            (3, b"3"),
        ]
