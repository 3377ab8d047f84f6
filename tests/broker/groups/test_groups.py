"""Consumer groups by hand: who gets what and when, who is fenced, and what a restart keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanlog.config import BrokerOptions
from fanlog.errors import (
    FencedError,
    GroupActiveError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    NoPositionError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from fanlog.format.messages import (
    Claim,
    GroupOffsets,
    JoinGroup,
    Position,
    ResetGroup,
)
from fanlog.model import Gap, GapReason, GroupInfo, Start
from tests.broker.groups.members import SECOND_US, Member, Told, later
from tests.broker.stage import Stage, no_room, stage, succeeded
from tests.broker.transactions.staging import Staging, settle


@pytest.fixture
def memory() -> Iterator[Stage]:
    with stage() as made:
        made.core.create_topic("t", {"partitions": 4})
        yield made


# Coming and going


def test_the_first_member_gets_everything_and_the_second_half_of_it(memory: Stage) -> None:
    a = Member(memory, "a").join()
    assert a.partitions == [0, 1, 2, 3]
    b = Member(memory, "b").join()
    assert len(a.partitions) == len(b.partitions) == 2
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    assert len(a.asked) == 2


def test_a_member_that_leaves_frees_its_partitions_at_once(memory: Stage) -> None:
    a, b = Member(memory, "a").join(), Member(memory, "b").join()
    b.leave()
    assert a.partitions == [0, 1, 2, 3]
    a.leave()
    assert memory.core.groups.find("g") is None


def test_what_does_not_move_goes_on_while_others_come_and_go(memory: Stage) -> None:
    a = Member(memory, "a").join()
    kept = dict(a.has)
    b = Member(memory, "b", slow=True).join()
    stays = set(kept) - set(a.asked)
    joins = len(a.joins)
    for topic, partition in stays:
        memory.publish(topic, [b"x"], partition=partition)
    memory.run()
    b.leave()
    assert len(a.batches) == len(stays)
    later(memory, 1)
    assert a.partitions == [0, 1, 2, 3]
    assert [j for j in a.joins[joins:] for s in j.starts if ("t", s.partition) in stays] == []


def test_a_partition_goes_on_to_the_next_owner_at_the_committed_position(memory: Stage) -> None:
    for partition in range(4):
        memory.publish("t", [b"x"] * 5, partition=partition)
    memory.run()
    a = Member(memory, "a", slow=True).join()
    b = Member(memory, "b").join()
    assert b.has == {}
    place = a.asked[0]
    a.commit(3, place[1])
    a.release(place[1])
    assert b.has == {place: 3}


def test_a_released_partition_is_not_waited_for_by_others(memory: Stage) -> None:
    a = Member(memory, "a", slow=True).join()
    Member(memory, "b").join()
    c = Member(memory, "c").join()
    assert len(a.asked) in (2, 3)
    for _, partition in list(a.asked):
        a.release(partition)
    assert c.partitions


def test_a_lost_member_keeps_its_partitions_for_its_session(memory: Stage) -> None:
    a, b = Member(memory, "a").join(), Member(memory, "b").join(session_seconds=10)
    had = b.partitions
    b.lose()
    later(memory, 9)
    assert len(a.partitions) == 2
    later(memory, 1.1)
    assert a.partitions == [0, 1, 2, 3]
    assert had


def test_a_member_that_comes_back_goes_on_where_it_was(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    a = Member(memory, "a").join()
    b = Member(memory, "b").join()
    before = dict(a.has)
    memory.publish("t", [b"x"] * 2, partition=a.partitions[0])
    memory.run()
    a.commit(2, a.partitions[0])
    a.has = {place: 7 if place == ("t", 0) else at for place, at in a.has.items()}
    expected = dict(a.has)
    a.lose()
    a.come_back()
    assert a.has == expected
    assert set(a.has) == set(before)
    assert b.asked == b.lost_places == []
    assert memory.core.groups.find("g").rebalances == 2  # type: ignore[union-attr]


def test_a_member_that_was_away_too_long_is_told_what_it_has_lost(memory: Stage) -> None:
    a, b = Member(memory, "a").join(), Member(memory, "b").join()
    had = dict(b.has)
    b.lose()
    later(memory, 11)
    a.commit(0, 0)
    b.come_back()
    assert sorted(b.lost_places) == sorted(had)
    # It is a member like any other then, and gets its share.
    assert len(b.partitions) == 2


def test_a_claim_is_refused_where_others_have_been_since(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    b = Member(memory, "b").join()
    claims = (Claim("t", 0, 2, memory.core.epoch),)
    b.lose()
    later(memory, 11)
    a = Member(memory, "a").join()
    a.commit(6)
    a.leave()
    b.has = {}
    b.join(claims=claims)
    assert b.lost_places == [("t", 0)]
    assert b.has["t", 0] == 6


def test_so_is_one_that_had_received_more_than_others_have_committed_since(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    b = Member(memory, "b").join()
    b.has["t", 0] = 10
    b.lose()
    later(memory, 11)
    a = Member(memory, "a").join()
    a.commit(6)
    a.leave()
    b.come_back()
    assert b.lost_places == [("t", 0)]
    assert b.has["t", 0] == 6


async def test_so_is_one_of_a_partition_whose_position_an_operator_has_moved_back(
    memory: Stage,
) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    b = Member(memory, "b").join()
    b.commit(8)
    b.has["t", 0] = 10
    b.lose()
    later(memory, 11)
    await memory.core.groups.reset(ResetGroup(group="g", start=Start("offset", 3)))
    memory.run()
    b.come_back()
    assert b.lost_places == [("t", 0)]
    assert b.has["t", 0] == 3


def test_a_claim_without_the_committed_offset_needs_a_commit_of_the_same_membership(
    memory: Stage,
) -> None:
    """Other clients need not know where their partitions began."""
    memory.publish("t", [b"x"] * 10)
    memory.publish("t", [b"x"] * 10, partition=1)
    memory.run()
    a = Member(memory, "a").join()
    a.commit(4)
    a.lose()
    later(memory, 11)
    claims = tuple(Claim("t", partition, 9, memory.core.epoch) for partition in (0, 1))
    a.join(claims=claims)
    assert a.lost_places == [("t", 1)]
    assert (a.has["t", 0], a.has["t", 1]) == (9, 0)


def test_a_member_that_is_asked_to_let_go_and_loses_its_connection_is_asked_again(
    memory: Stage,
) -> None:
    a = Member(memory, "a", slow=True).join()
    everything = dict(a.has)
    b = Member(memory, "b").join()
    asked = list(a.asked)
    a.lose()
    a.has = everything
    a.come_back()
    assert sorted(a.asked) == sorted(asked * 2)
    assert set(a.has) == set(everything) - set(asked)
    assert b.has == {}
    a.release(*[partition for _, partition in asked])
    assert sorted(b.has) == sorted(asked)


# Time limits and fences


def test_past_revoke_seconds_a_partition_is_taken_and_its_old_owner_fenced() -> None:
    with stage(options=BrokerOptions(revoke_seconds=5)) as on:
        on.core.create_topic("t", {"partitions": 2})
        a = Member(on, "a", slow=True).join()
        b = Member(on, "b").join()
        ((_, moving),) = a.asked
        a.commit(0, moving)
        later(on, 4.9)
        assert b.has == {}
        later(on, 0.2)
        assert b.partitions == [moving]
        assert a.lost_places == [("t", moving)]
        with pytest.raises(FencedError, match="not this member's"):
            a.commit(0, moving)
        a.release(moving)
        assert b.partitions == [moving]


def test_a_commit_outside_of_what_a_member_has_commits_nothing(memory: Stage) -> None:
    a, b = Member(memory, "a").join(), Member(memory, "b").join()
    before = memory.core.durable.positions("group/g")
    own, foreign = a.partitions[0], b.partitions[0]
    with pytest.raises(FencedError, match=f"Partition {foreign} of 't'"):
        memory.core.groups.commit_offsets(
            a.subscription, (Position("t", own, 3), Position("t", foreign, 3))
        )
    assert memory.core.durable.positions("group/g") == before


def test_who_commits_for_a_transaction_must_have_the_membership_and_the_partitions(
    memory: Stage,
) -> None:
    a = Member(memory, "a").join()
    groups = memory.core.groups
    own = (Position("t", 0, 1),)
    groups.check_owner(GroupOffsets("g", "a", a.epoch, own))
    a.lose()
    groups.check_owner(GroupOffsets("g", "a", a.epoch, own))
    for offsets in (
        GroupOffsets("g", "a", a.epoch - 1, own),
        GroupOffsets("g", "b", a.epoch, own),
        GroupOffsets("h", "a", a.epoch, own),
        GroupOffsets("g", "a", a.epoch, (Position("t", 9, 1),)),
    ):
        with pytest.raises(FencedError):
            groups.check_owner(offsets)


def test_a_second_living_member_of_a_name_fences_the_first(memory: Stage) -> None:
    first = Member(memory, "a").join(static=True)
    first.commit(0)
    second = Member(memory, "a").join(static=True)
    assert isinstance(first.evicted_with, FencedError)
    assert "Give each member a name of its own" in str(first.evicted_with)
    assert second.partitions == [0, 1, 2, 3]
    with pytest.raises(FencedError):
        first.commit(1)
    # It does not steal the membership back, neither now nor when the other is away.
    for _ in range(2):
        with pytest.raises(FencedError):
            first.come_back(static=True)
        second.lose()


def test_a_static_member_that_comes_back_from_a_new_process_keeps_its_partitions(
    memory: Stage,
) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    old = Member(memory, "a").join(static=True)
    other = Member(memory, "b").join()
    had = old.partitions
    old.commit(0, had[0])
    old.lose()
    new = Member(memory, "a").join(static=True)
    assert new.partitions == had
    assert set(new.has.values()) == {0}
    assert other.asked == []
    assert new.epoch > old.epoch


def test_a_new_process_does_not_inherit_the_claims_of_the_one_before(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    old = Member(memory, "a").join(static=True)
    old.lose()
    claims = (Claim("t", 0, 7, memory.core.epoch),)
    wanted = JoinGroup(
        group="g", member="a", target="t", static=True, epoch=old.epoch, claims=claims
    )
    subscription, _ = memory.core.groups.join(1, wanted, old, Told(old))
    memory.core.groups.lost(subscription)
    new = Member(memory, "a").join(static=True)
    assert new.has["t", 0] == 0


# Where a partition begins


async def test_without_a_position_the_reset_policy_decides(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 5)
    memory.run()
    assert Member(memory, "a", group="early").join(reset="earliest").has["t", 0] == 0
    assert Member(memory, "a", group="late").join(reset="latest").has["t", 0] == 5
    none = Member(memory, "a", group="none").join(reset="none")
    assert isinstance(none.evicted_with, NoPositionError)
    assert memory.core.groups.find("none") is None
    for partition in range(4):
        wanted = ResetGroup(
            group="none", start=Start("offset", 2), topic="t", partitions=(partition,)
        )
        await memory.core.groups.reset(wanted)
    again = Member(memory, "a", group="none").join(reset="none")
    assert again.has == {("t", 0): 2, ("t", 1): 0, ("t", 2): 0, ("t", 3): 0}


def test_what_comes_before_the_first_commit_is_not_left_out(memory: Stage) -> None:
    a = Member(memory, "a").join(reset="latest")
    memory.publish("t", [b"x"] * 5)
    memory.run()
    assert a.offsets == [0, 1, 2, 3, 4]
    a.leave()
    assert Member(memory, "b").join(reset="latest").has["t", 0] == 0


def test_where_a_group_began_is_not_forgotten_on_a_full_disk(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        on.publish("t", [b"before"])
        on.run()
        first, second = Member(on, "a"), Member(on, "b")
        with monkeypatch.context() as full:
            full.setattr("os.pwrite", no_room)
            first.join(reset="latest")
        assert first.has == {("t", 0): 1}
        assert on.core.durable.positions("group/g") == ()
        on.publish("t", [b"after"])
        second.join(reset="latest")
        first.leave()
        assert second.has == {("t", 0): 1}
        later(on, 1)
        assert [p.offset for p in on.core.durable.positions("group/g")] == [1]


def test_a_position_before_what_is_kept_begins_with_a_gap(data: Path) -> None:
    with stage(data, retention_bytes=1, segment_bytes=64 * 1024) as on:
        on.publish("t", [b"x"])
        on.run()
        a = Member(on, "a").join()
        a.commit(0)
        a.leave()
        for _ in range(3):
            on.publish("t", [b"x" * 60_000])
            on.run()
        on.core.housekeeping()
        start = on.core.describe("t").partitions[0].start_offset
        assert start > 0
        b = Member(on, "b").join()
        assert b.gaps == [Gap("t", 0, 0, start, GapReason.RETENTION)]


def test_a_position_past_the_end_goes_on_there_with_a_gap(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 3)
    memory.run()
    position = Position("t", 0, 90, memory.core.epoch)
    memory.core.durable.commit_positions([("group/g", (position,))])
    a = Member(memory, "a").join()
    assert a.gaps == [Gap("t", 0, 90, 3, GapReason.RESET)]
    memory.publish("t", [b"x"] * 2)
    memory.run()
    assert a.offsets == [3, 4]


def test_a_topic_that_appears_is_read_from_its_first_record(memory: Stage) -> None:
    a = Member(memory, "a").join("news.>", reset="latest")
    assert a.has == {}
    memory.publish("news.one", [b"x"])
    memory.run()
    assert a.has == {("news.one", 0): 0}
    assert a.offsets == [0]


def test_a_topic_that_grows_is_shared_out_anew_from_its_first_records(memory: Stage) -> None:
    a, b = Member(memory, "a").join(reset="latest"), Member(memory, "b").join(reset="latest")
    kept, asked = a.has | b.has, list(a.asked)
    memory.grow("t", 6)
    memory.publish("t", [b"x"], partition=4)
    memory.publish("t", [b"y"], partition=5)
    memory.run()
    assert [len(member.partitions) for member in (a, b)] == [3, 3]
    assert sorted(a.partitions + b.partitions) == list(range(6))
    assert kept.items() <= (a.has | b.has).items()
    assert (a.asked, b.asked) == (asked, [])
    assert sorted(batch.header.partition for m in (a, b) for batch in m.batches) == [4, 5]


@pytest.mark.parametrize("reset", ["latest", "none"])
def test_a_group_that_is_away_leaves_nothing_of_new_partitions_out(data: Path, reset: str) -> None:
    with stage(data) as on:
        on.core.create_topic("t", {})
        a = Member(on, "a").join(reset="latest")
        a.leave()
        on.grow("t", 2)
        on.publish("t", [b"x"], partition=1)
        on.run()
    with stage(data) as on:
        b = Member(on, "b").join(reset=reset)
        later(on, 3)
        assert b.has == {("t", 0): 0, ("t", 1): 0}
        assert [batch.values for batch in b.batches] == [[b"x"]]


def test_a_member_that_is_lost_while_a_topic_grows_finds_the_new_partitions(
    memory: Stage,
) -> None:
    a = Member(memory, "a").join(reset="latest")
    a.lose()
    memory.grow("t", 5)
    memory.publish("t", [b"x"], partition=4)
    memory.run()
    a.come_back(reset="latest")
    assert a.has["t", 4] == 0
    assert [batch.values for batch in a.batches] == [[b"x"]]


def test_a_topic_that_vanishes_is_left_and_may_come_again(memory: Stage) -> None:
    a = Member(memory, "a").join()
    b = Member(memory, "b", slow=True).join()
    memory.core.delete_topic("t")
    memory.run()
    assert a.lefts == b.lefts == ["t"]
    assert a.has == b.has == {}
    memory.core.create_topic("t", {"partitions": 2})
    memory.run()
    assert sorted(a.partitions + b.partitions) == [0, 1]


def test_members_may_follow_different_topics(memory: Stage) -> None:
    memory.core.create_topic("u", {"partitions": 2})
    a, b = Member(memory, "a").join("t"), Member(memory, "b").join("u")
    assert sorted(a.has) == [("t", i) for i in range(4)]
    assert sorted(b.has) == [("u", i) for i in range(2)]


# Seeking


async def test_a_seek_moves_all_partitions_or_some(memory: Stage) -> None:
    for partition in range(4):
        memory.publish("t", [b"x"] * 6, partition=partition)
    memory.run()
    a = Member(memory, "a").join()
    moved = await a.seek(Start("offset", 4), topic="t", partitions=(1,))
    assert [(p.partition, p.offset) for p in moved] == [(1, 4)]
    assert [j.starts[0].offset for j in a.joins[-1:]] == [4]
    await a.seek(Start("latest"))
    assert set(a.has.values()) == {6}
    await a.seek(Start("earliest"), topic="t")
    assert set(a.has.values()) == {0}
    assert a.offsets.count(5) == 4 + 1 + 4


async def test_a_seek_is_answered_after_its_member_knows_where_it_reads(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.publish("t", [b"x"] * 6, partition=1)
    memory.run()
    a = Member(memory, "a").join()
    waiting: list[Callable[[], None]] = []
    # As with replicas, which have to confirm first.
    monkeypatch.setattr(memory.core, "when_confirmed", waiting.append)
    seeking = asyncio.ensure_future(a.seek(Start("offset", 4), topic="t", partitions=(1,)))
    await asyncio.sleep(0)
    assert (a.has["t", 1], len(waiting), seeking.done()) == (0, 1, False)
    waiting.pop()()
    assert a.has["t", 1] == 4
    assert [position.offset for position in await seeking] == [4]


async def test_a_seek_elsewhere_moves_nothing(memory: Stage) -> None:
    a, b = Member(memory, "a").join(), Member(memory, "b").join()
    joins = len(a.joins)
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 0; 3 is past it"):
        await a.seek(Start("offset", 3))
    with pytest.raises(InvalidArgumentError, match="no partition"):
        await a.seek(Start("earliest"), topic="t", partitions=(b.partitions[0],))
    with pytest.raises(InvalidArgumentError, match="of 'u'"):
        await a.seek(Start("earliest"), topic="u")
    assert len(a.joins) == joins


# Limits


def test_every_limit_has_an_error_that_names_it() -> None:
    options = BrokerOptions(
        groups_max=1,
        group_members_max=2,
        session_seconds_min=1,
        session_seconds_max=60,
        auto_create_topics=False,
    )
    with stage(options=options) as on:
        on.core.create_topic("t", {})
        Member(on, "a").join()
        Member(on, "b").join()
        with pytest.raises(LimitError, match="group_members_max"):
            Member(on, "c").join()
        with pytest.raises(LimitError, match="groups_max"):
            Member(on, "a", group="h").join()
        for seconds in (0.5, 61):
            with pytest.raises(InvalidArgumentError, match="session_seconds_min"):
                Member(on, "a").join(session_seconds=seconds)
        for group, name in (("", "a"), ("g" * 250, "a"), ("g", ""), ("g", "n" * 256)):
            with pytest.raises(InvalidNameError):
                Member(on, name, group=group).join()
        with pytest.raises(TopicNotFoundError):
            Member(on, "d", group="g").join("nowhere", missing="fail")


# Restarts


def restarted(data: Path, grace_seconds: float = 2.0) -> Any:
    return stage(data, options=BrokerOptions(group_grace_seconds=grace_seconds))


def test_at_the_limit_of_positions_those_that_are_there_still_move() -> None:
    with stage(options=BrokerOptions(durable_positions_max=2)) as on:
        on.core.create_topic("t", {"partitions": 2})
        on.publish("t", [b"x"])
        on.run()
        member = Member(on, "a").join()
        assert on.core.durable.count == 2
        member.commit(1)
        with pytest.raises(LimitError):
            on.core.commit_positions("another", (Position("t", 0, 1),))
        with pytest.raises(LimitError):
            on.core.commit_positions("b", (Position("t", 0, 1), Position("t", 1, 0)))
        assert on.core.durable.count == 2


@pytest.mark.parametrize("epoch", [-1, 2**63, 2**64 - 1])
def test_a_memberships_epoch_leaves_room_for_those_that_follow(memory: Stage, epoch: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Member(memory, "a").join(epoch=epoch)


async def test_the_brokers_own_topics_are_not_for_groups(data: Path) -> None:
    with stage(data) as on:
        on.core.open_topic("t", create=True)
        Member(on, "a").join()
        assert on.core.catalog.find("_fanlog.cursors") is not None
        with pytest.raises(InvalidNameError):
            Member(on, "b").join("_fanlog.cursors")
        wanted = ResetGroup(group="h", start=Start("earliest"), topic="_fanlog.cursors")
        with pytest.raises(InvalidNameError):
            await on.core.groups.reset(wanted)


@pytest.mark.parametrize("name", ["", "x" * 250])
async def test_a_reset_makes_no_group_of_an_impossible_name(memory: Stage, name: str) -> None:
    wanted = ResetGroup(group=name, start=Start("earliest"), topic="t")
    with pytest.raises(InvalidNameError):
        await memory.core.groups.reset(wanted)
    assert memory.core.groups.names() == []


def test_offsets_survive_a_restart_and_assignments_are_claimed_back(data: Path) -> None:
    with restarted(data) as on:
        on.core.create_topic("t", {"partitions": 4})
        for partition in range(4):
            on.publish("t", [b"x"] * 9, partition=partition)
        on.run()
        a, b = Member(on, "a").join(), Member(on, "b").join()
        moved = ("t", a.partitions[0])
        a.commit(0, moved[1])
        a.has[moved] = 4
        had_a, had_b = dict(a.has), dict(b.has)
    with restarted(data) as on:
        a.on = b.on = on
        a.come_back()
        assert a.has == had_a
        # A newcomer waits, and the other finds what it had.
        c = Member(on, "c").join()
        b.come_back()
        assert b.has == had_b
        assert c.has == {}
        later(on, 2.1)
        assert sorted(a.partitions + b.partitions + c.partitions) == [0, 1, 2, 3]
        assert c.partitions


def test_a_restart_does_not_forget_who_has_committed(data: Path) -> None:
    """One commits, and never hears of it; another has been in its partition since."""
    with restarted(data) as on:
        on.core.create_topic("t", {"partitions": 2})
        for partition in range(2):
            on.publish("t", [b"x"] * 10, partition=partition)
        on.run()
        a = Member(on, "a").join()
        a.has = dict.fromkeys(a.has, 10)
        a.commit(7, 1)
        a.known["t", 1] = 0
        a.lose()
        later(on, 11)
        b = Member(on, "b").join()
        b.commit(6)
    with restarted(data) as on:
        a.on = on
        a.come_back()
        assert a.lost_places == [("t", 0)]
        assert a.has == {("t", 1): 10}
        later(on, 2.1)
        assert a.has == {("t", 0): 6, ("t", 1): 10}


def test_so_it_is_with_a_commit_in_a_transaction(data: Path) -> None:
    with restarted(data) as on:
        on.core.create_topic("t", {"partitions": 2})
        for partition in range(2):
            on.publish("t", [b"x"] * 10, partition=partition)
        on.run()
        a = Member(on, "a").join()
        a.has = dict.fromkeys(a.has, 10)
        _commit_in_transaction(on, a, Position("t", 1, 7))
        a.lose()
        later(on, 11)
        b = Member(on, "b").join()
        _commit_in_transaction(on, b, Position("t", 0, 6))
    with restarted(data) as on:
        a.on = on
        a.come_back()
        assert a.lost_places == [("t", 0)]
        assert a.has == {("t", 1): 10}


def _commit_in_transaction(on: Stage, member: Member, position: Position) -> None:
    mine = Staging(on)
    mine.stage("out", b"x")
    offsets = GroupOffsets("g", member.name, member.epoch, (position,))
    outcomes = mine.commit(offsets=(offsets,))
    settle(on)
    assert not outcomes.only.already


def test_who_takes_a_name_over_after_a_restart_does_not_resume_behind_the_one_before(
    data: Path,
) -> None:
    """The older process comes back first, and moves on before the newer one does."""
    with restarted(data) as on:
        on.core.create_topic("t", {})
        on.publish("t", [b"x"] * 20)
        on.run()
        first = Member(on, "a").join(static=True)
        second = Member(on, "a").join(static=True)
        second.has["t", 0] = 8
    with restarted(data) as on:
        first.on = second.on = on
        first.come_back(static=True)
        first.commit(12)
        second.come_back(static=True)
        assert second.lost_places == [("t", 0)]
        assert second.has["t", 0] == 12
        second.commit(13)


def test_after_a_restart_who_does_not_come_back_is_waited_for_only_a_moment(data: Path) -> None:
    with restarted(data) as on:
        on.core.create_topic("t", {"partitions": 2})
        Member(on, "a").join().commit(0)
    with restarted(data) as on:
        b = Member(on, "b").join()
        new = Member(on, "x", group="new").join()
        assert b.has == {}
        assert new.partitions == [0, 1]
        later(on, 1.9)
        assert b.has == {}
        later(on, 0.2)
        assert b.partitions == [0, 1]


def test_a_member_that_was_fenced_before_a_restart_stays_fenced(data: Path) -> None:
    with restarted(data) as on:
        on.core.create_topic("t", {})
        first = Member(on, "a").join(static=True)
        second = Member(on, "a").join(static=True)
    with restarted(data) as on:
        first.on = second.on = on
        first.come_back(static=True)
        second.come_back(static=True)
        assert isinstance(first.evicted_with, FencedError)
        assert second.partitions == [0]
        with pytest.raises(FencedError):
            first.come_back(static=True)


# Operators


async def described(on: Stage, name: str = "g") -> GroupInfo:
    return await on.core.groups.describe(name)


async def test_a_description_has_members_partitions_and_lag(memory: Stage) -> None:
    memory.publish("t", [b"x"] * 5)
    memory.publish("t", [b"x"] * 3, partition=1)
    memory.run()
    a = Member(memory, "a").join(static=True)
    a.commit(5)
    memory.runtime.time_us += 3 * SECOND_US
    memory.publish("t", [b"y"] * 2)
    memory.run()
    memory.runtime.time_us += 4 * SECOND_US
    info = await described(memory)
    assert (info.name, info.kind, info.state, info.rebalances) == ("g", "stream", "active", 1)
    assert [(m.id, m.static, m.present, m.partitions) for m in info.members] == [
        ("a", True, True, 4)
    ]
    first, second, *_ = info.partitions
    assert (first.committed, first.end_offset, first.lag, first.lag_seconds) == (5, 7, 2, 4.0)
    assert (second.committed, second.lag, second.lag_seconds, second.member) == (0, 3, 7.0, "a")
    assert (info.lag, info.lag_seconds) == (5, 7.0)
    b = Member(memory, "b").join()
    a.slow = True
    Member(memory, "c").join()
    assert (await described(memory)).state == "rebalancing"
    b.lose()
    assert {m.id: m.present for m in (await described(memory)).members} == {
        "a": True,
        "b": False,
        "c": True,
    }


async def test_a_group_without_members_shows_from_its_commits(memory: Stage) -> None:
    Member(memory, "a").join().leave()
    info = await described(memory)
    assert (info.state, info.members, len(info.partitions)) == ("inactive", (), 4)
    assert memory.core.groups.names() == ["g"]
    memory.core.groups.delete("g", succeeded)
    assert memory.core.groups.names() == []
    for call in (lambda: memory.core.groups.delete("g", succeeded),):
        with pytest.raises(GroupNotFoundError, match="fanlog group list"):
            call()
    with pytest.raises(GroupNotFoundError):
        await described(memory)


async def test_only_an_inactive_group_is_reset_and_a_dry_run_changes_nothing(
    memory: Stage,
) -> None:
    memory.publish("t", [b"x"] * 9)
    memory.run()
    a = Member(memory, "a").join()
    a.commit(7)
    to_start = ResetGroup(group="g", start=Start("offset", 3))
    with pytest.raises(GroupActiveError, match=r"has members \(a\)"):
        await memory.core.groups.reset(to_start)
    with pytest.raises(GroupActiveError):
        memory.core.groups.delete("g", succeeded)
    a.leave()
    dry = await memory.core.groups.reset(
        ResetGroup(group="g", start=Start("offset", 3), dry_run=True)
    )
    assert [(s.partition, s.before, s.after) for s in dry] == [
        (0, 7, 3),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
    ]
    assert memory.core.durable.position("group/g", "t", 0).offset == 7  # type: ignore[union-attr]
    assert await memory.core.groups.reset(to_start) == dry
    assert Member(memory, "a").join().has["t", 0] == 3
    with pytest.raises(GroupNotFoundError):
        await memory.core.groups.reset(ResetGroup(group="nobody", start=Start("earliest")))
    with pytest.raises(PartitionNotFoundError, match="no partition 9"):
        await memory.core.groups.reset(
            ResetGroup(group="h", start=Start("earliest"), topic="t", partitions=(9,))
        )


async def test_a_reset_lets_others_have_their_turn_between_its_checks_and_its_commit(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.publish("t", [b"x"] * 10)
    memory.run()
    check, seen = memory.core.check_positions, list[str]()

    def long_check(name: str, positions: tuple[Position, ...]) -> tuple[Position, ...]:
        # As long as a group of many partitions takes.
        memory.runtime.time_us += 10_000
        memory.runtime.soon(lambda: seen.append("others"))
        return check(name, positions)

    monkeypatch.setattr(memory.core, "check_positions", long_check)
    wanted = ResetGroup(group="g", start=Start("offset", 3), topic="t")
    resetting = asyncio.ensure_future(memory.core.groups.reset(wanted))
    await asyncio.sleep(0)
    assert not memory.core.groups.is_known("g")
    while not resetting.done():
        memory.run()
        await asyncio.sleep(0)
    assert seen == ["others"]
    assert memory.core.groups.is_known("g")
