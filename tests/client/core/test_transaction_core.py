"""Transactions without a connection: what is possible when, and which offsets are committed."""

from __future__ import annotations

import msgspec
import pytest

from fanlog.client.core.transaction_core import (
    MemberAtStart,
    TransactionCore,
    TransactionState,
    furthest_positions,
)
from fanlog.client.message import MessageBatch
from fanlog.errors import FencedError, InvalidArgumentError
from fanlog.format.batch import Batch
from fanlog.format.messages import (
    AbortTransaction,
    BeginTransaction,
    GroupOffsets,
    Position,
    TransactionBegun,
    TransactionCommitted,
)
from fanlog.model import TopicPartition
from tests.client.core.stepped_client import stored_batch

COMMITTED = msgspec.msgpack.encode(TransactionCommitted("order-1", already=False))


class OneMember:
    """A member that has read up to `position`, until it has `lost` the partition."""

    def __init__(self, name: str, *positions: Position) -> None:
        self.name = name
        self.positions = positions
        self.lost = False
        self.epoch = 5
        self.times: dict[TopicPartition, int] = {}

    def times_came(self, tp: TopicPartition) -> int:
        return self.times.get(tp, 0)

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets:
        if self.lost:
            raise FencedError("lost")
        return GroupOffsets(
            "g", self.name, self.epoch, self.positions if positions is None else positions
        )


def begun(*, ticket: str = "") -> TransactionCore:
    core = TransactionCore(BeginTransaction("order-1", ticket=ticket))
    answer = TransactionBegun("abcd", "order-1", committed=False)
    core.begun(msgspec.msgpack.encode(answer))
    return core


def test_nothing_is_possible_before_the_beginning() -> None:
    core = TransactionCore(BeginTransaction("order-1"))
    assert core.state is TransactionState.NEW
    with pytest.raises(InvalidArgumentError, match="has not begun"):
        core.details()
    with pytest.raises(InvalidArgumentError, match="has not begun"):
        core.committing("", ())


def test_it_is_committed_under_its_own_id_or_another() -> None:
    core = begun()
    assert core.details().ticket == "abcd"
    assert core.committing("", ()).id == "order-1"
    again = core.committing("order-2", ["ef01"])
    assert (again.ticket, again.id, again.tickets) == ("abcd", "order-2", ("ef01",))
    assert not core.is_over
    assert not core.committed(COMMITTED).already
    assert core.result is not None


def test_nothing_is_possible_after_the_end() -> None:
    committed, aborted, dropped = begun(), begun(), begun()
    committed.committed(COMMITTED)
    assert aborted.aborting() == AbortTransaction("abcd")
    dropped.give_up()
    for core, done in ((committed, "committed"), (aborted, "aborted"), (dropped, "aborted")):
        assert core.is_over
        for call in (core.check_unfinished, core.aborting, lambda c=core: c.committing("", ())):
            with pytest.raises(InvalidArgumentError, match=f"was {done}"):
                call()
        # What it was can still be asked.
        assert core.details().id == "order-1"


def test_one_that_others_have_begun_does_not_end_with_the_block() -> None:
    assert begun(ticket="abcd").is_shared
    assert not begun().is_shared


def test_the_last_position_of_each_partition_counts_for_each_member() -> None:
    core = begun()
    first = OneMember("a", Position("t", 0, 3), Position("t", 1, 9))
    second = OneMember("b", Position("t", 2, 1))
    core.commit_offsets(first, None)
    core.commit_offsets(second, None)
    core.commit_offsets(first, (Position("t", 0, 7),))
    offsets = core.committing("", ()).offsets
    assert [(one.member, {(p.partition, p.offset) for p in one.positions}) for one in offsets] == [
        ("a", {(0, 7), (1, 9)}),
        ("b", {(2, 1)}),
    ]


def test_it_is_not_committed_if_a_member_has_lost_a_partition_since() -> None:
    core = begun()
    member = OneMember("a", Position("t", 0, 3))
    core.commit_offsets(member, None)
    member.lost = True
    with pytest.raises(FencedError):
        core.committing("", ())
    assert not core.is_over


def test_an_attempt_commits_for_the_membership_with_which_it_began() -> None:
    member = OneMember("a")
    at_start = MemberAtStart(member)
    member.epoch += 1
    wanted = at_start.offsets_for_commit((Position("t", 0, 7),))
    assert (wanted.epoch, wanted.positions) == (5, (Position("t", 0, 7),))


def test_an_attempt_fails_when_a_partition_that_it_has_read_was_away_meanwhile() -> None:
    member, mine, other = OneMember("a"), TopicPartition("t", 0), TopicPartition("t", 1)
    member.times = {mine: 1, other: 1}
    at_start = MemberAtStart(member)
    at_start.reads(mine)
    member.times[other] = 2
    at_start.offsets_for_commit(())
    member.times[mine] = 2
    with pytest.raises(FencedError, match="the other member does the work again"):
        at_start.offsets_for_commit(())


def test_the_furthest_position_of_each_partition_is_committed() -> None:
    message = MessageBatch(Batch(stored_batch(4, b"a").data, topic_name="t")).messages[0]
    assert furthest_positions(None) is None
    assert furthest_positions(message) == (Position("t", 0, 5, 1, 1),)
    given = [message, Position("t", 0, 3), Position("t", 1, 2), Position("t", 1, 7)]
    assert furthest_positions(given) == (Position("t", 0, 5, 1, 1), Position("t", 1, 7))
