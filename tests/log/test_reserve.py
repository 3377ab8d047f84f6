"""The reserve of disk space: who may use it, and when it is back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fanlog.errors import DiskFullError, InvalidArgumentError
from fanlog.log.files import SyncError
from fanlog.log.reserve import Reserve
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import OPTIONS, append, make_batch

SIZE = 256 * KIB


class Work:
    """Work that finds no room so many times."""

    def __init__(self, times: int, fault: type[OSError] = OSError) -> None:
        self.left = times
        self._fault = fault

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise self._fault(errno.ENOSPC, "full")
        return "done"


@pytest.fixture
def reserve(tmp_path: Path) -> Reserve:
    reserve = Reserve(f"{tmp_path}/reserve", SIZE)
    assert reserve.refill()
    return reserve


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def no_allocation(fd: int, at: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "full")


def only_below(limit: int) -> Callable[[int, int, int], None]:
    real = os.posix_fallocate

    def allocate(fd: int, at: int, size: int) -> None:
        if at + size > limit:
            raise OSError(errno.ENOSPC, "full")
        real(fd, at, size)

    return allocate


def test_the_reserve_has_its_space_for_real(reserve: Reserve, tmp_path: Path) -> None:
    assert allocated(tmp_path / "reserve") >= SIZE
    reserve.release()
    assert allocated(tmp_path / "reserve") == 0
    assert reserve.refill()
    assert allocated(tmp_path / "reserve") >= SIZE


def test_what_frees_space_is_done_with_the_reserve_on_a_full_disk(reserve: Reserve) -> None:
    assert reserve.spend(Work(0)) == "done"
    assert not reserve.full
    assert reserve.spend(Work(1)) == "done"
    assert reserve.full
    assert "fanlog topic truncate" in reserve.problem()
    # There was room for it at once.
    assert not reserve.spent
    with pytest.raises(OSError, match="full"):
        reserve.spend(Work(2))


def test_a_failed_sync_is_no_full_disk(reserve: Reserve) -> None:
    with pytest.raises(SyncError):
        reserve.spend(Work(1, SyncError))
    assert not reserve.full


def test_nobody_may_publish_while_the_reserve_is_not_whole(
    reserve: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", only_below(SIZE // 2))
        reserve.spend(Work(1))
        assert reserve.spent
        # As much as there is stays out of others' reach.
        assert allocated(tmp_path / "reserve") == SIZE // 2
        with pytest.raises(DiskFullError, match="fanlog topic alter"):
            reserve.check("x")
        reserve.look_for_room()
        assert reserve.full
    reserve.look_for_room()
    assert not reserve.full
    reserve.check("x")
    assert [path.name for path in tmp_path.iterdir()] == ["reserve"]


def test_a_whole_reserve_alone_is_no_room(
    reserve: Reserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve.note_full()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_allocation)
        reserve.look_for_room()
    assert reserve.full
    reserve.check("x")
    reserve.look_for_room()
    assert not reserve.full


def test_it_is_said_once_that_the_disk_is_full_and_once_that_it_is_not(
    reserve: Reserve, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        for _ in range(5):
            reserve.note_full()
        reserve.look_for_room()
        reserve.look_for_room()
    assert [
        ("is full" in r.getMessage(), "room again" in r.getMessage()) for r in caplog.records
    ] == [
        (True, False),
        (False, True),
    ] * 2


def test_without_a_reserve_a_full_disk_is_still_noticed(tmp_path: Path) -> None:
    reserve = Reserve(f"{tmp_path}/reserve", 0)
    assert reserve.refill()
    reserve.note_full()
    assert reserve.problem()
    with pytest.raises(OSError, match="full"):
        reserve.spend(Work(2))
    assert not reserve.spent
    reserve.look_for_room()
    assert not reserve.problem()
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_reserve_is_spent_takes_no_messages_and_no_topics_but_frees_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    topic = store.create("t", TopicSettings())
    log = topic.logs[0]
    append(log, make_batch(0, owner=log.owner))
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_allocation)
        store.reserve.release()
        assert not store.reserve.refill()
        with pytest.raises(DiskFullError):
            append(log, make_batch(1, owner=log.owner))
        with pytest.raises(DiskFullError):
            store.create("u", TopicSettings())
        with pytest.raises(InvalidArgumentError):
            store.update(topic, TopicSettings(durability="fsync"))
        store.update(topic, TopicSettings(retention_seconds=1))
        assert log.delete_before(1) == 1
        store.delete(topic)
    store.close()
    store = LogStore(tmp_path, OPTIONS)
    assert store.open() == []
    assert not store.reserve.spent
    store.close()


def test_a_start_without_room_for_the_reserve_says_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_allocation)
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    assert store.reserve.spent
    assert any("the disk is full" in problem for problem in store.problems)
    store.close()


def test_threads_that_find_the_same_say_it_once(
    reserve: Reserve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    together = Barrier(2)

    def has_room() -> bool:
        together.wait(60)
        return True

    monkeypatch.setattr(reserve, "_has_room", has_room)
    with ThreadPoolExecutor(2) as threads:
        reserve.note_full()
        for done in [threads.submit(reserve.look_for_room) for _ in range(2)]:
            done.result(60)
    said = [record.getMessage() for record in caplog.records if "The disk of" in record.msg]
    assert ["is full" in said[0], "has room again" in said[1]] == [True, True]
    assert len(said) == 2
