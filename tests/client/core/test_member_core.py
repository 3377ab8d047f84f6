"""Members of groups without a socket: what they claim, what they may commit, and what of a lost
partition counts."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from fanlog.client.core.handled_partitions import (
    PARKING_TRANSITIONS,
    HandledMemberCore,
    HandledPartitions,
    ParkedPartition,
    ParkingState,
)
from fanlog.client.core.handling import Desk, MessageToHandle
from fanlog.client.core.member_core import MemberCore, followed
from fanlog.client.core.offset_commits import CommitMode
from fanlog.client.core.owned_partitions import OwnedPartitions
from fanlog.client.core.reached import Reached
from fanlog.client.core.receiving import Receiving
from fanlog.client.message import MessageBatch
from fanlog.errors import ClosedError, ConnectionLostError, FencedError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, read_frame_header
from fanlog.model import Gap, GapReason, TopicPartition
from tests.client.core.stepped_client import stored_batch

JOIN = messages.JoinGroup(group="g", member="m", target="t", window_bytes=4000)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NUMBER, KEY = 3, 1


class WrittenFrames:
    """The host of a member: keeps the kinds of what is written."""

    def __init__(self) -> None:
        self.kinds: list[FrameKind] = []

    def write(self, data: bytes) -> None:
        self.kinds.append(FrameKind(read_frame_header(data[:FRAME_HEADER_BYTES]).kind))

    def decoded(self, batch: Batch) -> MessageBatch:
        return MessageBatch(batch)


def joined(*, commit: CommitMode = "auto", announces: bool = False) -> MemberCore:
    host = WrittenFrames()
    receiving = Receiving(host, KEY, followed(JOIN), None)
    owned = OwnedPartitions(host, receiving, "g", commit=commit, announces=announces)
    core = MemberCore(host, KEY, JOIN, owned)
    assert core.opening() == (FrameKind.JOIN_GROUP, JOIN)
    core.opened(msgspec.msgpack.encode(messages.GroupJoined(epoch=4)))
    return core


def grant(core: MemberCore, *partitions: int, offset: int = 0, epoch: int = 1) -> None:
    starts = tuple(messages.PartitionOffset(number, offset) for number in partitions)
    core.joined(messages.Joined(NUMBER, "t", epoch, starts))


def deliver(core: MemberCore, partition: int, first: int, *values: bytes) -> None:
    core.delivered(stored_batch(first, *values, topic=NUMBER, partition=partition))


def take(core: MemberCore) -> list[bytes]:
    batch = core.source.maybe_next()
    return [] if batch is None else [message.value for message in batch]


def offsets(core: MemberCore) -> dict[int, int]:
    return {position.partition: position.offset for position in core.source.positions()}


def revoke(core: MemberCore, partition: int, *, lost: bool = False) -> None:
    core.revoked(messages.Revoke("t", (partition,), lost=lost))


def test_messages_are_finished_when_the_next_are_asked_for() -> None:
    core = joined()
    grant(core, 0)
    deliver(core, 0, 0, b"a", b"b")
    deliver(core, 0, 2, b"c")
    assert take(core) == [b"a", b"b"]
    owned = core.owned
    assert owned.reached(None)[A].offset == 2
    assert owned.reached(None, in_callback=True)[A].offset == 0
    assert take(core) == [b"c"]
    assert owned.reached(None, in_callback=True)[A].offset == 2
    assert owned.commit_request(owned.reached(None)).positions == (
        messages.Position("t", 0, 3, epoch=1, number=NUMBER),
    )


def test_a_member_comes_back_with_its_partitions_and_what_it_has_committed() -> None:
    core = joined()
    grant(core, 0, 1, offset=5)
    deliver(core, 0, 5, b"a", b"b")
    take(core)
    core.owned.committed({A: Reached(6, 1, NUMBER)})
    kind, wanted = core.resuming()
    assert kind is FrameKind.JOIN_GROUP
    assert isinstance(wanted, messages.JoinGroup)
    assert (wanted.epoch, wanted.missing, wanted.start) == (4, "wait", None)
    assert [(c.partition, c.offset, c.committed) for c in wanted.claims] == [(0, 7, 6), (1, 5, 5)]
    # The broker goes on where it was: nothing is forgotten, and nothing comes twice.
    core.joined(
        messages.Joined(
            NUMBER, "t", 1, (messages.PartitionOffset(0, 7), messages.PartitionOffset(1, 5))
        )
    )
    deliver(core, 0, 5, b"a", b"b")
    deliver(core, 0, 7, b"c")
    assert offsets(core) == {0: 7, 1: 5}
    assert take(core) == [b"c"]


def test_a_log_that_was_cut_counts_from_its_new_end() -> None:
    core = joined()
    grant(core, 0)
    deliver(core, 0, 0, b"a", b"b", b"c")
    take(core)
    core.resuming()
    grant(core, 0, offset=1, epoch=2)
    assert offsets(core) == {0: 1}
    deliver(core, 0, 1, b"new")
    assert take(core) == [b"new"]


def test_the_broker_wants_a_partition_back_and_gets_it_when_nothing_is_in_hand() -> None:
    core = joined()
    grant(core, 0, 1)
    deliver(core, 0, 0, b"a")
    deliver(core, 0, 1, b"never handed out")
    assert take(core) == [b"a"]
    revoke(core, 0)
    assert core.owned.active == {B}
    assert core.owned.grants.next_step() is None
    assert take(core) == []
    step = core.owned.grants.next_step()
    assert step is not None
    assert step.releasing == (A,)
    # What was finished is committed before the answer, and forgotten with it.
    assert offsets(core) == {0: 1, 1: 0}
    core.owned.released(messages.Release("t", (0,)))
    assert offsets(core) == {1: 0}


def test_a_lost_partition_is_acknowledged_at_once_and_what_is_in_hand_counts_no_more() -> None:
    core = joined()
    grant(core, 0)
    deliver(core, 0, 0, b"a", b"b")
    batch = core.source.maybe_next()
    assert batch is not None
    first, _ = core.source.run(batch)
    host = core.owned._host
    revoke(core, 0, lost=True)
    assert isinstance(host, WrittenFrames)
    assert host.kinds[-1] is FrameKind.RELEASE
    with pytest.raises(FencedError, match="while it worked on a message"):
        core.owned.check_hand()
    with pytest.raises(FencedError, match="while it worked on a message"):
        core.group_offsets((messages.Position("t", 0, 1),))
    assert core.owned.times_came(A) == 0
    # It comes again further on: what was read before may not be committed.
    grant(core, 0, offset=3)
    assert core.owned.times_came(A) == 2
    take(core)
    with pytest.raises(FencedError, match="given back to it at 3"):
        core.owned.reached(first)


def test_messages_wait_until_the_application_has_heard_of_their_partition() -> None:
    core = joined(announces=True)
    grant(core, 0)
    deliver(core, 0, 0, b"a")
    assert take(core) == []
    step = core.owned.grants.next_step()
    assert step is not None
    assert (step.came, core.owned.grants.heard(step)) == (True, [A])
    core.receiving.let_through(A)
    assert take(core) == [b"a"]


def test_positions_for_a_transaction_name_the_membership() -> None:
    core = joined()
    grant(core, 0)
    position = messages.Position("t", 0, 0)
    assert core.group_offsets((position,)) == messages.GroupOffsets("g", "m", 4, (position,))
    with pytest.raises(InvalidArgumentError, match="takes a message of this member"):
        core.owned.reached("an offset")  # type: ignore[arg-type]


def test_with_iterate_each_message_wishes_for_a_commit_of_those_before_it() -> None:
    core = joined(commit="iterate")
    commits = core.owned.commits
    commits.on_due = lambda: None
    grant(core, 0)
    deliver(core, 0, 0, b"a", b"b")
    batch = core.source.maybe_next()
    assert batch is not None
    commits.next()
    run = core.source.run(batch)
    committed: list[int] = []
    for _ in run:
        wanted = commits.next()
        commits.stored(wanted)
        committed += [at.offset for at in wanted.values()]
    assert committed == [0, 1]


@pytest.mark.parametrize("lost", [False, True])
def test_a_member_that_has_ended_gives_nothing_out(lost: bool) -> None:
    core = joined()
    grant(core, 0)
    deliver(core, 0, 0, b"a")
    deliver(core, 0, 1, b"b")
    take(core)
    core.end(ConnectionLostError("lost") if lost else ClosedError("closed"))
    deliver(core, 0, 2, b"c")
    assert not core.arrivals.items
    assert core.owned.active == (set() if lost else {A})
    step = core.owned.grants.next_step()
    assert (step is not None) == lost


def test_who_leaves_without_a_connection_hears_what_was_not_committed() -> None:
    for commit, owes in (("auto", True), ("manual", False)):
        core = joined(commit="auto" if commit == "auto" else "manual")
        grant(core, 0)
        core.owned.committed({A: Reached(0, 1, NUMBER)})
        deliver(core, 0, 0, b"a")
        deliver(core, 0, 1, b"b")
        core.owned.check_all_committed()
        take(core)
        take(core)
        if owes:
            with pytest.raises(ConnectionLostError, match="will be delivered again"):
                core.owned.check_all_committed()
        else:
            core.owned.check_all_committed()


# Members with handlers


def handled(window_bytes: int = 4000) -> tuple[HandledMemberCore, HandledPartitions, Desk]:
    host = WrittenFrames()
    desk = Desk("partition")
    join = msgspec.structs.replace(JOIN, window_bytes=window_bytes)
    receiving = Receiving(host, KEY, followed(join), lambda _: None)
    owned = HandledPartitions(host, receiving, join, desk)
    core = HandledMemberCore(host, KEY, join, owned)
    grant(core, 0, 1)
    return core, owned, desk


def put_all(core: HandledMemberCore, owned: HandledPartitions) -> None:
    while core.arrivals.items:
        batch = owned.maybe_next()
        if batch is not None:
            owned.put_on_desk(batch)


def parked_first() -> tuple[
    HandledMemberCore, HandledPartitions, Desk, ParkedPartition, MessageToHandle
]:
    """A member whose partition 0 fails, and fills the window."""
    core, owned, desk = handled()
    for i in range(3):
        deliver(core, 0, i, bytes(1000))
    put_all(core, owned)
    entry = desk.take()
    assert entry is not None
    assert entry.tp == A
    assert desk.postpone(entry)
    parked = owned.maybe_park()
    assert parked is not None
    assert (parked.partition, parked.offset, owned.is_parked(A)) == (A, 1, True)
    return core, owned, desk, parked, entry


def finish(owned: HandledPartitions, desk: Desk, entry: MessageToHandle) -> None:
    desk.resume(entry)
    assert desk.take() is entry
    desk.finish(entry)
    owned.handled(entry.tp)


@pytest.mark.parametrize(("state", "after"), list(itertools.product(ParkingState, ParkingState)))
def test_a_parked_partition_changes_as_the_table_says(
    state: ParkingState, after: ParkingState
) -> None:
    parked = ParkedPartition(A, 1)
    parked.state = state
    assert parked.change(after) == (after in PARKING_TRANSITIONS[state])
    assert parked.state is (after if after in PARKING_TRANSITIONS[state] else state)


def test_a_partition_that_waits_makes_room_and_comes_back_where_it_was() -> None:
    core, owned, desk, parked, entry = parked_first()
    changes: list[ParkingState] = []
    parked.on_change = lambda: changes.append(parked.state)
    # The cursor is at the end: that is no new position, and its gap is none.
    grant(core, 0, offset=9)
    core.missed_some(messages.GapNotice(NUMBER, 0, 1, 9, GapReason.SKIPPED))
    deliver(core, 0, 9, b"dropped")
    deliver(core, 1, 0, b"other")
    assert core.receiving.gaps == 0
    assert not owned.may_return(parked)
    finish(owned, desk, entry)
    assert changes == [ParkingState.DRAINED]
    assert owned.may_return(parked)
    grant(core, 0, offset=1)
    assert (changes[-1], owned.is_parked(A)) == (ParkingState.OVER, False)
    deliver(core, 0, 1, b"again")
    put_all(core, owned)
    values = [entry.message.value for entry in iter(desk.take, None)]
    assert sorted(values) == [b"again", b"other"]


def test_who_waits_for_a_parked_partition_at_the_end_of_its_log_is_released() -> None:
    core, owned, _, parked, _ = parked_first()
    changes: list[ParkingState] = []
    parked.on_change = lambda: changes.append(parked.state)
    grant(core, 0, offset=parked.offset)
    assert changes == [ParkingState.OVER]
    assert not owned.may_return(parked)


@pytest.mark.parametrize("event", ["revoke", "lose", "end", "connection"])
def test_a_parked_partition_that_goes_is_not_moved_any_more(event: str) -> None:
    core, owned, _, parked, _ = parked_first()
    dropped: list[bool] = []
    parked.on_dropped = lambda: dropped.append(True)
    if event == "end":
        core.end(ClosedError("closed"))
    elif event == "connection":
        _, wanted = core.resuming()
        assert isinstance(wanted, messages.JoinGroup)
        assert [(c.partition, c.offset) for c in wanted.claims] == [(0, 1), (1, 0)]
    else:
        revoke(core, 0, lost=event == "lose")
    assert (dropped, parked.state, owned.is_parked(A)) == ([True], ParkingState.OVER, False)


def test_nothing_is_parked_while_there_is_room_or_nobody_to_make_room_for() -> None:
    core, owned, _ = handled(window_bytes=100_000)
    for i in range(3):
        deliver(core, 0, i, bytes(1000))
    put_all(core, owned)
    assert owned.maybe_park() is None
    core, owned, _ = handled()
    revoke(core, 1, lost=True)
    for i in range(3):
        deliver(core, 0, i, bytes(1000))
    put_all(core, owned)
    assert owned.maybe_park() is None


def test_a_gap_of_a_partition_that_is_read_is_reported() -> None:
    gaps: list[Gap] = []
    core, owned, _ = handled()
    owned.receiving._on_gap = gaps.append
    core.missed_some(messages.GapNotice(NUMBER, 0, 0, 4, GapReason.RETENTION))
    assert [(gap.first, gap.next) for gap in gaps] == [(0, 4)]
