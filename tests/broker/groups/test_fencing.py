"""A partition that was taken from a member by force, and is given back to it: what the member had
read before must not move the group's position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.config import BrokerOptions
from fanlog.errors import FencedError
from fanlog.format.messages import GroupOffsets, Position, Release, Revoke
from tests.broker.groups.members import Member, later
from tests.broker.stage import Stage, stage
from tests.broker.transactions.staging import Staging, settle


@pytest.fixture
def on() -> Iterator[Stage]:
    with stage() as made:
        made.core.create_topic("t", {"partitions": 2})
        for partition in range(2):
            made.publish("t", [b"x"] * 20, partition=partition)
        made.run()
        yield made


def committed(on: Stage, partition: int) -> int:
    position = on.core.durable.position("group/g", "t", partition)
    assert position is not None
    return position.offset


def lost_and_given_back(on: Stage) -> tuple[Member, int]:
    """A slow member that has read up to 5, and a partition that another has moved to 10 since."""
    slow = Member(on, "slow", slow=True).join()
    other = Member(on, "other").join()
    later(on, 31)
    (partition,) = other.partitions
    assert slow.lost_places == [("t", partition)]
    other.commit(10, partition)
    other.leave()
    assert slow.partitions == [0, 1]
    assert slow.has["t", partition] == 10
    return slow, partition


def test_a_commit_of_before_a_loss_is_refused_until_the_member_knows_of_the_loss(
    on: Stage,
) -> None:
    slow, partition = lost_and_given_back(on)
    with pytest.raises(FencedError):
        slow.commit(5, partition)
    assert committed(on, partition) == 10
    slow.commit(4, 1 - partition)
    slow.acknowledge(Revoke("t", (partition,), lost=True))
    on.run()
    slow.commit(12, partition)
    assert committed(on, partition) == 12


def test_so_is_one_in_a_transaction(on: Stage) -> None:
    slow, partition = lost_and_given_back(on)
    offsets = GroupOffsets("g", "slow", slow.epoch, (Position("t", partition, 5),))
    with pytest.raises(FencedError):
        on.core.groups.check_owner(offsets)
    slow.acknowledge(Revoke("t", (partition,), lost=True))
    on.run()
    on.core.groups.check_owner(offsets)


def test_a_release_that_was_on_its_way_does_not_give_up_what_came_back(on: Stage) -> None:
    slow, partition = lost_and_given_back(on)
    slow.release(partition)
    assert on.core.groups.find("g").owned["t", partition].member.id == "slow"  # type: ignore[union-attr]
    slow.acknowledge(Revoke("t", (partition,), lost=True))
    on.run()
    on.publish("t", [b"new"], partition=partition)
    on.run()
    assert slow.batches[-1].values == [b"new"]
    slow.release(partition)
    later(on, 1)
    assert slow.has["t", partition] == 10


def test_each_loss_wants_an_answer_of_its_own(on: Stage) -> None:
    slow, partition = lost_and_given_back(on)
    other = Member(on, "other").join()
    later(on, 31)
    again = other.partitions
    other.leave()
    for place in slow.lost_places:
        with pytest.raises(FencedError):
            slow.commit(11, place[1])
        slow.acknowledge(Revoke("t", (place[1],), lost=True))
        on.run()
    assert again
    for part in {partition, *again}:
        slow.commit(12, part)


def test_a_new_connection_begins_without_old_losses(on: Stage) -> None:
    slow, partition = lost_and_given_back(on)
    slow.lose()
    slow.come_back()
    slow.commit(11, partition)
    assert committed(on, partition) == 11


def test_an_answer_about_a_loss_that_never_was_changes_nothing(on: Stage) -> None:
    a = Member(on, "a").join()
    on.core.groups.release(a.subscription, Release("t", (0, 1, 7), lost=True))
    on.run()
    a.commit(3)
    assert a.partitions == [0, 1]


def test_a_transaction_is_refused_if_a_partition_was_lost_while_its_file_was_synced(
    data: Path,
) -> None:
    options = BrokerOptions(transaction_memory_bytes=0)
    with stage(data, options=options) as on:
        on.core.create_topic("t", {"partitions": 2, "durability": "os"})
        slow = Member(on, "slow", slow=True).join()
        staging = Staging(on)
        staging.stage("out", b"x")
        offsets = GroupOffsets("g", "slow", slow.epoch, tuple(Position("t", i, 0) for i in (0, 1)))
        outcomes = staging.commit(offsets=(offsets,))
        (sync,) = on.runtime.due
        on.runtime.due.clear()
        other = Member(on, "other").join()
        later(on, 31)
        other.leave()
        for topic, partition in slow.lost_places:
            slow.acknowledge(Revoke(topic, (partition,), lost=True))
        on.run()
        assert slow.partitions == [0, 1]
        on.runtime.due.append(sync)
        settle(on)
        with pytest.raises(FencedError, match="given back"):
            _ = outcomes.only
        assert on.values("out") == []
