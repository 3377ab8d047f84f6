"""A follower makes its logs begin as its primary's do, whatever it had: with real files."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fanlog.errors import FolderUnusableError, ProtocolError
from fanlog.format.replication import Followed
from fanlog.model import TopicSettings
from tests.cluster.replicas import FSYNC, OS, Follower, Loop, Primary, check_equal
from tests.log.compacting import compact, put


def promoted(follower: Follower, epoch: int) -> Primary:
    """The follower's folder, as that of a primary."""
    follower.replica.close()
    primary = Primary(follower.folder, epoch)
    assert primary.epoch == epoch
    return primary


@pytest.mark.parametrize("settings", [OS, FSYNC])
def test_what_a_follower_had_beyond_the_new_primary_is_cut(
    tmp_path: Path, settings: TopicSettings
) -> None:
    first = Primary(tmp_path / "a", 1)
    first.create("t", settings)
    for _ in range(50):
        first.publish()
    near, far = Follower(tmp_path / "b"), Follower(tmp_path / "c")
    first.bring_level(near)
    for _ in range(50):
        first.publish()
    first.bring_level(far)
    first.close()
    second = promoted(near, 2)
    for _ in range(3):
        second.publish(size=7)
    assert not far.incomplete
    second.bring_level(far)
    assert far.incomplete
    check_equal(second, far)
    assert far.log().epochs == second.log().epochs == ((1, 0), (2, 50))
    old = Follower(tmp_path / "a")
    second.bring_level(old)
    check_equal(second, old)
    assert old.replica._store.problems == []  # pyright: ignore[reportPrivateUsage]
    for follower in (far, old):
        follower.reopen()
        assert follower.log().damaged == []
        check_equal(second, follower)
        again = promoted(follower, 3)
        again.publish()
        again.close()


@pytest.mark.parametrize("same_process", [False, True])
def test_an_interrupted_cut_is_finished_by_any_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, same_process: bool
) -> None:
    first = Primary(tmp_path / "a", 1)
    first.create()
    for _ in range(100):
        first.publish()
    follower = Follower(tmp_path / "b")
    first.bring_level(follower)
    first.close()
    shutil.rmtree(tmp_path / "a" / "topics" / "1-t" / "0")
    (tmp_path / "a" / "clean").unlink()
    emptied = Primary(tmp_path / "a", 1)

    def crash(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("fanlog.log.cutting._begin_anew", crash)
        with pytest.raises(FolderUnusableError):
            emptied.bring_level(follower)
    assert (follower.folder / "cuts.json").exists()
    assert follower.incomplete
    if same_process:
        again = follower
    else:
        again = Follower(follower.folder)
        assert again.log().end_offset == 0
        assert not (follower.folder / "cuts.json").exists()
    emptied.publish(size=3)
    emptied.bring_level(again)
    check_equal(emptied, again)
    assert not (follower.folder / "cuts.json").exists()


@pytest.mark.parametrize("settings", [OS, FSYNC])
def test_a_log_whose_begin_is_gone_on_the_primary_is_copied_from_there(
    tmp_path: Path, settings: TopicSettings
) -> None:
    primary = Primary(tmp_path / "a", 1)
    primary.create("t", settings)
    for _ in range(40):
        primary.publish()
    behind, ahead = Follower(tmp_path / "b"), Follower(tmp_path / "c")
    primary.bring_level(behind)
    for _ in range(100):
        primary.publish()
    primary.bring_level(ahead)
    primary.log().delete_before(100)
    late = Follower(tmp_path / "d")
    for follower in (behind, ahead, late):
        primary.bring_level(follower)
        check_equal(primary, follower)
        follower.reopen()
        assert follower.log().damaged == []
        check_equal(primary, follower)


def test_a_log_that_lacks_what_is_compacted_is_copied_anew(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "a", 1)
    log = primary.create("t", OS).logs[0]
    for i in range(50):
        put(log, (b"%d" % (i % 5), b"v" * 100), owner=log.owner, time_us=i, epoch=1)
    follower = Follower(tmp_path / "b")
    primary.bring_level(follower)
    for i in range(50, 150):
        value = None if i < 60 else b"v" * 100
        put(log, (b"%d" % (i % 5), value), owner=log.owner, time_us=i, epoch=1)
    compact(log)
    primary.bring_level(follower)
    check_equal(primary, follower)
    follower.reopen()
    check_equal(primary, follower)
    # It is level: what is compacted next does not matter to it.
    follower.incomplete = False
    primary.bring_level(follower)
    assert not follower.incomplete


def test_damage_is_repaired_from_the_primary(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "a", 1)
    primary.create("t", OS)
    for _ in range(100):
        primary.publish()
    follower = Follower(tmp_path / "b")
    primary.bring_level(follower)
    follower.replica.close()
    path = max((tmp_path / "b" / "topics" / "1-t" / "0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    (tmp_path / "b" / "clean").unlink()
    follower.replica.open()
    assert follower.log().damaged
    primary.bring_level(follower)
    assert follower.log().damaged == []
    check_equal(primary, follower)


def test_a_folder_with_another_history_is_copied_anew(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "a", 5)
    primary.create("t")
    primary.publish(size=1)
    # The same numbers and epochs, and other records.
    other = Primary(tmp_path / "b", 5)
    other.create("t")
    other.publish(size=2)
    other.create("u")
    other.close()
    follower = Follower(tmp_path / "b")
    primary.bring_level(follower)
    assert follower.incomplete
    check_equal(primary, follower)
    assert follower.replica.history == primary.store.history
    follower.reopen()
    check_equal(primary, follower)


def test_topics_with_one_name_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "a", 1)
    topic = primary.create("t", FSYNC)
    primary.publish()
    follower = Follower(tmp_path / "b")
    primary.bring_level(follower)
    primary.store.delete(topic)
    primary.create("t", msgspec.structs.replace(OS, partitions=2))
    primary.publish("t", 1)
    primary.bring_level(follower)
    check_equal(primary, follower)
    follower.reopen()
    check_equal(primary, follower)
    # The next number that it gives is above all of them.
    own = promoted(follower, 2)
    assert own.create("u").number > max(t.number for t in primary.store.topics)
    own.close()


def test_a_topic_that_could_not_be_opened_is_copied_again(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "a", 1)
    primary.create("t", FSYNC)
    for _ in range(5):
        primary.publish()
    follower = Follower(tmp_path / "b")
    primary.bring_level(follower)
    follower.replica.close()
    for path in (tmp_path / "b" / "topics" / "1-t").glob("topic.json*"):
        path.unlink()
    follower.replica.open()
    assert follower.topics == {}
    primary.bring_level(follower)
    check_equal(primary, follower)
    follower.reopen()
    check_equal(primary, follower)


def test_a_primary_of_an_older_epoch_is_refused(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "b")
    follower.replica.begin(7)
    with pytest.raises(ProtocolError, match="is over"):
        asyncio.run(follower.replica.adopt(Followed(6), []))


def test_a_damaged_list_of_cuts_stops_the_start(tmp_path: Path) -> None:
    Primary(tmp_path / "a", 1).close()
    (tmp_path / "a" / "cuts.json").write_text("{")
    with pytest.raises(FolderUnusableError, match="can't be completed"):
        Primary(tmp_path / "a", 2)


def test_a_cancelled_adoption_ends_its_cut_before_anything_else_is_done(tmp_path: Path) -> None:
    first = Primary(tmp_path / "a", 1)
    first.create()
    for _ in range(10):
        first.publish()
    near, far = Follower(tmp_path / "b"), Follower(tmp_path / "c")
    first.bring_level(near)
    first.publish()
    first.bring_level(far)
    first.close()
    second = promoted(near, 2)
    second.publish(size=7)

    async def cancel() -> None:
        begun: list[Callable[[], None]] = []
        far.loop.in_background = lambda work, done: begun.append(  # type: ignore[method-assign]
            lambda: Loop.in_background(far.loop, work, done)
        )
        followed = Followed(second.epoch, *second.store.history)
        adopting = asyncio.create_task(far.replica.adopt(followed, second.topics))
        while not begun:  # noqa: ASYNC110 - it has nobody to wake
            await asyncio.sleep(0)
        for _ in range(2):
            adopting.cancel()
            await asyncio.sleep(0)
            assert not adopting.done(), "a thread is at work in the folder"
        begun.pop()()
        with pytest.raises(asyncio.CancelledError):
            await adopting
        del far.loop.in_background

    asyncio.run(cancel())
    assert far.incomplete
    # It is open, and can be followed again.
    second.bring_level(far)
    check_equal(second, far)
    far.reopen()
    check_equal(second, far)
