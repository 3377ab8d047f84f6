"""What a start makes of holes: it fills them from the journal, cuts only what nobody was promised,
and keeps everything else that is whole."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fanlog.config import LogOptions
from fanlog.log.journal_file import JournalGroup, group_header, groups, read_journal
from fanlog.log.store import LogStore
from fanlog.model import KIB
from tests.log.pieces import OPTIONS, Sample, read_around_damage
from tests.log.test_journal import SETTINGS, Broker, copy_folder

SMALL = msgspec.structs.replace(OPTIONS, journal_bytes=4 * KIB)


def crash(broker: Broker, copy: Path) -> None:
    """A copy of the folder as it is now. A checkpoint that runs is awaited."""
    assert broker.store.folder is not None
    journal = broker.commit.journal
    journal._await_checkpoint()  # pyright: ignore[reportPrivateUsage]
    copy_folder(Path(broker.store.folder), copy)
    broker.close()


def zero(folder: Path, sample: Sample, partition: int = 0) -> None:
    """Takes a batch out of a log's files, as a page that was never written."""
    for path in folder.glob(f"topics/*/{partition}/*.log"):
        data = path.read_bytes()
        if sample.data in data:
            path.write_bytes(data.replace(sample.data, bytes(len(sample.data))))
            return
    raise AssertionError("the batch is in no file")


def found(
    folder: Path, options: LogOptions = SMALL, partition: int = 0
) -> tuple[list[bytes], list[tuple[int, int]], int, list[str]]:
    """What a start finds in a log: batches, damage, its end, and problems; a second one too."""
    out: list[tuple[list[bytes], list[tuple[int, int]], int, list[str]]] = []
    for _ in range(2):
        store = LogStore(folder, options)
        (topic,) = store.open()
        log = topic.logs[partition]
        batches, lost = read_around_damage(log)
        assert [(d.first, d.next) for d in log.damaged if d.next > log.start_offset] == lost
        out.append((batches, lost, log.end_offset, list(store.problems)))
        store.close()
    assert out[0][:3] == out[1][:3]
    return out[0]


def data_of(samples: list[Sample]) -> list[bytes]:
    return [sample.data for sample in samples]


def test_a_hole_before_records_that_bypassed_the_journal_is_filled_and_they_stay(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for size in (100, 100, 10_000, 100, 20_000):
        broker.publish(0, size=size)
        broker.commit.drain()
    crash(broker, tmp_path / "copy")
    samples = broker.samples[0]
    zero(tmp_path / "copy", samples[1])
    zero(tmp_path / "copy", samples[3])
    assert found(tmp_path / "copy") == (data_of(samples), [], 5, [])


def test_a_hole_that_the_journal_can_not_fill_is_damage_and_what_is_behind_it_stays(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for size in (10_000, 100, 20_000):
        broker.publish(0, size=size)
        broker.commit.drain()
    # Torn, and never acknowledged.
    broker.publish(0, batches=2)
    samples = broker.samples[0]
    store = broker.store.folder
    assert store is not None
    broker.logs[0].sync()
    copy_folder(Path(store), tmp_path / "copy")
    broker.close()
    zero(tmp_path / "copy", samples[0])
    zero(tmp_path / "copy", samples[3])
    assert found(tmp_path / "copy") == (data_of(samples[1:3]), [(0, 1)], 3, [])


def test_a_torn_write_that_nobody_was_promised_is_cut_where_the_journal_knows_nothing(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    broker.publish(0, batches=3)
    broker.close()
    broker = Broker(tmp_path / "data", SMALL)
    small = msgspec.structs.replace(SETTINGS, segment_bytes=1 * KIB)
    for partition, log in enumerate(broker.logs):
        log.settings = small
        for _ in range(20):
            broker.publish(partition)
    assert broker.store.folder is not None
    # Whatever waits for its commit when the power goes.
    copy_folder(Path(broker.store.folder), tmp_path / "copy")
    broker.close()
    for partition, samples in enumerate(broker.samples):
        zero(tmp_path / "copy", samples[2], partition)
        zero(tmp_path / "copy", samples[9], partition)
    assert found(tmp_path / "copy")[1:] == ([], 5, [])
    assert found(tmp_path / "copy", partition=1) == (data_of(broker.samples[1][:2]), [], 2, [])


def test_a_torn_write_in_a_partition_that_was_just_added_is_cut(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    broker.publish(0)
    broker.close()
    broker = Broker(tmp_path / "data", SMALL)
    broker.store.update(broker.topic, msgspec.structs.replace(SETTINGS, partitions=4))
    broker.samples.append([])
    broker.acknowledged.append(0)
    for _ in range(3):
        broker.publish(3)
    assert broker.store.folder is not None
    copy_folder(Path(broker.store.folder), tmp_path / "copy")
    broker.close()
    zero(tmp_path / "copy", broker.samples[3][1], 3)
    expected = data_of(broker.samples[3][:1])
    assert found(tmp_path / "copy", partition=3) == (expected, [], 1, [])


def test_without_a_table_of_ends_nothing_is_cut(tmp_path: Path) -> None:
    for content in (None, b"", b"FANLEND1 and whatever comes behind it"):
        folder = tmp_path / str(content)
        broker = Broker(folder / "data", SMALL)
        broker.publish(0)
        broker.commit.drain()
        for _ in range(3):
            broker.publish(0)
        copy_folder(folder / "data", folder / "copy")
        broker.close()
        zero(folder / "copy", broker.samples[0][2])
        if content is None:
            (folder / "copy" / "journal" / "ends").unlink()
        else:
            (folder / "copy" / "journal" / "ends").write_bytes(content)
        kept = [sample for sample in broker.samples[0] if sample.base != 2]
        batches, lost, end, problems = found(folder / "copy")
        assert (batches, lost, end) == (data_of(kept), [(2, 3)], 4)
        assert len(problems) == (content is not None)


def test_damage_in_what_was_synced_is_never_cut(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for _ in range(100):
        broker.publish(0)
        broker.commit.drain()
    crash(broker, tmp_path / "copy")
    samples = broker.samples[0]
    zero(tmp_path / "copy", samples[3])
    kept = [sample for sample in samples if sample.base != 3]
    assert found(tmp_path / "copy") == (data_of(kept), [(3, 4)], 100, [])


def test_what_was_synced_and_is_gone_is_a_loss_and_its_offsets_are_not_used_again(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for _ in range(100):
        broker.publish(0)
    broker.close()
    samples = broker.samples[0]
    (path,) = (tmp_path / "data").glob("topics/*/0/*.log")
    os.truncate(path, len(samples[0].data) * 40)
    assert found(tmp_path / "data") == (data_of(samples[:40]), [(40, 100)], 100, [])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("deleted", [60, 100])
def test_of_what_was_synced_and_is_gone_the_deleted_records_are_no_loss(
    tmp_path: Path, deleted: int, clean: bool
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for _ in range(100):
        broker.publish(0)
    broker.close()
    store = LogStore(tmp_path / "data", SMALL)
    (topic,) = store.open()
    assert topic.logs[0].delete_before(deleted) == deleted
    if not clean:
        copy_folder(tmp_path / "data", tmp_path / "copy")
    store.close()
    folder = tmp_path / ("data" if clean else "copy")
    for path in folder.glob("topics/*/0/*.log"):
        path.unlink()
    lost = [(60, 100)] if deleted == 60 else []
    store = LogStore(folder, SMALL)
    (topic,) = store.open()
    log = topic.logs[0]
    assert [(d.first, d.next) for d in log.damaged] == lost
    assert (log.start_offset, log.end_offset) == (100, 100)
    store.close()


def test_deleted_records_in_a_hole_that_the_journal_can_not_fill_are_no_damage(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for size in (10_000, 10_000, 10_000, 20_000):
        broker.publish(0, size=size)
        broker.commit.drain()
    samples = broker.samples[0]
    broker.logs[0].delete_before(2)
    crash(broker, tmp_path / "copy")
    for sample in samples[:2]:
        zero(tmp_path / "copy", sample)
    copy_folder(tmp_path / "copy", tmp_path / "more")
    zero(tmp_path / "more", samples[2])
    assert found(tmp_path / "copy") == (data_of(samples[2:]), [], 4, [])
    assert not list((tmp_path / "copy").glob("topics/*/0/damaged.json"))
    assert found(tmp_path / "more") == (data_of(samples[3:]), [(2, 3)], 4, [])


def test_a_start_syncs_no_log_that_was_synced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path / "data", SMALL)
    for _ in range(100):
        broker.publish(0)
        broker.commit.drain()
    broker.publish(1)
    broker.close()
    synced: list[str] = []
    monkeypatch.setattr("fanlog.log.disk.sync_file", synced.append)
    store = LogStore(tmp_path / "data", SMALL)
    store.open()
    assert synced == []
    store.close()


# The journal's own damage


def journal_bytes(folder: Path, name: str = "0.journal") -> bytes:
    return (folder / "journal" / name).read_bytes()


def wipe(folder: Path) -> None:
    for path in folder.glob("topics/*/*/*"):
        path.unlink()


def test_a_bad_group_hides_no_later_one_and_is_reported(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for i in range(9):
        broker.publish(i % 3)
        broker.commit.drain()
    crash(broker, tmp_path / "copy")
    data = journal_bytes(tmp_path / "copy")
    fourth = [g for g in groups(data) if isinstance(g, JournalGroup)][3]
    for at in (fourth.at + 3, fourth.at + 17, fourth.at + 40):
        intact, wiped = tmp_path / f"intact-{at}", tmp_path / f"wiped-{at}"
        for folder in (intact, wiped):
            copy_folder(tmp_path / "copy", folder)
            flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            (folder / "journal" / "0.journal").write_bytes(flipped)
        # The log still has them: nothing is lost.
        batches, lost, end, (problem,) = found(intact, OPTIONS)
        assert (batches, lost, end) == (data_of(broker.samples[0]), [], 3)
        assert f"0.journal is damaged at byte {fourth.at}" in problem
        # The log has lost everything: all that other groups have comes back.
        wipe(wiped)
        first, last = broker.samples[0][0], broker.samples[0][2]
        assert found(wiped, OPTIONS)[:3] == ([first.data, last.data], [(1, 2)], 3)
        assert found(wiped, OPTIONS, 1)[:2] == (data_of(broker.samples[1]), [])


def test_groups_behind_a_torn_write_are_nobodys_promise(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.publish(0)
    broker.commit.drain()
    folder = tmp_path / "data" / "journal"
    ((first,), *_) = (list(groups(journal_bytes(tmp_path / "data"))),)
    assert isinstance(first, JournalGroup)
    size = 32 + len(first.body)
    torn = group_header(first.generation, b"torn" * 8) + b"tarn" * 8
    behind = group_header(first.generation, b"behind--") + b"behind--"
    with (folder / "0.journal").open("r+b") as file:
        file.seek(size)
        file.write(torn + behind)
    read = read_journal(str(folder))
    assert [bytes(b) for b in read.batches] == [bytes(first.body)]
    assert [bytes(b) for b in read.spare] == [b"behind--"]
    assert (read.complete, read.faults) == (True, [])
    broker.close()


def test_stale_groups_stay_stale_when_the_mark_that_retired_them_is_damaged(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path)
    for _ in range(9):
        broker.publish(0)
        broker.commit.drain()
    broker.close()
    for name in ("0.journal", "1.journal"):
        path = tmp_path / "journal" / name
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    store = LogStore(tmp_path, OPTIONS)
    (topic,) = store.open()
    topic.logs[0].delete_before(9)
    store.close()
    assert found(tmp_path, OPTIONS)[:3] == ([], [], 9)
