"""No file descriptor, or no memory, for a moment: nothing is failed by it, nothing is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanlog.config import LogOptions
from fanlog.errors import FanlogError, LogFailedError, OutOfResourcesError
from fanlog.log.disk import DiskLog
from fanlog.log.files import SyncError
from fanlog.log.group_commit import GroupCommit
from fanlog.log.partition import PartitionLog
from fanlog.log.retrying import Retry
from fanlog.log.store import LogStore
from fanlog.model import KIB, MIB, TopicSettings
from tests.log.pieces import OPTIONS, append, fill, make_batch, open_log, read_batches

TEMPORARY = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]
FSYNC = TopicSettings(durability="fsync", partitions=2, segment_bytes=64 * KIB)
SMALL_JOURNAL = LogOptions(journal_bytes=1 * MIB)


class Shortage:
    """Makes calls of `os` fail with a number: those that `chosen` says, so many times."""

    def __init__(self, call: str, number: int, times: int, chosen: Callable[..., bool]) -> None:
        self._real = getattr(os, call)
        self._call = call
        self._number = number
        self._chosen = chosen
        self.left = times

    def __call__(self, *args: Any, **given: Any) -> Any:
        if self.left and self._chosen(*args):
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._real(*args, **given)

    def install(self, patched: pytest.MonkeyPatch) -> Shortage:
        patched.setattr(os, self._call, self)
        return self


def of_segments(path: object, *_: object) -> bool:
    return str(path).endswith(".log")


def disk_of(log: PartitionLog) -> DiskLog:
    assert log._disk is not None
    return log._disk


@pytest.mark.parametrize("number", TEMPORARY)
@pytest.mark.parametrize("call", ["open", "pwrite", "posix_fallocate"])
def test_a_piece_is_turned_away_with_its_own_error_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 3)
    for turn in range(40):
        # Its file was closed meanwhile, so that it is opened anew.
        disk_of(log).shared.pool.close(disk_of(log))
        before = (log.end_offset, log.bytes)
        batch = make_batch(log.end_offset, size=3000, time_us=5000 + turn)
        with monkeypatch.context() as patched:
            shortage = Shortage(call, number, 1, lambda *_: True).install(patched)
            try:
                append(log, batch)
            except OutOfResourcesError as error:
                assert errno.errorcode[number] in str(error)  # noqa: PT017 - it may pass as well
                assert "try again" in str(error)  # noqa: PT017
                assert "writable" not in str(error)  # noqa: PT017
                assert (log.end_offset, log.bytes) == before
                append(log, batch)
            assert shortage.left == 0 or call == "posix_fallocate"
        samples.append(batch)
        assert log.failure is None
    assert log.segment_count > 1
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()
    log = open_log(tmp_path)
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_the_pool_gives_up_all_its_descriptors_before_a_piece_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    topic = store.create("t", TopicSettings(partitions=8))
    for log in topic.logs:
        append(log, make_batch(0, owner=log.owner))
    late = topic.logs[0]
    disk_of(late).shared.pool.close(disk_of(late))

    # What 7 others hold is given up in steps: 7, 3, 1, 0.
    shortage = Shortage("open", errno.EMFILE, 3, of_segments).install(monkeypatch)
    append(late, make_batch(1, owner=late.owner))
    assert shortage.left == 0
    assert [disk_of(log).fd >= 0 for log in topic.logs] == [True] + [False] * 7
    store.close()


def noted_syncs(patched: pytest.MonkeyPatch) -> list[str]:
    """The files that are synced from now on, in order."""
    synced: list[str] = []

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            real(fd)
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))

        return sync

    patched.setattr(os, "fdatasync", noting(os.fdatasync))
    patched.setattr(os, "fsync", noting(os.fsync))
    return synced


@pytest.mark.parametrize("number", TEMPORARY)
def test_a_sync_that_could_not_open_a_file_is_whole_when_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """However many files could be opened before: the next sync leaves none of them out."""
    # Five segments, the log's folder, and the one above it.
    for opened in range(7):
        log = open_log(tmp_path / str(opened), FSYNC)
        fill(log, 60, size=5000)
        assert log.segment_count == 5
        files = {f"{tmp_path}/{opened}/{name}" for name in os.listdir(tmp_path / str(opened))}
        files = {file for file in files if file.endswith(".log")}
        seen: list[object] = []

        def past(*args: object, opened: int = opened, seen: list[object] = seen) -> bool:
            seen.append(args)
            return len(seen) > opened

        with monkeypatch.context() as patched:
            Shortage("open", number, 1, past).install(patched)
            with pytest.raises(OSError, match=os.strerror(number)):
                log.sync()
        with monkeypatch.context() as patched:
            synced = noted_syncs(patched)
            log.sync()
        assert set(synced) >= files
        assert disk_of(log).unsynced == []
        assert not disk_of(log).unsynced_folders
        log.close()


class Bench:
    """A store whose journal is soon full, and its group commit."""

    def __init__(self, folder: Path, options: LogOptions = SMALL_JOURNAL) -> None:
        self.store = LogStore(folder, options)
        self.store.open()
        self.topic = self.store.create("t", FSYNC)
        self.commit = GroupCommit(self.store.get_journal(), lambda callback: None)
        self.told: list[FanlogError | None] = []

    def publish(self, size: int) -> None:
        for log in self.topic.logs:
            batch = make_batch(log.end_offset, size=size, owner=log.owner)
            append(log, batch)
            self.commit.add(log, batch.data, self.told.append)
        self.commit.kick()
        running = self.commit._running
        assert running is not None
        # As the loop would: without the hurry of a stop.
        with running.written:
            pass
        self.commit._complete(running)

    def close(self) -> None:
        self.commit.close()
        self.store.close()


@pytest.mark.parametrize("number", TEMPORARY)
@pytest.mark.parametrize("size", [200 * KIB, 2 * MIB], ids=["checkpoint", "past the journal"])
def test_a_group_commit_waits_for_descriptors_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, number: int
) -> None:
    bench = Bench(tmp_path)
    bench.publish(10)
    with monkeypatch.context() as patched:
        shortage = Shortage("open", number, 6, of_syncs).install(patched)
        synced = noted_syncs(patched)
        for _ in range(12):
            bench.publish(size)
        assert shortage.left == 0
    assert bench.told == [None] * 26
    assert bench.commit.failure is None
    assert all(log.failure is None for log in bench.topic.logs)
    assert any(path.endswith(".log") for path in synced)
    bench.close()


def of_syncs(path: object, flags: int, *_: object) -> bool:
    """A file opened to be synced: one that is written to is created, or kept open."""
    return str(path).endswith(".log") and not flags & os.O_CREAT


def test_the_journal_itself_may_lack_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    with monkeypatch.context() as patched:
        Shortage("pwritev", errno.ENOMEM, 3, lambda *_: True).install(patched)
        for _ in range(5):
            bench.publish(1000)
    assert bench.told == [None] * 10
    bench.close()
    store = LogStore(tmp_path, SMALL_JOURNAL)
    (topic,) = store.open()
    assert [log.end_offset for log in topic.logs] == [5, 5]
    store.close()


def test_a_stop_does_not_wait_for_descriptors_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.store.get_journal().retry = Retry(tries_in_a_hurry=1)
    log = bench.topic.logs[0]
    batch = make_batch(0, size=2 * MIB, owner=log.owner)
    append(log, batch)
    bench.commit.add(log, batch.data, bench.told.append)
    with monkeypatch.context() as patched:
        Shortage("open", errno.EMFILE, -1, of_syncs).install(patched)
        bench.commit.drain()
    (error,) = bench.told
    assert isinstance(error, LogFailedError)
    assert "ulimit -n" in str(error)
    bench.close()


@pytest.mark.parametrize("number", [*TEMPORARY, errno.ENOSPC, errno.EIO])
def test_a_failed_sync_is_final_whatever_its_number_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel tells of a lost write only once: the next sync would succeed."""
    log = open_log(tmp_path / "log", FSYNC)
    fill(log, 3)
    with monkeypatch.context() as patched:
        Shortage("fdatasync", number, 1, lambda *_: True).install(patched)
        with pytest.raises(SyncError):
            log.sync()
    log.close()
    bench = Bench(tmp_path / "store")

    def broken(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    bench.commit._sync = broken
    bench.publish(10)
    assert all(isinstance(error, LogFailedError) for error in bench.told)
    assert isinstance(bench.commit.failure, LogFailedError)
    bench.close()


def test_a_read_says_that_it_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 3)
    with monkeypatch.context() as patched:
        Shortage("open", errno.EMFILE, 1, of_segments).install(patched)
        with pytest.raises(OutOfResourcesError, match=r"Reading .* \(ulimit -n\)"):
            log.read(0, 3)
    assert log.failure is None
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


@pytest.mark.parametrize("number", TEMPORARY)
def test_a_topic_that_could_not_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    store.create("first", TopicSettings())
    with monkeypatch.context() as patched:
        # Whoever cleans up has no descriptor either.
        Shortage("open", number, -1, lambda *_: True).install(patched)
        with pytest.raises(OutOfResourcesError, match="try again"):
            store.create("second", TopicSettings())
    assert len(os.listdir(tmp_path / "topics")) == 1
    store.create("second", TopicSettings())
    store.close()
