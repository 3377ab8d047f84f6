"""A partition's log on disk and in memory: append, read, times, rolls, retention."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from fanlog.errors import (
    ClosedError,
    DamagedError,
    OffsetOutOfRangeError,
    TopicDeletedError,
)
from fanlog.log.partition import PartitionLog
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import (
    OPTIONS,
    OWNER,
    SETTINGS,
    append,
    fill,
    make_batch,
    open_log,
    read_batches,
    segments,
)

MEMORY = TopicSettings(durability="memory", retention_seconds=0)


def changed(**settings: object) -> TopicSettings:
    return msgspec.structs.replace(SETTINGS, **settings)


def test_a_log_without_messages_has_no_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "0")
    assert (log.start_offset, log.end_offset, log.bytes, log.segment_count) == (0, 0, 0, 0)
    assert log.offset_at(0) == 0
    assert log.retain(10**15) == 0
    assert not (tmp_path / "0").exists()
    log.close()


def test_what_is_appended_is_read_back_byte_for_byte_across_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 100)
    assert log.segment_count > 3
    assert list(read_batches(log)) == [s.data for s in samples]
    assert log.bytes == sum(len(s.data) for s in samples)
    log.close()


def test_a_reopened_log_goes_on_where_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 60)
    log.close()
    log = open_log(tmp_path)
    assert log.end_offset == 60
    assert log.last_time_us == samples[-1].time_us
    assert log.tail.start_offset == log.tail.end_offset == 60
    samples += fill(log, 60)
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 40, records=5)
    for offset in range(log.end_offset):
        block = log.read(offset, log.end_offset)
        assert block.base_offset == offset // 5 * 5
        assert bytes(block.data).startswith(samples[offset // 5].data)
    log.close()


def test_a_read_ends_below_the_end_it_is_given(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 10)
    block = log.read(2, 7)
    assert (block.base_offset, block.next_offset) == (2, 7)
    assert block.data == b"".join(s.data for s in samples[2:7])
    with pytest.raises(ValueError, match="nothing to read"):
        log.read(7, 7)
    log.close()


def test_a_small_block_does_not_keep_all_that_was_read_in_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(segment_bytes=1024 * KIB))
    fill(log, 100)
    for end in (2, 50, 99, 100):
        block = log.read(0, end)
        assert memoryview(block.data.obj).nbytes <= 2 * len(block.data)
    log.close()


def test_a_batch_larger_than_a_block_is_read_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(segment_bytes=1024 * KIB))
    small = make_batch(0)
    large = make_batch(1, size=300 * KIB)
    last = make_batch(2)
    for batch in (small, large, last):
        append(log, batch)
    assert log.segment_count == 1
    assert list(read_batches(log, 1)) == [large.data, last.data]
    log.close()


def test_a_piece_is_never_split_and_an_oversized_one_gets_a_segment_of_its_own(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    append(log, make_batch(0))
    big = [make_batch(1 + i, size=1000) for i in range(10)]
    append(log, *big)
    append(log, make_batch(11))
    assert [int(path.stem) for path in segments(tmp_path)] == [0, 1, 11]
    assert segments(tmp_path)[1].stat().st_size == sum(len(b.data) for b in big)
    log.close()


def test_a_segment_is_allocated_by_doubling_and_cut_to_its_size_when_sealed(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, changed(segment_bytes=64 * KIB))
    sizes: set[int] = set()
    while log.segment_count < 2:
        append(log, make_batch(log.end_offset, size=1000))
        sizes.add(segments(tmp_path)[-1].stat().st_size)
    assert sizes == {4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB}
    first = segments(tmp_path)[0]
    assert first.stat().st_size == log.bytes - len(make_batch(0, size=1000).data)
    assert first.with_suffix(".idx").exists()
    log.close()


def test_a_time_is_found_in_every_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 100)
    for reopened in (False, True):
        if reopened:
            log.close()
            log = open_log(tmp_path)
        for sample in samples:
            assert log.offset_at(sample.time_us) == sample.base
            assert log.offset_at(sample.time_us - 5) == sample.base
        assert log.offset_at(0) == 0
        assert log.offset_at(samples[-1].time_us + 1) == 100
    log.close()


def test_the_time_of_every_record_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(retention_seconds=1))
    samples = fill(log, 100)
    for reopened in (False, True):
        if reopened:
            log.close()
            log = open_log(tmp_path, changed(retention_seconds=1))
        for sample in samples:
            assert log.append_time(sample.base, 100) == sample.time_us
        assert log.append_time(100, 100) is None
    log.retain(samples[50].time_us + 1_000_000)
    assert log.append_time(log.start_offset - 1, 100) is None
    assert log.append_time(log.start_offset, 100) == samples[log.start_offset].time_us
    log.close()
    assert PartitionLog(MEMORY, OWNER).append_time(0, 0) is None


def test_equal_times_across_segments_give_the_first_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for i in range(100):
        append(log, make_batch(i, time_us=7 if 20 <= i < 90 else 5 if i < 20 else 9))
    assert [log.offset_at(t) for t in (5, 6, 7, 8, 9)] == [0, 20, 20, 90, 90]
    log.close()


def test_a_missing_stale_or_damaged_index_is_rebuilt_from_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 100)
    log.close()
    indexes = sorted(tmp_path.glob("*.idx"))
    good = [path.read_bytes() for path in indexes]
    indexes[0].unlink()
    indexes[1].write_bytes(good[0])
    indexes[2].write_bytes(good[2][:-1] + bytes([good[2][-1] ^ 1]))
    log = open_log(tmp_path)
    assert list(read_batches(log)) == [s.data for s in samples]
    assert all(log.offset_at(s.time_us) == s.base for s in samples)
    # The rebuilt ones may have other entries: batches for pieces.
    assert [path.exists() for path in indexes[:3]] == [True] * 3
    log.close()


def test_retention_by_age_deletes_whole_segments_and_moves_the_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(retention_seconds=1))
    samples = fill(log, 100)
    before = segments(tmp_path)
    cutoff = samples[50].time_us
    deleted = log.retain(cutoff + 1_000_000)
    assert deleted == log.start_offset > 0
    assert log.start_offset <= 50
    left = segments(tmp_path)
    assert left == before[-len(left) :]
    # The oldest one that is left has something that is young enough.
    assert int(left[1].stem) > 50
    assert list(read_batches(log, log.start_offset)) == [
        s.data for s in samples[log.start_offset :]
    ]
    with pytest.raises(OffsetOutOfRangeError, match=f"begins at {log.start_offset}"):
        log.read(log.start_offset - 1, 100)
    assert log.offset_at(0) == log.start_offset
    assert log.tail.start_offset >= log.start_offset
    log.close()
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset) == (deleted, 100)
    log.close()


def test_retention_rolls_an_active_segment_that_is_all_too_old(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(retention_seconds=1))
    samples = fill(log, 10)
    assert log.retain(samples[-1].time_us + 1_000_000) == 0
    assert log.retain(samples[-1].time_us + 1_000_001) == 10
    assert (log.start_offset, log.end_offset, log.bytes) == (10, 10, 0)
    assert log.tail.bytes == 0
    assert log.retain(10**15) == 0
    log.close()
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset) == (10, 10)
    append(log, make_batch(10))
    assert list(read_batches(log, 10)) == [make_batch(10).data]
    log.close()


def test_retention_by_size_keeps_no_more_than_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(retention_bytes=10 * KIB))
    samples = fill(log, 200)
    assert log.retain(0) > 0
    assert 5 * KIB < log.bytes <= 10 * KIB
    assert log.bytes == sum(len(s.data) for s in samples[log.start_offset :])
    log.close()


def test_a_small_retention_makes_small_segments(tmp_path: Path) -> None:
    settings = TopicSettings(retention_bytes=256 * KIB)
    log = open_log(tmp_path, settings)
    for i in range(600):
        append(log, make_batch(i, size=1000))
    log.retain(0)
    assert 128 * KIB < log.bytes <= 256 * KIB
    log.close()


def test_what_lies_before_an_offset_can_be_dropped_in_whole_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 100)
    second, third = (int(path.stem) for path in segments(tmp_path)[1:3])
    assert log.drop_before(second - 1) == 0
    assert log.drop_before(third + 1) == third
    assert log.drop_before(100) > 0
    assert log.segment_count == 1
    assert list(read_batches(log, log.start_offset)) == [
        s.data for s in samples[log.start_offset :]
    ]
    log.close()
    memory = PartitionLog(MEMORY, OWNER)
    fill(memory, 10)
    assert memory.drop_before(4) == 4
    assert memory.start_offset == 4


def test_the_last_time_survives_although_the_newest_segment_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path, changed(retention_seconds=1))
    samples = fill(log, 100)
    log._disk.roll(100)  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    log.close()
    log = open_log(tmp_path)
    assert log.last_time_us == samples[-1].time_us
    log.close()


def test_a_crash_between_the_steps_of_sealing_is_made_good(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 100)
    log.close()
    sealed = segments(tmp_path)[-2]
    size = sealed.stat().st_size
    sealed.with_suffix(".idx").unlink()
    os.truncate(sealed, 8 * KIB)
    log = open_log(tmp_path)
    assert sealed.stat().st_size == size
    assert sealed.with_suffix(".idx").exists()
    assert log.bytes == sum(len(s.data) for s in samples)
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_a_memory_log_is_its_tail(tmp_path: Path) -> None:
    log = PartitionLog(MEMORY, OWNER)
    samples = fill(log, 20)
    assert (log.start_offset, log.end_offset, log.segment_count) == (0, 20, 0)
    assert log.bytes == log.tail.bytes == sum(len(s.data) for s in samples)
    assert log.offset_at(samples[7].time_us) == 7
    assert log.offset_at(10**15) == 20
    with pytest.raises(OffsetOutOfRangeError, match="lives in memory"):
        log.read(0, 20)
    log.settings = TopicSettings(durability="memory", retention_seconds=1)
    assert log.retain(samples[5].time_us + 1_000_000) == 5
    log.settings = TopicSettings(
        durability="memory", retention_seconds=0, retention_bytes=3 * len(samples[0].data)
    )
    assert log.retain(0) == 12
    assert (log.start_offset, log.end_offset, log.damaged) == (17, 20, [])
    log.close()


def test_open_files_are_bounded_whatever_the_number_of_logs(tmp_path: Path) -> None:
    from fanlog.log.disk import LogResources  # noqa: PLC0415

    shared = LogResources(msgspec.structs.replace(OPTIONS, open_segments_max=16))
    logs = [PartitionLog.open(f"{tmp_path}/{i}", SETTINGS, OWNER, shared) for i in range(50)]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for log in logs:
            append(log, make_batch(log.end_offset))
    assert len(os.listdir("/proc/self/fd")) - before <= 16
    for log in logs:
        assert list(read_batches(log)) == [make_batch(i).data for i in range(3)]
        log.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_readers_in_other_threads_see_whole_batches_while_the_log_grows_and_shrinks(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, changed(retention_bytes=64 * KIB))
    append(log, make_batch(0))
    faults: list[BaseException] = []
    stop = threading.Event()

    def follow() -> None:
        offset = 0
        try:
            while not stop.is_set():
                end = log.end_offset
                if offset >= end:
                    offset = max(0, end - 50)
                    continue
                try:
                    block = log.read(offset, end)
                except OffsetOutOfRangeError:
                    offset = log.start_offset
                    continue
                assert block.base_offset == offset
                offset = block.next_offset
                assert 0 <= log.offset_at(1000 + offset) <= log.end_offset
        except BaseException as fault:  # noqa: BLE001 - the test's thread reports it
            faults.append(fault)

    readers = [threading.Thread(target=follow) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(1, 4000):
        append(log, make_batch(i, time_us=1000 + i))
        if i % 100 == 0:
            log.retain(0)
    stop.set()
    for reader in readers:
        reader.join()
    assert not faults
    assert log.damaged == []
    log.close()


def test_a_closed_and_a_deleted_log_say_so(tmp_path: Path) -> None:
    log = open_log(tmp_path / "0")
    fill(log, 30)
    log.close()
    with pytest.raises(ClosedError, match="closed"):
        append(log, make_batch(30))
    log.delete()
    assert not (tmp_path / "0").exists()
    with pytest.raises(TopicDeletedError):
        append(log, make_batch(30))
    with pytest.raises(TopicDeletedError):
        log.read(0, 30)
    with pytest.raises(TopicDeletedError):
        log.offset_at(0)


def test_a_segment_file_that_is_gone_is_damage_that_is_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    _, second, third = (int(path.stem) for path in segments(tmp_path)[:3])
    segments(tmp_path)[1].unlink()
    with pytest.raises(DamagedError, match="the file is gone") as caught:
        log.read(second + 1, 100)
    assert (caught.value.first, caught.value.next) == (second, third)
    log.close()
    # After a restart it shows as an early end of the segment before it.
    log = open_log(tmp_path)
    with pytest.raises(DamagedError) as caught:
        log.read(second, 100)
    assert (caught.value.first, caught.value.next) == (second, third)
    log.close()
