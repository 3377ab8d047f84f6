"""Logs that lost their end in a power cut: whoever comes back hears of it, and gets all that was
published since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, FencedError, OffsetOutOfRangeError
from fanlog.format.messages import Claim, GroupOffsets, JoinGroup, Position
from fanlog.model import Gap, GapReason
from tests.broker.cuts import cut_log
from tests.broker.deletions import delete_records
from tests.broker.stage import Peer, Stage, stage
from tests.broker.transactions.staging import Staging

NO_GRACE = BrokerOptions(group_grace_seconds=0)


def publish(on: Stage, count: int, topic: str = "t") -> None:
    """Batches of ten."""
    for _ in range(count // 10):
        on.publish(topic, [b"x"] * 10)
        on.run()


def reset(first: int, next: int) -> Gap:
    return Gap("t", 0, first, next, GapReason.RESET)


class Member(Peer):
    """A group's member that lets go of nothing."""

    def __init__(self, on: Stage, **wanted: Any) -> None:
        super().__init__()
        self.on = on
        request = JoinGroup(group="g", member="m", target="t", reset="earliest", **wanted)
        self.subscription, self.epoch = on.core.groups.join(1, request, self, self)
        self.feed: BrokerSubscription | None = self.subscription
        on.run()

    def busy(self) -> bool:
        return False

    def revoke(self, revoke: object) -> None:
        raise AssertionError(revoke)

    def ended(self, error: FanlogError) -> None:  # type: ignore[override]
        raise error

    def commit(self, offset: int, epoch: int = 0) -> None:
        position = Position("t", 0, offset, epoch or self.on.core.epoch)
        self.on.core.groups.commit_offsets(self.subscription, (position,))


@pytest.fixture
def committed(data: Path) -> Path:
    """A topic of 1000 records, all of which a group and a durable name have committed."""
    with stage(data) as on:
        publish(on, 1000)
        Member(on).commit(1000)
        on.core.commit_positions("name", [Position("t", 0, 1000, on.core.epoch)])
    return data


@pytest.mark.parametrize("kept", [0, 400])
@pytest.mark.parametrize("starts", [1, 2])
def test_a_group_gets_all_that_was_published_since_the_cut(
    committed: Path, kept: int, starts: int
) -> None:
    cut_log(committed, "t", kept)
    for _ in range(starts):
        with stage(committed) as on:
            publish(on, 1500)
    end = kept + 1500 * starts
    with stage(committed, options=NO_GRACE) as on:
        member = Member(on)
        assert member.offsets == list(range(kept, end))
        assert member.gaps == [reset(1000, kept)]
        member.commit(end)
    with stage(committed, options=NO_GRACE) as on:
        member = Member(on)
        assert (member.offsets, member.gaps) == ([], [])


@pytest.mark.parametrize("kept", [0, 400])
async def test_a_durable_name_gets_all_that_was_published_since_the_cut(
    committed: Path, kept: int
) -> None:
    cut_log(committed, "t", kept)
    with stage(committed) as on:
        publish(on, 1500)
        peer = await on.subscribe("t", durable="name")
        on.run()
        assert peer.offsets == list(range(kept, kept + 1500))
        assert peer.gaps == [reset(1000, kept)]


@pytest.mark.parametrize("kept", [0, 400, 1000])
@pytest.mark.parametrize("new", [0, 200, 1500])
async def test_a_subscriber_that_comes_back_goes_on_where_the_logs_part(
    data: Path, kept: int, new: int
) -> None:
    with stage(data) as on:
        publish(on, 1000)
        number = on.core.catalog.get("t").number
    cut_log(data, "t", kept)
    with stage(data) as on:
        publish(on, new)
        peer = await on.subscribe("t", resume=(Position("t", 0, 1000, 1, number),))
        on.run()
        assert peer.offsets == list(range(kept, kept + new))
        assert peer.gaps == ([] if kept == 1000 else [reset(1000, kept)])


async def test_a_position_before_the_cut_is_as_good_as_ever(data: Path) -> None:
    with stage(data) as on:
        publish(on, 1000)
        on.core.commit_positions("name", [Position("t", 0, 400, on.core.epoch)])
    cut_log(data, "t", 400)
    with stage(data) as on:
        publish(on, 100)
        peer = await on.subscribe("t", durable="name")
        on.run()
        assert (peer.offsets, peer.gaps) == (list(range(400, 500)), [])


async def test_after_two_cuts_a_reader_goes_on_at_the_first_part_that_it_does_not_know(
    data: Path,
) -> None:
    """Positions of three starts, in a log that is of all three."""
    with stage(data) as on:
        publish(on, 1000)
    cut_log(data, "t", 700)
    with stage(data) as on:
        publish(on, 500)
    cut_log(data, "t", 900)
    with stage(data) as on:
        publish(on, 500)
        assert on.core.catalog.get("t").partitions[0].log.epochs == ((1, 0), (2, 700), (3, 900))
        for known, start in (
            (Position("t", 0, 1000, 1), 700),
            (Position("t", 0, 700, 1), 700),
            (Position("t", 0, 1100, 2), 900),
            (Position("t", 0, 850, 2), 850),
            (Position("t", 0, 1400, 3), 1400),
            (Position("t", 0, 1500, 3), 1400),
            (Position("t", 0, 1000, 0), 1000),
            (Position("t", 0, 2000, 0), 0),
        ):
            peer = await on.subscribe("t", resume=(known,))
            on.run()
            assert peer.joins[0].starts[0].offset == start
            assert peer.gaps == ([] if known.offset == start else [reset(known.offset, start)])


async def test_what_was_deleted_is_not_gone_back_to(committed: Path) -> None:
    cut_log(committed, "t", 400)
    with stage(committed) as on:
        publish(on, 1500)
        delete_records(on.core, "t", {0: 600})
        peer = await on.subscribe("t", durable="name")
        on.run()
        assert peer.offsets == list(range(600, 1900))
        assert peer.gaps == [reset(1000, 600)]


async def test_the_lag_of_a_group_counts_all_that_it_will_get(committed: Path) -> None:
    cut_log(committed, "t", 0)
    with stage(committed) as on:
        publish(on, 1500)
        (partition,) = (await on.core.groups.describe("g")).partitions
        assert (partition.committed, partition.lag) == (1000, 1500)


def test_a_member_that_comes_back_over_a_cut_log_hears_of_it(committed: Path) -> None:
    cut_log(committed, "t", 400)
    with stage(committed) as on:
        publish(on, 1500)
        claim = Claim("t", 0, 1000, 1, on.core.catalog.get("t").number, committed=1000)
        member = Member(on, claims=(claim,), epoch=5)
        assert member.offsets == list(range(400, 1900))
        assert member.gaps == [reset(1000, 400)]


# Commits


def test_a_commit_of_what_a_cut_took_is_refused(committed: Path) -> None:
    cut_log(committed, "t", 400)
    with stage(committed, options=NO_GRACE) as on:
        publish(on, 1500)
        member = Member(on)
        with pytest.raises(FencedError, match="a crash took the end of the log"):
            member.commit(1000, epoch=1)
        with pytest.raises(FencedError, match="Nothing was committed"):
            on.core.commit_positions("name", [Position("t", 0, 1000, 1)])
        member.commit(400, epoch=1)
        member.commit(1000, epoch=2)


def test_a_commit_past_the_end_is_refused(data: Path) -> None:
    with stage(data) as on:
        publish(on, 10)
        for epoch in (0, on.core.epoch):
            with pytest.raises(OffsetOutOfRangeError, match="past the end of partition 0 of 't'"):
                on.core.commit_positions("name", [Position("t", 0, 11, epoch)])
        on.core.commit_positions("name", [Position("t", 0, 10)])
        on.run()
        (position,) = on.core.durable.positions("name")
        assert position.epoch == on.core.epoch


def test_a_transaction_does_not_commit_positions_that_a_cut_took(committed: Path) -> None:
    cut_log(committed, "t", 400)
    with stage(committed, options=NO_GRACE) as on:
        publish(on, 1500)
        member = Member(on)
        mine = Staging(on, "x")
        mine.stage("u", b"made of what is gone")
        offsets = GroupOffsets("g", "m", member.epoch, (Position("t", 0, 1000, 1),))
        with pytest.raises(FencedError, match="a crash took the end of the log"):
            _ = mine.commit(offsets=(offsets,)).only
        assert on.values("u") == []
