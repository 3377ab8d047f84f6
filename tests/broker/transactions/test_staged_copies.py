"""Large transactions in a cluster: a node that has only what was replicated finishes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fanlog.broker.transactions import staged_copies
from fanlog.broker.transactions.staged_copies import STAGED_TOPIC
from fanlog.cluster.reign import Reign
from fanlog.config import BrokerOptions
from tests.broker.stage import HandRuntime, Stage, stage
from tests.broker.transactions.staging import Staging, checkpoint, settle
from tests.broker.transactions.test_crashes import Steps

SPILLED = BrokerOptions(transaction_memory_bytes=0)


def _reign(epoch: int) -> Reign:
    return Reign(HandRuntime(), "c", epoch, "a.1", ("a.1",))


def _stage_some(on: Stage) -> Staging:
    mine = Staging(on, "tx")
    for i in range(6):
        mine.stage("t", b"%d" % i + bytes(300))
    return mine


def test_another_node_stores_what_was_committed_or_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_copies, "_CHUNK_BYTES", 500)
    reign = _reign(3)
    with stage(data, options=SPILLED, durability="os", replicas=reign, adopt=reign) as on:
        on.publish("t", [b"before"])
        settle(on)
        mine = _stage_some(on)
        outcomes = mine.commit()
        crashes = [(copy, bool(outcomes)) for copy in Steps(on, data)]
        assert outcomes.only.records == 6
        everything = on.values("t")
    assert len(everything) == 7
    found: set[bool] = set()
    for copy, answered in crashes:
        # What another node has: the logs, and no staged files.
        shutil.rmtree(copy / "transactions", ignore_errors=True)
        later = _reign(4)
        with stage(copy, options=SPILLED, replicas=later, adopt=later) as on:
            settle(on)
            committed = Staging(on, "tx").begun.committed
            assert on.values("t") == (everything if committed else [b"before"])
            assert committed or not answered
            found.add(committed)
    assert found == {True, False}


def test_copies_go_when_their_transactions_are_stored(data: Path) -> None:
    reign = _reign(3)
    with stage(data, options=SPILLED, durability="os", replicas=reign, adopt=reign) as on:
        on.core.create_topic("t", {})
        outcomes = _stage_some(on).commit()
        settle(on)
        assert outcomes.only.records == 6
        partition = on.core.catalog.get(STAGED_TOPIC).partitions[0]
        assert partition.log.bytes > 1800
        checkpoint(on)
        settle(on)
        assert partition.log.start_offset == partition.log.end_offset


def test_a_broker_of_its_own_keeps_no_copies(data: Path) -> None:
    with stage(data, options=SPILLED, durability="os") as on:
        on.core.create_topic("t", {})
        outcomes = _stage_some(on).commit()
        settle(on)
        assert outcomes.only.records == 6
        assert on.core.catalog.find(STAGED_TOPIC) is None
