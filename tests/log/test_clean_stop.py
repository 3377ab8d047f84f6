"""A clean stop: the next start believes its mark, unless there is any doubt, and reads no log."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fanlog.log import clean_stop, recovery
from fanlog.log.partition import PartitionLog
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import OPTIONS, Sample, append, fill, make_batch, read_batches, segments

OS = TopicSettings(retention_seconds=0)
FSYNC = TopicSettings(durability="fsync", retention_seconds=0)


def open_store(folder: Path) -> tuple[LogStore, list[PartitionLog]]:
    store = LogStore(folder, OPTIONS)
    topics = store.open()
    return store, [topic.logs[0] for topic in topics]


def stopped(folder: Path, settings: TopicSettings = OS, count: int = 100) -> list[Sample]:
    """A folder whose broker stopped; what its one log holds."""
    store, _ = open_store(folder)
    log = store.create("t", settings).logs[0]
    log.settings = msgspec.structs.replace(settings, segment_bytes=4 * KIB)
    samples = fill(log, count)
    if settings is FSYNC:
        pieces = [(log, sample.data) for sample in samples]
        store.get_journal().make_durable(pieces, os.fdatasync)
    store.close(clean=True)
    return samples


def check(folder: Path, samples: list[Sample]) -> None:
    """The log holds exactly these batches, and takes and keeps more."""
    store, (log,) = open_store(folder)
    assert not (folder / "clean").exists()
    assert log.end_offset == samples[-1].next
    assert list(read_batches(log)) == [sample.data for sample in samples]
    assert log.offset_at(samples[-1].time_us) == samples[-1].base
    more = make_batch(log.end_offset, owner=log.owner, time_us=10**6, size=3000)
    append(log, more)
    assert list(read_batches(log)) == [sample.data for sample in [*samples, more]]
    store.close()
    store, (log,) = open_store(folder)
    assert list(read_batches(log)) == [sample.data for sample in [*samples, more]]
    store.close()


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(*_: object) -> None:
        raise AssertionError("a log is scanned")

    monkeypatch.setattr(recovery, "scan_segment", scan)


@pytest.mark.usefixtures("no_scan")
@pytest.mark.parametrize("settings", [OS, FSYNC])
@pytest.mark.parametrize("count", [1, 100])
def test_after_a_clean_stop_no_log_is_scanned(
    tmp_path: Path, settings: TopicSettings, count: int
) -> None:
    samples = stopped(tmp_path, settings, count)
    store, (log,) = open_store(tmp_path)
    assert list(read_batches(log)) == [sample.data for sample in samples]
    assert log.last_time_us == samples[-1].time_us
    assert log.bytes == sum(len(sample.data) for sample in samples)
    store.close(clean=True)
    store, (log,) = open_store(tmp_path)
    log.delete_before(log.end_offset)
    store.close(clean=True)
    store, (log,) = open_store(tmp_path)
    assert log.start_offset == log.end_offset == count
    store.close()


def test_what_a_clean_start_finds_is_what_a_scan_finds(tmp_path: Path) -> None:
    samples = stopped(tmp_path)
    found: list[object] = []
    for _ in range(2):
        store, (log,) = open_store(tmp_path)
        disk = log._disk  # pyright: ignore[reportPrivateUsage]
        assert disk is not None
        index = disk.segments[-1].index
        assert index is not None
        found.append(
            {
                name: getattr(disk, name)
                for name in ("position", "allocated", "index_at", "last_time_us", "epochs")
            }
            | {"index": [list(c) for c in (index.offsets, index.positions, index.times)]}
            | {"base": disk.producers_base, "sealed": disk.sealed_bytes}
        )
        store.close()
    # The first start had the mark, and took it away.
    assert found[0] == found[1]
    check(tmp_path, samples)


def test_a_crash_after_a_clean_start_leaves_no_mark(tmp_path: Path) -> None:
    samples = stopped(tmp_path)
    store, (log,) = open_store(tmp_path)
    samples.append(make_batch(log.end_offset, owner=log.owner, time_us=10**5))
    append(log, samples[-1])
    # Nothing is closed, and another one takes the folder.
    assert store._lock is not None  # pyright: ignore[reportPrivateUsage]
    store._lock.release()  # pyright: ignore[reportPrivateUsage]
    check(tmp_path, samples)


def test_a_mark_that_is_damaged_anywhere_only_means_a_scan(tmp_path: Path) -> None:
    samples = stopped(tmp_path, count=2)
    mark = (tmp_path / "clean").read_bytes()
    for at in range(0, len(mark), 3):
        (tmp_path / "clean").write_bytes(mark[:at] + bytes([mark[at] ^ 1]) + mark[at + 1 :])
        store, (log,) = open_store(tmp_path)
        assert list(read_batches(log)) == [sample.data for sample in samples]
        store.close()


@pytest.mark.parametrize("what", ["cut", "longer", "flipped", "torn", "gone", "renamed"])
@pytest.mark.parametrize("settings", [OS, FSYNC])
def test_any_doubt_means_a_scan(tmp_path: Path, what: str, settings: TopicSettings) -> None:
    samples = stopped(tmp_path, settings)
    newest = segments(next(tmp_path.glob("topics/*/0")))[-1]
    data = newest.read_bytes()
    size = len(samples[-1].data)
    end = len(data.rstrip(b"\0"))
    if what == "cut":
        os.truncate(newest, len(data) - 1)
    elif what == "longer":
        newest.write_bytes(data + bytes(100))
    elif what == "flipped":
        newest.write_bytes(data[: end - 5] + b"?" + data[end - 4 :])
    elif what == "torn":
        newest.write_bytes(data[: end - 2 * size] + bytes(len(data) - end + 2 * size))
    elif what == "gone":
        newest.unlink()
    else:
        newest.rename(newest.with_name(f"{5000:020d}.log"))
    scans: list[str] = []
    real = recovery.scan_segment

    def scan(folder: str, *others: object) -> object:
        scans.append(folder)
        return real(folder, *others)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "scan_segment", scan)
        store, (log,) = open_store(tmp_path)
    assert scans
    assert next(iter(read_batches(log))) == samples[0].data
    store.close()


@pytest.mark.parametrize("settings", [OS, FSYNC])
@pytest.mark.parametrize("what", ["flipped", "cut", "gone"])
def test_what_is_lost_after_a_clean_stop_is_damage_and_no_torn_write(
    tmp_path: Path, settings: TopicSettings, what: str
) -> None:
    samples = stopped(tmp_path, settings, 3)
    (path,) = segments(next(tmp_path.glob("topics/*/0")))
    data = path.read_bytes()
    if what == "flipped":
        end = len(data.rstrip(b"\0"))
        path.write_bytes(data[: end - 5] + b"?" + data[end - 4 :])
    elif what == "cut":
        os.truncate(path, 2 * len(samples[0].data))
    else:
        path.unlink()
    for _ in range(2):
        store, (log,) = open_store(tmp_path)
        assert log.end_offset == 3
        assert [(lost.first, lost.next) for lost in log.damaged] == [
            (0 if what == "gone" else 2, 3)
        ]
        store.close()


def test_after_a_restart_of_the_machine_only_what_was_synced_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[str] = []
    real = recovery.scan_segment

    def scan(folder: str, *others: object) -> object:
        scans.append(folder)
        return real(folder, *others)  # type: ignore[arg-type]

    for name, settings in (("os", OS), ("fsync", FSYNC)):
        stopped(tmp_path / name, settings)
    monkeypatch.setattr(recovery, "scan_segment", scan)
    monkeypatch.setattr(clean_stop, "boot_id", lambda: "another")
    for name in ("os", "fsync"):
        store, (log,) = open_store(tmp_path / name)
        assert log.end_offset == 100
        store.close()
    assert {Path(folder).parts[-4] for folder in scans} == {"os"}


def test_a_log_that_failed_is_scanned_by_the_next_start(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    log = store.create("t", OS).logs[0]
    samples = fill(log, 3)
    log.failure = OSError("for good")  # type: ignore[assignment]
    store.close(clean=True)
    assert not (tmp_path / "clean").exists()
    check(tmp_path, samples)
