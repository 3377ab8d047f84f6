"""Compaction: the last record of each key stays, at its offset, whatever happens meanwhile."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest

from fanlog.errors import DamagedError, LogFailedError, OffsetOutOfRangeError, StorageError
from fanlog.format.batch import Batch
from fanlog.format.codecs import Codec
from fanlog.format.columns import SPARSE
from fanlog.format.header import read_header
from fanlog.log.group_commit import GroupCommit
from fanlog.log.partition import PartitionLog
from fanlog.log.store import LogStore
from fanlog.model import KIB
from tests.log.compacting import (
    COMPACTED,
    begin,
    check_files,
    compact,
    keyed_batch,
    put,
    rows,
)
from tests.log.pieces import (
    OPTIONS,
    Sample,
    append,
    fill,
    make_batch,
    open_log,
    read_around_damage,
    read_batches,
    segments,
)

SECOND_US = 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = open_log(tmp_path, COMPACTED)
    yield made
    made.close()


def fill_keys(log: PartitionLog, rounds: int, keys: int, size: int = 200) -> None:
    """Each round writes every key once, in a batch of its own."""
    for i in range(rounds):
        put(log, *((b"k%d" % k, (b"%d." % i).ljust(size, b"v")) for k in range(keys)))


def test_the_last_record_of_each_key_stays_at_its_offset(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"c", b"1"), (b"b", b"2"))
    before = log.bytes
    run = compact(log)
    assert rows(log) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert run.freed_bytes == before - log.bytes
    assert (log.start_offset, log.end_offset) == (0, 5)
    assert run.removed_records == 2
    assert log.damaged == []


def test_records_without_a_key_stay_for_good(log: PartitionLog) -> None:
    put(log, (None, b"1"), (b"a", b"1"), (None, None))
    put(log, (b"a", b"2"), (None, b"2"))
    compact(log, 10**15)
    assert rows(log) == [
        (0, None, b"1"),
        (2, None, None),
        (3, b"a", b"2"),
        (4, None, b"2"),
    ]


def test_batches_without_keys_stay_as_they_are(log: PartitionLog) -> None:
    samples = fill(log, 40)
    compact(log)
    assert list(read_batches(log)) == [sample.data for sample in samples]


def test_a_key_in_the_active_segment_takes_older_ones_away(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    compact(log)
    put(log, (b"a", b"2"))
    compact(log, everything=False)
    assert rows(log) == [(1, b"b", b"1"), (2, b"a", b"2")]


def test_what_is_not_visible_yet_takes_nothing_away(log: PartitionLog) -> None:
    put(log, (b"a", b"1"))
    compact(log)
    put(log, (b"a", b"2"))
    run = log.compaction(1, 0, lambda: False)
    assert run is not None
    while (rewritten := run.step()) is not None:
        run.swap(rewritten)
    assert rows(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_a_tombstone_stays_for_its_time_and_then_goes(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), time_us=5 * SECOND_US)
    compact(log, 900 * SECOND_US)
    assert rows(log) == [(1, b"b", b"1"), (2, b"a", None)]
    assert not log.compaction_due(log.end_offset, 1000 * SECOND_US)
    assert log.compaction_due(log.end_offset, 1500 * SECOND_US)
    compact(log, 1500 * SECOND_US)
    assert rows(log) == [(1, b"b", b"1")]
    assert not log.compaction_due(log.end_offset, 10**15)


def test_nothing_but_placeholders_may_be_left(tmp_path: Path, log: PartitionLog) -> None:
    for _ in range(30):
        put(log, *((b"%d" % i, None) for i in range(20)))
    compact(log, 10**15)
    assert rows(log) == []
    assert (log.start_offset, log.end_offset) == (0, 600)
    assert log.bytes <= 80 * 30
    log.close()
    again = open_log(tmp_path, COMPACTED)
    assert (again.start_offset, again.end_offset) == (0, 600)
    compact(again, 10**15)
    assert again.bytes == 80
    again.close()


@pytest.mark.parametrize("codec", Codec)
def test_packed_batches_stay_packed(log: PartitionLog, codec: Codec) -> None:
    pairs = [(b"%d" % i, b"the same text " * 20) for i in range(40)]
    put(log, *pairs, codec=codec)
    put(log, *pairs[:20], codec=codec)
    compact(log)
    first, *_ = read_batches(log)
    header = read_header(first)
    assert (header.codec, header.record_count, header.flags & SPARSE) == (codec, 20, SPARSE)
    assert [row[0] for row in rows(log)] == list(range(20, 60))


def test_what_loses_nothing_is_not_written_anew(tmp_path: Path, log: PartitionLog) -> None:
    for i in range(60):
        put(log, *((b"%d-%d" % (i, k), b"v" * 100) for k in range(5)))
    before = segments(tmp_path)
    run = compact(log)
    assert run.freed_bytes == run.removed_records == 0
    assert set(before) <= set(segments(tmp_path))


def test_a_second_run_changes_nothing(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 30, 7)
    # Small ones become one, and then there is nothing left to do.
    for _ in range(3):
        compact(log)
    files, found = segments(tmp_path), rows(log)
    run = compact(log)
    assert (segments(tmp_path), rows(log), run.freed_bytes) == (files, found, 0)


def test_small_segments_become_one(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 40, 5)
    assert log.segment_count > 10
    compact(log)
    assert log.segment_count == 2
    assert [row[0] for row in rows(log)] == list(range(195, 200))
    assert len(segments(tmp_path)) == 2


def test_more_keys_than_memory_may_hold_take_rounds(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, compaction_keys_max=10)
    log = open_log(tmp_path, COMPACTED, options)
    expected: dict[bytes, int] = {}
    for i in range(300):
        key = b"k%d" % (i * 7 % 100)
        put(log, (key, b"v" * 50))
        expected[key] = i
    compact(log)
    assert [(row[1], row[0]) for row in rows(log)] == sorted(expected.items(), key=lambda e: e[1])
    log.close()


def test_long_keys_are_told_apart(log: PartitionLog) -> None:
    long, longer = b"x" * 31, b"x" * 5000
    put(log, (long, b"1"), (longer, b"1"), (longer + b"y", b"1"))
    put(log, (longer, b"2"), (long, b"2"))
    compact(log)
    assert [row[0] for row in rows(log)] == [2, 3, 4]


def test_compaction_survives_a_restart(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 20, 9)
    compact(log)
    put(log, (b"k3", b"new"))
    expected, size = rows(log), log.bytes
    log.close()
    again = open_log(tmp_path, COMPACTED)
    assert rows(again) == expected
    assert (again.start_offset, again.end_offset, again.bytes) == (0, 181, size)
    # What is compacted is known to be: only the one new batch is not.
    assert not open_log(
        tmp_path, msgspec.structs.replace(COMPACTED, compact_after_bytes=1000)
    ).compaction_due(181, 0)
    compact(again)
    assert [row[0] for row in rows(again)] == [*range(171, 174), *range(175, 181)]
    again.close()


def test_a_compacted_segment_that_a_crash_makes_the_last_one_is_written_on(tmp_path: Path) -> None:
    """Its name claims offsets that other records come to."""
    log = open_log(tmp_path, COMPACTED)
    for i in range(20):
        put(log, (b"%d" % i, b"v" * 100), (b"same", b"%d" % i))
    compact(log)
    log.close()
    compacted, active = segments(tmp_path)
    active.unlink()
    os.truncate(compacted, compacted.stat().st_size // 2)
    log = open_log(tmp_path, COMPACTED)
    end = log.end_offset
    assert 10 < end < 30
    put(log, (b"within", b"1"), (b"within", b"2"))
    for i in range(60):
        put(log, (b"same", b"new %d" % i), (b"other", b"v" * 100))
    assert log.segment_count > 1
    expected = rows(log)
    log.close()
    log = open_log(tmp_path, COMPACTED)
    assert (rows(log), log.end_offset) == (expected, end + 122)
    compact(log)
    assert [row[1] for row in rows(log)][-2:] == [b"same", b"other"]
    assert len(rows(log)) == len({row[1] for row in expected})
    check_files(tmp_path, log)
    log.close()


def test_a_reader_inside_a_hole_gets_what_comes_after_it(log: PartitionLog) -> None:
    fill_keys(log, 20, 3)
    compact(log)
    for offset in range(60):
        assert rows(log, offset)[-1][0] == 59
        assert len(rows(log, offset)) == min(3, 60 - offset)


def test_a_time_is_found_in_a_compacted_log(log: PartitionLog) -> None:
    for i in range(50):
        put(log, (b"k%d" % (i % 4), b"v" * 150), time_us=100 * i)
    compact(log)
    assert log.offset_at(100 * 46) == 46
    assert log.offset_at(100 * 49) == 49
    assert log.offset_at(100 * 50) == log.end_offset


def test_a_reader_with_the_old_list_of_segments_finds_the_new_file(log: PartitionLog) -> None:
    """The file goes between a reader's look at the list and its opening of the file."""
    fill_keys(log, 30, 4)
    run = begin(log)
    opened: list[str] = []
    real = os.open

    def late(path: str, *given: int) -> int:
        if str(path).endswith("0.log") and not opened:
            opened.append(path)
            while (rewritten := run.step()) is not None:
                run.swap(rewritten)
        return real(path, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", late)
        block = log.read(0, log.end_offset)
    assert opened
    assert not os.path.exists(opened[0])
    assert block.base_offset == 0
    assert [row[0] for row in rows(log)] == [116, 117, 118, 119]
    assert log.damaged == []


def test_a_writer_goes_on_during_a_run(log: PartitionLog) -> None:
    fill_keys(log, 30, 4)
    run = begin(log)
    while (rewritten := run.step()) is not None:
        fill_keys(log, 3, 4)
        run.swap(rewritten)
        fill_keys(log, 3, 4)
    found = rows(log)
    assert [row[1] for row in found[-4:]] == [b"k0", b"k1", b"k2", b"k3"]
    assert found[-1][0] == log.end_offset - 1
    compact(log)
    assert rows(log) == found[-4:]


def test_retention_may_be_faster(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 30, 4)
    run = begin(log)
    rewritten = run.step()
    assert rewritten is not None
    log.drop_before(log.end_offset)
    run.swap(rewritten)
    assert run.step() is None
    assert log.start_offset == log.end_offset == 120
    assert [path.name for path in tmp_path.glob("*.tmp")] == []
    log.close()
    assert open_log(tmp_path, COMPACTED).start_offset == 120


def test_a_run_that_is_stopped_leaves_no_trace(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 30, 4)
    asked: list[None] = []
    run = log.compaction(
        log.end_offset, 0, lambda: asked.append(None) or len(asked) > 2, everything=True
    )
    assert run is not None
    assert run.step() is None
    assert list(tmp_path.glob("*.tmp")) == []
    assert len(rows(log)) == 120


def test_a_deleted_topic_ends_a_run(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 30, 4)
    run = begin(log)
    rewritten = run.step()
    assert rewritten is not None
    log.delete()
    run.swap(rewritten)
    assert run.step() is None
    assert not tmp_path.exists() or list(tmp_path.iterdir()) == []


def test_a_damaged_segment_stays_as_it_is_and_keeps_its_tombstones_needed(
    tmp_path: Path, log: PartitionLog
) -> None:
    put(log, (b"a", b"1"), (b"b", b"1" * 3000))
    put(log, (b"c", b"1" * 3000))
    put(log, (b"d", b"1" * 3000))
    put(log, (b"a", None), (b"c", b"2"))
    first = segments(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    compact(log, 10**15)
    found, lost = read_around_damage(log)
    assert lost == [(0, 2)]
    left = [row for data in found for row in zip(*_places(data), strict=True)]
    assert left == [(3, b"d"), (4, b"a"), (5, b"c")]
    with pytest.raises(DamagedError):
        log.read(0, 1)


def test_a_full_disk_ends_a_run_and_harms_nothing(
    tmp_path: Path, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_keys(log, 30, 4)
    expected = rows(log)
    run = begin(log)

    def full(*_: object) -> int:
        raise OSError(28, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="full"):
            run.step()
    assert rows(log) == expected
    assert list(tmp_path.glob("*.tmp")) == []
    compact(log)
    assert len(rows(log)) == 4


def test_a_swap_that_fails_ends_the_run_and_leaves_no_trace(
    tmp_path: Path, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_keys(log, 30, 4)
    expected = rows(log)
    run = begin(log)
    rewritten = run.step()
    assert rewritten is not None

    def broken(*_: object) -> None:
        raise OSError(5, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", broken)
        with pytest.raises(OSError, match="broken"):
            run.swap(rewritten)
    assert list(tmp_path.glob("*.tmp")) == []
    assert run.step() is None
    assert rows(log) == expected
    compact(log)
    assert len(rows(log)) == 4


def test_a_failed_sync_of_the_log_itself_is_told_as_such(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_keys(log, 30, 4)
    run = begin(log)

    def broken(*_: object) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(StorageError) as error:
        run.step()
    assert isinstance(error.value, LogFailedError)


def test_sparse_batches_are_not_taken_for_a_producers_run(tmp_path: Path) -> None:
    """Their sequences have gaps: a run of them would be a guess."""
    log = open_log(tmp_path, COMPACTED)
    put(log, (b"a", b"1"), (b"b", b"1"), producer=(9, 0, 0))
    put(log, (b"a", b"2"))
    compact(log)
    first, *_ = read_batches(log)
    assert (read_header(first).producer_id, read_header(first).record_count) == (9, 1)
    log.close()
    for path in tmp_path.glob("*.producers"):
        path.unlink()
    again = open_log(tmp_path, COMPACTED)
    assert again.recovered == []
    again.close()


def _places(data: bytes) -> tuple[Sequence[int], list[bytes | None]]:
    batch = Batch(data)
    return batch.offsets, batch.keys


def test_readers_in_other_threads_see_no_damage_while_runs_and_writes_go_on(
    log: PartitionLog,
) -> None:
    fill_keys(log, 40, 4)
    over = Event()
    faults: list[BaseException] = []
    passes: list[int] = []

    def read() -> None:
        try:
            while not over.is_set():
                found = [row[0] for row in rows(log)]
                assert found == sorted(set(found))
                passes.append(len(found))
        except BaseException as fault:  # noqa: BLE001 - handed to the test
            faults.append(fault)

    readers = [Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in count():
        # On a busy machine a reader may need longer for its first pass.
        if i >= 15 and (passes or faults):
            break
        fill_keys(log, 20, 4)
        compact(log)
    over.set()
    for reader in readers:
        reader.join()
    assert not faults
    assert passes
    assert log.damaged == []
    assert len(rows(log)) == 4


@pytest.mark.parametrize("seed", range(6))
def test_a_power_loss_after_a_run_loses_nothing_that_was_acknowledged(
    tmp_path: Path, seed: int
) -> None:
    """What the log has not synced is cut or gone; it comes back from the journal."""
    dice = random.Random(seed)
    settings = msgspec.structs.replace(COMPACTED, durability="fsync", segment_bytes=64 * KIB)
    store = LogStore(tmp_path / "data", OPTIONS)
    store.open()
    log = store.create("t", settings).logs[0]
    commit = GroupCommit(store.get_journal(), lambda callback: None)
    expected: dict[bytes, bytes] = {}

    def publish(rounds: int) -> None:
        for i in range(rounds):
            key, value = b"k%d" % dice.randrange(6), b"%d." % i * dice.randrange(1, 3000)
            batch = keyed_batch(log.end_offset, [(key, value)], owner=log.owner)
            append(log, batch)
            commit.add(log, batch.data, lambda error: None)
            expected[key] = value
        commit.drain()

    publish(80)
    compact(log)
    synced_end = log.end_offset
    publish(dice.randrange(1, 80))
    broken = tmp_path / "broken"
    shutil.copytree(tmp_path / "data", broken)
    for path in (broken / "topics" / "1-t" / "0").glob("*.log"):
        if int(path.stem[:20]) >= synced_end and dice.random() < 0.7:
            os.truncate(path, dice.randrange(path.stat().st_size + 1))
    commit.close()
    store.close()
    again = LogStore(broken, OPTIONS)
    (topic,) = again.open()
    (restored,) = topic.logs
    for _ in range(2):
        assert {key: value for _, key, value in rows(restored)} == expected
        assert (restored.end_offset, restored.damaged) == (log.end_offset, [])
        compact(restored)
    again.close()


# Deleting records before an offset


@pytest.mark.parametrize("offset", [0, 1, 7, 59, 60])
def test_records_are_deleted_exactly_up_to_an_offset(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 20, records=3)
    assert log.delete_before(offset) == offset
    for _ in range(2):
        assert (log.start_offset, log.end_offset) == (offset, 60)
        if offset:
            with pytest.raises(OffsetOutOfRangeError):
                log.read(offset - 1, 60)
        left = list(read_batches(log, offset))
        assert left == [sample.data for sample in samples if sample.next > offset]
        assert log.offset_at(0) == offset
        log.close()
        log = open_log(tmp_path)
    assert log.delete_before(0) == offset
    log.close()


def test_deleting_everything_deletes_the_files(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    log.delete_before(100)
    assert log.bytes == 0
    assert [path.stat().st_size for path in segments(tmp_path)] == [0]
    fill(log, 1)
    log.close()
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset) == (100, 101)
    log.close()


def test_offsets_that_were_deleted_are_not_used_again_when_a_crash_lost_the_records(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.delete_before(8)
    log.close()
    os.truncate(segments(tmp_path)[-1], make_batch(0).data.__len__() * 3)
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset) == (8, 8)
    (new,) = fill(log, 1)
    assert list(read_batches(log, 8)) == [new.data]
    log.close()
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset, log.damaged) == (8, 9, [])
    log.close()


def test_what_the_journal_has_comes_back_behind_what_was_deleted(tmp_path: Path) -> None:
    """The log lost its end with the power; the deletion goes to the middle of a batch."""
    settings = msgspec.structs.replace(COMPACTED, durability="fsync", segment_bytes=64 * KIB)
    store = LogStore(tmp_path / "data", OPTIONS)
    store.open()
    log = store.create("t", settings).logs[0]
    commit = GroupCommit(store.get_journal(), lambda callback: None)
    samples: list[Sample] = []
    for i in range(10):
        samples.append(make_batch(5 * i, count=5, owner=log.owner))
        append(log, samples[-1])
        commit.add(log, samples[-1].data, lambda error: None)
    commit.drain()
    log.delete_before(33)
    for cut in (0, 1000, 5000):
        broken = tmp_path / str(cut)
        shutil.copytree(tmp_path / "data", broken)
        os.truncate(next(broken.glob("topics/*/0/*.log")), cut)
        again = LogStore(broken, OPTIONS)
        (topic,) = again.open()
        (restored,) = topic.logs
        assert (restored.start_offset, restored.end_offset, restored.damaged) == (33, 50, [])
        assert list(read_batches(restored, 33)) == [s.data for s in samples[6:]]
        again.close()
    commit.close()
    store.close()


def test_a_compacted_log_begins_where_it_was_told_to(tmp_path: Path, log: PartitionLog) -> None:
    fill_keys(log, 30, 4)
    compact(log)
    log.delete_before(118)
    compact(log)
    assert log.start_offset == 118
    log.close()
    again = open_log(tmp_path, COMPACTED)
    assert again.start_offset == 118
    assert [row[0] for row in rows(again)] == [118, 119]
    again.close()
