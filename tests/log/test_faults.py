"""Disks that are full, read-only or broken: what a log does, and what it says."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.errors import DiskFullError, FanlogError, FolderUnusableError, LogFailedError
from fanlog.log import faults
from fanlog.log.group_commit import GroupCommit
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import OPTIONS, append, fill, make_batch, open_log, read_batches, segments


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"mounting a tmpfs needs root: {fault}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_turns_a_piece_away_and_a_later_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 5)

    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    for _ in range(60):
        state = (log.end_offset, log.bytes, log.tail.bytes, log.last_time_us)
        refused = ""
        try:
            with monkeypatch.context() as patched:
                patched.setattr(os, call, full)
                append(log, make_batch(log.end_offset, time_us=5000))
        except DiskFullError as error:
            refused = str(error)
        if refused:
            assert "Free disk space" in refused
            assert log.failure is None
            assert (log.end_offset, log.bytes, log.tail.bytes, log.last_time_us) == state
        else:
            # There was room left that had been allocated before.
            assert call == "posix_fallocate"
            samples.append(make_batch(log.end_offset - 1, time_us=5000))
        assert list(read_batches(log)) == [s.data for s in samples]
        more = make_batch(log.end_offset, time_us=5000)
        append(log, more)
        samples.append(more)
    assert log.segment_count > 1
    log.close()
    log = open_log(tmp_path)
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_a_write_that_stops_half_way_on_a_full_disk_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 2)
    pwrite = os.pwrite
    calls: list[int] = []

    def half(fd: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, bytes(data)[:50], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(DiskFullError):
            append(log, make_batch(2, size=300))
    more = make_batch(2, size=10)
    append(log, more)
    log.close()
    log = open_log(tmp_path)
    assert list(read_batches(log)) == [s.data for s in [*samples, more]]
    log.close()


def test_a_short_write_goes_on_until_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:7], at))
    log = open_log(tmp_path)
    samples = fill(log, 50)
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EIO, "disk reports a fault"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "right to read and write"),
        (errno.EBADMSG, "Check the disk"),
    ],
)
def test_any_other_fault_stops_the_log_for_good_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 3)

    def broken(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", broken)
        with pytest.raises(LogFailedError, match=says):
            append(log, make_batch(3))
    assert isinstance(log.failure, LogFailedError)
    assert errno.errorcode[number] in str(log.failure)
    with pytest.raises(LogFailedError, match=says):
        append(log, make_batch(3))
    assert log.end_offset == 3
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_a_file_system_without_preallocation_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "unsupported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    log = open_log(tmp_path)
    samples = fill(log, 100)
    log.close()
    log = open_log(tmp_path)
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_too_many_open_files_closes_idle_ones_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    topic = store.create("t", TopicSettings(partitions=8))
    for log in topic.logs:
        append(log, make_batch(0, owner=log.owner))
    real = os.open
    left = [1]

    def limited(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith(".log") and left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "too many")
        return real(path, flags, mode)

    log = topic.logs[0]
    store._shared.pool.close(log._disk)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(os, "open", limited)
    append(log, make_batch(1, owner=log.owner))
    assert left == [0]
    monkeypatch.undo()
    store.close()


def test_a_really_full_disk_keeps_serving_and_recovers_when_there_is_room(tiny_disk: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(500 * KIB))
    store = LogStore(tiny_disk / "data", OPTIONS)
    store.open()
    settings = TopicSettings(segment_bytes=64 * KIB, retention_bytes=0)
    log = store.create("t", settings).logs[0]
    samples: list[bytes] = []

    def publish() -> None:
        batch = make_batch(len(samples), size=5000, owner=log.owner)
        append(log, batch)
        samples.append(batch.data)

    def publish_many() -> None:
        for _ in range(1000):
            publish()

    with pytest.raises(DiskFullError, match="no room"):
        publish_many()
    assert len(samples) > 50
    assert list(read_batches(log)) == samples
    for _ in range(3):
        with pytest.raises(DiskFullError):
            publish()
    ballast.unlink()
    for _ in range(20):
        publish()
    assert list(read_batches(log)) == samples
    store.close()
    store = LogStore(tiny_disk / "data", OPTIONS)
    (topic,) = store.open()
    assert list(read_batches(topic.logs[0])) == samples
    store.close()


def test_a_topic_that_can_not_be_created_leaves_nothing_behind(tiny_disk: Path) -> None:
    store = LogStore(tiny_disk / "data", OPTIONS)
    store.open()
    store.create("first", TopicSettings())
    ballast = tiny_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(2048 * KIB))
    with pytest.raises(DiskFullError, match="Free disk space"):
        store.create("second", TopicSettings())
    ballast.unlink()
    store.create("second", TopicSettings())
    assert len(list((tiny_disk / "data" / "topics").iterdir())) == 2
    store.close()


def test_a_read_only_folder_is_refused_with_a_sentence(tiny_disk: Path) -> None:
    store = LogStore(tiny_disk / "data", OPTIONS)
    store.open()
    topic = store.create("t", TopicSettings())
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(
        FolderUnusableError, match=r"Read-only file system.*choose another data folder"
    ):
        LogStore(tiny_disk / "data", OPTIONS).open()
    log = open_log(Path(topic.folder) / "0")
    with pytest.raises(LogFailedError, match="mount it writable"):
        append(log, make_batch(0))
    log.close()


def test_retention_frees_a_full_disk(tiny_disk: Path) -> None:
    log = open_log(tiny_disk / "0", TopicSettings(segment_bytes=64 * KIB, retention_seconds=1))

    def publish_many() -> None:
        for i in range(1000):
            append(log, make_batch(i, size=5000, time_us=1000))

    with pytest.raises(DiskFullError):
        publish_many()
    assert log.retain(10_000_000) == log.end_offset
    assert len(segments(tiny_disk / "0")) == 1
    fill(log, 20)
    log.close()


def test_a_journal_without_room_to_grow_still_makes_everything_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    log = store.create("t", TopicSettings(durability="fsync")).logs[0]
    commit = GroupCommit(store.get_journal(), lambda callback: None)
    results: list[FanlogError | None] = []
    real = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".journal") and at >= 1024 * KIB:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    for size in (300_000, 300_000, 300_000, 300_000, 2_000_000, 300_000):
        batch = make_batch(log.end_offset, size=size, owner=log.owner)
        append(log, batch)
        commit.add(log, batch.data, results.append)
        commit.drain()
    assert results == [None] * 6
    files = (tmp_path / "journal").glob("*.journal")
    assert [path.stat().st_size for path in files] == [1024 * KIB] * 2
    commit.close()
    store.close()


ALL_CAUSES = [
    "EACCES", "EPERM", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "EIO",
    "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "ENOENT", "EFBIG", "ESTALE", "EEXIST", "EXDEV",
]  # fmt: skip
REMEDIES = {
    "EACCES": "chown, chmod",
    "EPERM": "chown, chmod",
    "ENOSPC": "Free disk space",
    "EDQUOT": "Free disk space",
    "EROFS": "mount it writable",
    "EMFILE": "ulimit -n",
    "ENFILE": "fs.file-max",
    "ENOMEM": "Free memory",
    "EIO": "The disk reports a fault",
    "ENOTDIR": "a file where a folder belongs",
    "EISDIR": "a folder where a file belongs",
    "ELOOP": "lead in a circle",
    "ENAMETOOLONG": "shorter path",
    "EFBIG": "ulimit -f",
    "ESTALE": "mount it again",
    "EEXIST": "a file where a folder belongs",
}


@pytest.mark.parametrize("name", ALL_CAUSES)
def test_each_cause_has_its_remedy_and_no_other(name: str) -> None:
    number = getattr(errno, name)
    fault = OSError(number, os.strerror(number))
    remedy = REMEDIES.get(name, "")
    others = set(REMEDIES.values()) - {remedy}
    made = {
        "write": faults.write_error(fault, "/data/x"),
        "start": faults.folder_error(fault, "/data"),
        "topic": faults.topic_error(fault, "/data/topics/x"),
        "read": faults.read_error(fault, "/data/x"),
        "sync": faults.sync_error(fault, "/data/journal"),
    }
    for moment, error in made.items():
        said = str(error)
        assert name in said, moment
        assert remedy in said or (moment == "read" and name in ("ENOSPC", "EDQUOT")), moment
        assert not [other for other in others if other in said], moment
    passing = name in ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM")
    assert ("restart" in str(made["write"])) != passing
    assert "restart" in str(made["sync"]), "the kernel tells of a lost write only once"
    assert "restart" not in str(made["read"]), "a read loses nothing"
    assert "--data" not in str(made["topic"]), "the broker runs: it can't move"
    assert ("--data" in str(made["start"])) or name in ("EMFILE", "ENFILE", "ENOMEM")
