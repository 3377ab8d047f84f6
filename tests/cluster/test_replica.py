"""A replica has the bytes of its primary, and says how far; nothing that is damaged or does not fit
gets in."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from fanlog.cluster import replica
from fanlog.errors import (
    ChecksumError,
    DamagedError,
    DiskFullError,
    FanlogError,
    LogFailedError,
    ProtocolError,
)
from fanlog.format.replication import Followed, ReplicaEvent, ReplicaPiece, Replicated
from fanlog.log.journal import Journal
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.cluster.replicas import FSYNC, OS, Follower, Primary, check_equal
from tests.log.pieces import read_batches


@pytest.fixture
def primary(tmp_path: Path) -> Primary:
    return Primary(tmp_path / "primary", 5)


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    follower = Follower(tmp_path / "follower")
    follower.replica.begin(5)
    return follower


def test_a_replica_has_the_same_bytes_in_the_same_topics(
    primary: Primary, follower: Follower
) -> None:
    primary.create("a", msgspec.structs.replace(OS, partitions=2))
    primary.create("b", FSYNC)
    for i in range(60):
        primary.publish("a", i % 2, count=1 + i % 3)
        primary.publish("b", size=i)
        follower.replica.apply(primary.frame())
    follower.settle()
    assert follower.replica.written == follower.replica.synced == 60
    assert follower.moves
    check_equal(primary, follower)
    follower.reopen()
    check_equal(primary, follower)
    assert follower.log("a").epochs == primary.log("a").epochs
    follower.replica.close()
    primary.close()


def test_written_is_said_at_once_and_synced_when_all_before_it_is_durable(
    primary: Primary, follower: Follower
) -> None:
    primary.create("a", OS)
    primary.create("b", FSYNC)
    primary.publish("a")
    follower.replica.apply(primary.frame())
    assert (follower.replica.written, follower.replica.synced) == (1, 1)
    primary.publish("b")
    follower.replica.apply(primary.frame())
    primary.publish("a")
    follower.replica.apply(primary.frame())
    # The sync may be done, but the loop has not heard of it.
    assert (follower.replica.written, follower.replica.synced) == (3, 1)
    follower.settle()
    assert (follower.replica.written, follower.replica.synced) == (3, 3)


def test_the_newest_position_that_need_not_be_synced_is_known(
    primary: Primary, follower: Follower
) -> None:
    primary.create("a", OS)
    primary.create("b", FSYNC)
    found: list[int] = []
    for names in ("a", "b", "ba", "b", ""):
        for name in names:
            primary.publish(name)
        follower.replica.apply(primary.frame())
        found.append(follower.replica.unsynced_position)
    assert found == [1, 1, 3, 3, 5]


def test_repeated_pieces_are_taken_once(primary: Primary, follower: Follower) -> None:
    primary.create("t", FSYNC)
    for _ in range(5):
        primary.publish()
    frame = primary.frame()
    follower.replica.apply(frame)
    follower.replica.apply(frame)
    primary.publish()
    last = primary.frame()
    # One piece, of which the log has the first part.
    joined = frame.pieces[-1]._replace(
        next=last.pieces[0].next,
        data=bytes(frame.pieces[-1].data) + bytes(last.pieces[0].data),
    )
    follower.replica.apply(last._replace(pieces=[joined]))
    follower.settle()
    check_equal(primary, follower)


def test_a_repeated_batch_that_is_another_one_is_refused(
    primary: Primary, follower: Follower, tmp_path: Path
) -> None:
    primary.create()
    primary.publish(size=10)
    follower.replica.apply(primary.frame())
    other = Primary(tmp_path / "other", 5)
    other.create()
    other.publish(size=11)
    with pytest.raises(ProtocolError, match="another batch at 0"):
        follower.replica.apply(other.frame())


@pytest.mark.parametrize("at", [20, 100])
def test_a_damaged_piece_is_refused_and_nothing_after_it_is_taken(
    primary: Primary, follower: Follower, at: int
) -> None:
    primary.create("a")
    primary.create("b")
    follower.replica.apply(primary.frame())
    primary.publish("a")
    primary.publish("a")
    primary.publish("b")
    frame = primary.frame()
    data = bytearray(frame.pieces[1].data)
    data[at] ^= 1
    pieces = [frame.pieces[0], frame.pieces[1]._replace(data=bytes(data)), frame.pieces[2]]
    with pytest.raises(ChecksumError, match="is damaged at offset 1"):
        follower.replica.apply(frame._replace(pieces=pieces))
    assert follower.log("a").end_offset == 1
    assert follower.log("b").end_offset == 0
    assert follower.replica.written == 1
    with pytest.raises(ChecksumError):
        follower.replica.apply(frame)
    primary.bring_level(follower)
    check_equal(primary, follower)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_piece_that_leaves_a_hole_is_refused_unless_the_follower_catches_up(
    primary: Primary, follower: Follower, missing: int
) -> None:
    primary.create("t", FSYNC)
    for _ in range(4):
        primary.publish()
    frame = primary.frame()
    pieces = [*frame.pieces[:missing], *frame.pieces[missing + 1 :]]
    with pytest.raises(ProtocolError, match=f"ends at {missing}; the piece begins at"):
        follower.replica.apply(frame._replace(pieces=pieces))
    follower.replica.begin(5)
    follower.replica.apply(frame._replace(pieces=pieces, position=0))
    follower.settle()
    for _ in range(2):
        log = follower.log()
        assert log.end_offset == 4
        assert [(d.first, d.next) for d in log.damaged] == [(missing, missing + 1)]
        found = list(log.read(missing + 1, 4).data)
        assert found
        follower.reopen()
        follower.replica.begin(5)


def test_epochs_never_fall_and_frames_of_another_reign_are_refused(
    primary: Primary, follower: Follower, tmp_path: Path
) -> None:
    primary.create()
    primary.publish()
    frame = primary.frame()
    with pytest.raises(ProtocolError, match="has epoch 4, not 5"):
        follower.replica.apply(frame._replace(epoch=4))
    follower.replica.begin(5)
    follower.replica.apply(frame)
    older = Primary(tmp_path / "older", 3)
    older.create()
    older.publish()
    older.publish()
    frame = older.frame()
    late = frame._replace(epoch=5, events=(), pieces=frame.pieces[1:])
    with pytest.raises(ProtocolError, match="has epoch 3; it follows epoch 5"):
        follower.replica.apply(late)
    with pytest.raises(ProtocolError, match="is over"):
        follower.replica.begin(4)
    follower.replica.begin(6)
    assert follower.replica.written == 0
    follower.reopen()
    assert follower.replica.newest_epoch == 6


def test_topics_change_and_go_as_the_primary_says(primary: Primary, follower: Follower) -> None:
    first = primary.create("t", OS)
    primary.publish()
    follower.replica.apply(primary.frame())
    wider = msgspec.structs.replace(OS, partitions=3, retention_seconds=77)
    primary.store.update(first, wider)
    primary.events.append(ReplicaEvent(first.number, "t", wider))
    primary.publish("t", 2)
    follower.replica.apply(primary.frame())
    check_equal(primary, follower)
    primary.store.delete(first)
    primary.events.append(ReplicaEvent(first.number, deleted=True))
    second = primary.create("t", FSYNC)
    primary.publish()
    follower.replica.apply(primary.frame())
    assert second.number != first.number
    follower.settle()
    check_equal(primary, follower)
    follower.reopen()
    check_equal(primary, follower)


def test_durability_rises_as_the_primary_says(primary: Primary, follower: Follower) -> None:
    topic = primary.create("t", OS)
    primary.publish()
    follower.replica.apply(primary.frame())
    primary.events.append(ReplicaEvent(topic.number, "t", FSYNC))
    primary.publish()
    follower.replica.apply(primary.frame())
    assert follower.replica.synced == 1
    follower.settle()
    assert follower.replica.synced == 2
    assert follower.topics["t"].settings == FSYNC
    follower.reopen()
    assert follower.batches() == primary.batches()


def test_a_log_begins_where_the_primary_says(primary: Primary, follower: Follower) -> None:
    topic = primary.create("t", FSYNC)
    for _ in range(200):
        primary.publish()
    follower.replica.apply(primary.frame())
    primary.log().delete_before(150)
    primary.events.append(ReplicaEvent(topic.number, partition=0, start=150))
    follower.replica.apply(primary.frame())
    follower.settle()
    assert follower.log().start_offset == 150
    # Past its end: what is between is gone on the primary.
    primary.events.append(ReplicaEvent(topic.number, partition=0, start=250))
    follower.replica.apply(primary.frame())
    for _ in range(2):
        assert (follower.log().start_offset, follower.log().end_offset) == (250, 250)
        assert follower.log().damaged == []
        follower.reopen()


def test_topics_in_memory_are_not_copied(primary: Primary, follower: Follower) -> None:
    event = ReplicaEvent(3, "m", TopicSettings(durability="memory"))
    follower.replica.apply(Replicated(5, 1, 0, 0, 0, [event], []))
    assert follower.topics == {}


def test_a_full_disk_stops_the_replica_and_it_goes_on_where_it_was(
    primary: Primary, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.create("t", FSYNC)
    primary.publish()
    follower.replica.apply(primary.frame())
    follower.settle()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    primary.publish()
    frame = primary.frame()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(DiskFullError):
            follower.replica.apply(frame)
    primary.publish()
    with pytest.raises(DiskFullError):
        follower.replica.apply(primary.frame())
    assert (follower.replica.written, follower.replica.synced) == (1, 1)
    follower.replica.tick()
    primary.bring_level(follower)
    assert follower.replica.synced == primary.position
    check_equal(primary, follower)


def test_a_failed_sync_is_never_acknowledged(
    primary: Primary, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.create("t", FSYNC)
    follower.replica.apply(primary.frame())
    primary.publish()

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        follower.replica.apply(primary.frame())
        follower.settle()
    assert isinstance(follower.replica.failure, LogFailedError)
    assert follower.replica.synced == 1
    follower.replica.begin(5)
    primary.publish()
    with pytest.raises(FanlogError):
        follower.replica.apply(primary.frame())
    # A restart reads what the disk has, and the journal.
    follower.replica.close()
    follower.replica.open()
    primary.bring_level(follower)
    check_equal(primary, follower)


def test_nothing_is_taken_before_there_is_a_journal_for_it(
    primary: Primary, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.create("t", FSYNC)
    primary.publish()
    frame = primary.frame()
    full = OSError(errno.ENOSPC, "full")

    def no_room(store: LogStore) -> Journal:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(LogStore, "get_journal", no_room)
        with pytest.raises(DiskFullError):
            follower.replica.apply(frame)
    assert not follower.replica.ends()
    follower.replica.begin(5)
    follower.replica.apply(frame)
    follower.settle()
    assert (follower.replica.written, follower.replica.synced) == (1, 1)


def followed(primary: Primary, follower: Follower) -> None:
    """Compares the follower with a primary, and copies nothing yet."""
    answer = Followed(primary.epoch, *primary.store.history)
    asyncio.run(follower.replica.adopt(answer, primary.topics))


def test_a_copy_that_lacks_a_topic_of_its_primary_is_not_whole(
    primary: Primary, follower: Follower
) -> None:
    topic = primary.create("t", FSYNC)
    primary.publish()
    primary.bring_level(follower)
    follower.incomplete = False
    # A primary that fell deletes the topic here, and the next one has never heard of it.
    follower.replica.apply(
        Replicated(5, 2, 0, 0, 0, [ReplicaEvent(topic.number, deleted=True)], [])
    )
    follower.settle()
    assert not follower.incomplete
    primary.store.raise_epoch(6)
    followed(primary, follower)
    assert follower.incomplete
    assert (follower.replica.written, follower.replica.synced) == (0, 0)
    primary.bring_level(follower)
    assert follower.replica.synced == primary.position
    check_equal(primary, follower)


@pytest.mark.parametrize("live", [False, True])
def test_after_a_power_cut_a_topic_has_no_records_of_one_that_had_its_number(
    primary: Primary, follower: Follower, tmp_path: Path, *, live: bool
) -> None:
    """The simulation found it: what the journal has of the first one came back."""
    primary.create("t", FSYNC)
    primary.publish(size=10)
    primary.bring_level(follower)
    # A primary that never had this topic uses its number.
    other = Primary(tmp_path / "other", 6)
    other.store.adopt_history(*primary.store.history)
    if live:
        other.bring_level(follower)
        other.create("u", FSYNC)
        with pytest.raises(ProtocolError, match="number 1 was used here"):
            follower.replica.apply(other.frame())
    else:
        other.create("u", FSYNC)
    other.bring_level(follower)
    other.publish("u", size=1000)
    follower.replica.apply(other.frame())
    follower.settle()
    after = tmp_path / "after"
    shutil.copytree(follower.folder, after)
    (file,) = after.glob("topics/*-u/0/*.log")
    file.write_bytes(b"")
    check_equal(other, Follower(after))


def test_a_copy_stays_whole_when_topics_were_created_while_it_was_away(
    primary: Primary, follower: Follower
) -> None:
    primary.create("a", FSYNC)
    primary.publish("a")
    primary.bring_level(follower)
    follower.incomplete = False
    primary.create("b", FSYNC)
    primary.publish("b")
    primary.bring_level(follower)
    assert not follower.incomplete
    check_equal(primary, follower)


def test_a_log_that_begins_after_its_primarys_is_copied_again(
    primary: Primary, follower: Follower
) -> None:
    topic = primary.create("t", FSYNC)
    for _ in range(20):
        primary.publish()
    primary.bring_level(follower)
    follower.incomplete = False
    # A primary that fell deletes records here, and the next one has never heard of it.
    start = ReplicaEvent(topic.number, partition=0, start=15)
    follower.replica.apply(Replicated(5, 2, 0, 0, 0, [start], []))
    follower.settle()
    assert follower.log().start_offset == 15
    assert not follower.incomplete
    primary.store.raise_epoch(6)
    followed(primary, follower)
    assert follower.incomplete
    primary.bring_level(follower)
    check_equal(primary, follower)
    follower.incomplete = False
    primary.bring_level(follower)
    assert not follower.incomplete


async def lose_patience(ended: asyncio.Future[Exception | None]) -> None:
    await ended
    raise asyncio.CancelledError


@pytest.mark.parametrize("left_bytes", [0, None])
def test_what_a_power_cut_has_taken_from_the_middle_of_a_log_is_copied_again(
    primary: Primary,
    follower: Follower,
    left_bytes: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest segment is whole: the log ends where it did, and lacks what it acknowledged."""
    primary.create("t", OS)
    primary.bring_level(follower)
    follower.log().settings = msgspec.structs.replace(OS, segment_bytes=4 * KIB)
    for _ in range(300):
        primary.publish(size=1000)
        follower.replica.apply(primary.frame())
    follower.replica.close(clean=False)
    file = sorted(follower.folder.glob("topics/*-t/0/*.log"))[1]
    file.write_bytes(bytes(file.stat().st_size if left_bytes is None else left_bytes))
    found: list[bool] = []
    follower.begin_anew(suspect=True, searched=lambda: found.append(True))
    # The first connection does not wait for it.
    monkeypatch.setattr(replica, "_outlast", lose_patience)
    with pytest.raises(asyncio.CancelledError):
        primary.bring_level(follower)
    monkeypatch.undo()
    primary.bring_level(follower)
    assert follower.incomplete
    assert found == [True]
    check_equal(primary, follower)
    # Once is enough.
    primary.bring_level(follower)
    assert found == [True]


def test_a_log_whose_last_records_nobody_has_continues_after_them(
    primary: Primary, follower: Follower
) -> None:
    primary.create("t", OS)
    primary.publish()
    primary.bring_level(follower)
    primary.log().leave_out(9)
    log = primary.log()
    gap = ReplicaPiece(*log.owner, 9, 9, b"")
    with pytest.raises(ProtocolError, match="ends at 1"):
        # On a follower that is level nothing can be missing.
        follower.replica.apply(Replicated(5, 2, 0, 0, 0, [], [gap]))
    follower.replica.begin(5)
    follower.replica.apply(Replicated(5, 0, 0, 0, 0, [], [gap]))
    assert follower.log().end_offset == 9
    primary.publish()
    follower.replica.apply(primary.frame())
    assert list(read_batches(follower.log(), 9)) == list(read_batches(primary.log(), 9))
    with pytest.raises(DamagedError, match="Records 1 to 8 can't be read"):
        follower.batches()
