"""Group commit: who is told what, when, in which order, and what a failed sync does."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fanlog.errors import FanlogError, LogFailedError
from fanlog.log.group_commit import GroupCommit
from fanlog.log.partition import PartitionLog
from fanlog.log.store import LogStore
from fanlog.model import TopicSettings
from tests.log.pieces import OPTIONS, append, make_batch

FSYNC = TopicSettings(durability="fsync", partitions=4)
PATIENCE_SECONDS = 60


class Loop:
    """Stands for the event loop: callables posted to it run when the test says so."""

    def __init__(self) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, callback: Callable[[], None]) -> None:
        self.posted.put(callback)

    def turn(self) -> None:
        self.posted.get(timeout=PATIENCE_SECONDS)()

    @property
    def is_idle(self) -> bool:
        return self.posted.empty()


class Disk:
    """An fdatasync that can be held up, and made to fail."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, fd: int) -> None:
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.fails:
            raise OSError(errno.EIO, "broken")
        os.fdatasync(fd)
        self.count += 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    yield store
    store.close()


class Bench:
    """Logs, a commit, and what the publishers were told, in order."""

    def __init__(self, store: LogStore) -> None:
        self.loop = Loop()
        self.disk = Disk()
        self.logs = store.create("t", FSYNC).logs
        self.commit = GroupCommit(store.get_journal(), self.loop.post, self.disk.sync)
        self.told: list[tuple[str, FanlogError | None]] = []

    def publish(self, name: str, log: PartitionLog | None = None) -> None:
        log = log or self.logs[0]
        batch = make_batch(log.end_offset, owner=log.owner)
        append(log, batch)
        self.commit.add(log, batch.data, lambda error: self.told.append((name, error)))

    @property
    def acknowledged(self) -> str:
        return "".join(name for name, error in self.told if error is None)

    @property
    def refused(self) -> str:
        return "".join(name for name, error in self.told if error is not None)


@pytest.fixture
def bench(store: LogStore) -> Iterator[Bench]:
    bench = Bench(store)
    yield bench
    bench.disk.gate.set()
    bench.commit.close()


def test_nothing_starts_before_a_kick(bench: Bench) -> None:
    bench.publish("a")
    assert bench.commit.pending_bytes > 0
    assert bench.loop.is_idle
    bench.commit.kick()
    bench.loop.turn()
    assert bench.acknowledged == "a"
    assert bench.commit.pending_bytes == 0
    bench.commit.kick()
    assert bench.loop.is_idle


def test_what_arrives_during_a_sync_goes_with_the_next_one_in_order(bench: Bench) -> None:
    bench.disk.gate.clear()
    bench.publish("a")
    bench.commit.kick()
    for i, name in enumerate("bcdefg"):
        bench.publish(name, bench.logs[i % 4])
        bench.commit.kick()
    assert bench.acknowledged == ""
    bench.disk.gate.set()
    bench.loop.turn()
    assert bench.acknowledged == "a"
    bench.loop.turn()
    assert bench.acknowledged == "abcdefg"
    assert bench.disk.count == 2
    assert bench.loop.is_idle


def test_a_callback_may_publish_again(bench: Bench) -> None:
    log = bench.logs[0]
    batch = make_batch(0, owner=log.owner)
    append(log, batch)

    def again(error: FanlogError | None) -> None:
        bench.publish("b")
        bench.commit.kick()

    bench.commit.add(log, batch.data, again)
    bench.commit.kick()
    bench.loop.turn()
    bench.loop.turn()
    assert bench.acknowledged == "b"


def test_drain_completes_everything_without_the_loop(bench: Bench) -> None:
    bench.publish("a")
    bench.commit.kick()
    bench.publish("b")
    bench.commit.drain()
    assert bench.acknowledged == "ab"
    assert bench.commit.pending_bytes == 0
    while not bench.loop.is_idle:
        bench.loop.turn()
    assert bench.acknowledged == "ab"


def test_a_failed_sync_fails_all_that_waits_and_all_that_comes(bench: Bench) -> None:
    bench.publish("a")
    bench.commit.kick()
    bench.loop.turn()
    bench.disk.gate.clear()
    bench.disk.fails = True
    bench.publish("b", bench.logs[1])
    bench.commit.kick()
    bench.publish("c", bench.logs[2])
    bench.disk.gate.set()
    bench.loop.turn()
    assert (bench.acknowledged, bench.refused) == ("a", "bc")
    error = bench.told[1][1]
    assert isinstance(error, LogFailedError)
    assert "EIO" in str(error)
    assert "restart the broker" in str(error)
    assert bench.commit.pending_bytes == 0
    # The disk may be well again: what it kept of the failed sync nobody knows.
    bench.disk.fails = False
    bench.publish("d", bench.logs[3])
    assert bench.refused == "bc"
    bench.loop.turn()
    assert bench.refused == "bcd"
    assert bench.logs[0].failure is None
    for log in bench.logs[1:]:
        with pytest.raises(LogFailedError, match="Syncing"):
            append(log, make_batch(log.end_offset, owner=log.owner))


def test_a_failed_write_of_the_journal_is_as_fatal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EROFS, "read-only")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", broken)
        bench.publish("a")
        bench.commit.drain()
    assert bench.refused == "a"
    assert "EROFS" in str(bench.told[0][1])
    bench.publish("b") if bench.logs[0].failure is None else None
    assert isinstance(bench.logs[0].failure, LogFailedError)


def test_the_next_start_after_a_failed_sync_replays_what_was_acknowledged(
    tmp_path: Path, store: LogStore
) -> None:
    bench = Bench(store)
    bench.publish("a")
    bench.commit.drain()
    bench.disk.fails = True
    bench.publish("b")
    bench.commit.drain()
    assert (bench.acknowledged, bench.refused) == ("a", "b")
    bench.commit.close()
    store.close()
    for path in tmp_path.glob("topics/*/*/*.log"):
        path.unlink()
    again = LogStore(tmp_path, OPTIONS)
    (topic,) = again.open()
    assert topic.logs[0].end_offset >= 1
    assert topic.logs[0].read(0, 1).next_offset == 1
    again.close()


def test_a_bug_in_the_commit_thread_is_told_to_the_publishers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(bench.commit.journal, "make_durable", bug)
        bench.publish("a")
        bench.commit.drain()
    assert bench.refused == "a"
    assert "ZeroDivisionError" in str(bench.told[0][1])


def test_a_failed_checkpoint_is_fatal_before_its_journal_file_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec  # noqa: PLC0415

    store = LogStore(tmp_path, msgspec.structs.replace(OPTIONS, journal_bytes=1024))
    store.open()
    bench = Bench(store)
    real = os.fdatasync

    def fails_for_segments(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            raise OSError(errno.EIO, "broken")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fails_for_segments)
    for name in "abcdefghijklmnop":
        if bench.refused:
            break
        bench.publish(name)
        bench.commit.drain()
    monkeypatch.undo()
    # One file is full, and its logs can't be synced: the other fills up, and that is the end.
    assert 8 <= len(bench.acknowledged) < 14
    acknowledged = len(bench.acknowledged)
    bench.commit.close()
    store.close()
    for path in tmp_path.glob("topics/*/*/*.log"):
        path.unlink()
    again = LogStore(tmp_path, OPTIONS)
    (topic,) = again.open()
    assert topic.logs[0].end_offset >= acknowledged
    again.close()
