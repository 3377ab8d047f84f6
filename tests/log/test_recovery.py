"""What a start makes of the newest segment: torn tails are cut, damage is named, nothing else."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from fanlog.log.partition import PartitionLog, ProducerRun
from fanlog.log.scan import Owner
from fanlog.log.small_files import save
from fanlog.model import KIB, DamagedRange
from tests.log.pieces import (
    SETTINGS,
    Sample,
    append,
    fill,
    make_batch,
    open_log,
    read_around_damage,
    read_batches,
    segments,
)

ROOMY = msgspec.structs.replace(SETTINGS, segment_bytes=64 * KIB)


def written(folder: Path, count: int = 5) -> list[Sample]:
    log = open_log(folder, ROOMY)
    samples = fill(log, count)
    log.close()
    return samples


def ends(samples: list[Sample]) -> list[int]:
    """The position after each batch in a segment that begins with the first."""
    at = 0
    return [at := at + len(s.data) for s in samples]


def flip(path: Path, at: int, mask: int = 0x01) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def assert_continues(folder: Path, expected: list[Sample]) -> PartitionLog:
    """The log holds exactly these batches, and takes and keeps more."""
    log = open_log(folder, ROOMY)
    assert log.end_offset == (expected[-1].next if expected else 0)
    assert list(read_batches(log)) == [s.data for s in expected]
    more = make_batch(log.end_offset, time_us=10**6, size=333)
    append(log, more)
    log.close()
    log = open_log(folder, ROOMY)
    assert list(read_batches(log)) == [s.data for s in [*expected, more]]
    assert log.damaged == []
    log.close()
    return log


@pytest.mark.parametrize("rest", ["is missing", "is zero", "is garbage"])
def test_a_last_batch_that_is_torn_at_any_byte_is_cut(tmp_path: Path, rest: str) -> None:
    samples = written(tmp_path / "whole", 3)
    starts, end = ends(samples)[-2], ends(samples)[-1]
    whole = segments(tmp_path / "whole")[0].read_bytes()
    folder = tmp_path / "torn"
    folder.mkdir()
    path = folder / segments(tmp_path / "whole")[0].name
    for cut in range(starts, end):
        kept = whole[:cut]
        if rest == "is zero":
            kept = kept.ljust(len(whole), b"\0")
        elif rest == "is garbage":
            kept += b"\xbd" * 100
        path.write_bytes(kept)
        # A body may end in zeros of its own: then nothing is missing.
        lost_nothing = kept[:end] == whole[:end]
        assert_continues(folder, samples if lost_nothing else samples[:-1])


def test_a_cut_is_logged_with_its_position_and_room_that_is_zero_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = written(tmp_path)
    caplog.set_level(logging.INFO)
    open_log(tmp_path, ROOMY).close()
    assert caplog.records == []
    end = ends(samples)[-2]
    with segments(tmp_path)[0].open("r+b") as file:
        file.truncate(end + 70)
    open_log(tmp_path, ROOMY).close()
    (record,) = caplog.records
    assert record.name == "fanlog.log"
    assert f"cut at byte {end}" in record.getMessage()
    assert segments(tmp_path)[0].stat().st_size == end


def test_an_empty_or_all_zero_newest_segment_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"{0:020d}.log").touch()
    assert_continues(tmp_path / "a", [])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"{0:020d}.log").write_bytes(bytes(4096))
    assert_continues(tmp_path / "b", [])


def test_a_flipped_byte_anywhere_in_the_newest_segment_loses_exactly_its_batch(
    tmp_path: Path,
) -> None:
    samples = written(tmp_path / "whole", 4)
    whole = segments(tmp_path / "whole")[0].read_bytes()
    folder = tmp_path / "flipped"
    folder.mkdir()
    path = folder / segments(tmp_path / "whole")[0].name
    positions = ends(samples)
    for at in range(positions[-2]):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        log = open_log(folder, ROOMY)
        hit = next(i for i, end in enumerate(positions) if at < end)
        assert [(d.first, d.next) for d in log.damaged] == [(hit, hit + 1)], at
        found, lost = read_around_damage(log)
        assert lost == [(hit, hit + 1)]
        assert found == [s.data for s in samples if s.base != hit]
        assert log.end_offset == 4
        log.close()
        (folder / "damaged.json").unlink()


def test_damage_is_reported_again_after_a_restart_and_goes_with_its_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = written(tmp_path)
    path = segments(tmp_path)[0]
    flip(path, ends(samples)[0] + 80)
    flip(path, ends(samples)[1] + 80)
    before = path.read_bytes()
    log = open_log(tmp_path, ROOMY)
    assert "Records 1 to 2 are damaged" in caplog.text
    log.close()
    assert path.read_bytes() == before
    log = open_log(tmp_path, msgspec.structs.replace(ROOMY, retention_seconds=1))
    (damaged,) = log.damaged
    assert isinstance(damaged, DamagedRange)
    assert (damaged.first, damaged.next, damaged.file) == (1, 3, str(path))
    assert log.retain(10**12) == 5
    assert log.damaged == []
    log.close()
    assert not (tmp_path / "damaged.json").exists()


def test_deleted_records_are_not_damaged_again_at_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their bytes are still there, in a segment that holds later records too."""
    samples = written(tmp_path)
    path = segments(tmp_path)[0]
    flip(path, ends(samples)[0] + 80)
    flip(path, ends(samples)[1] + 80)
    log = open_log(tmp_path, ROOMY)
    # What is left of a damaged stretch is damaged still.
    assert log.delete_before(2) == 2
    assert [(d.first, d.next) for d in log.damaged] == [(2, 3)]
    log.close()
    log = open_log(tmp_path, ROOMY)
    assert [(d.first, d.next) for d in log.damaged] == [(2, 3)]
    assert read_around_damage(log) == ([s.data for s in samples[3:]], [(2, 3)])
    assert log.delete_before(4) == 4
    log.close()
    caplog.clear()
    # The second time as if a crash had left the older list of damage.
    for older in (False, True):
        if older:
            records = [{"first": 1, "next": 3, "file": str(path), "reason": "older"}]
            save(str(tmp_path / "damaged.json"), {"damaged": records}, durable=False)
        log = open_log(tmp_path, ROOMY)
        assert log.damaged == []
        assert list(read_batches(log, 4)) == [samples[4].data]
        log.close()
        assert not (tmp_path / "damaged.json").exists()
    assert "damaged" not in caplog.text


def test_a_zeroed_page_in_the_middle_is_damage_and_not_the_end(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROOMY)
    samples = fill(log, 100)
    log.close()
    with segments(tmp_path)[0].open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    positions = ends(samples)
    lost = [
        s for s, end in zip(samples, positions, strict=True)
        if end > 4096 and end - len(s.data) < 8192
    ]  # fmt: skip
    log = open_log(tmp_path, ROOMY)
    assert [(d.first, d.next) for d in log.damaged] == [(lost[0].base, lost[-1].next)]
    assert log.end_offset == 100
    found, _ = read_around_damage(log)
    assert found == [s.data for s in samples if s not in lost]
    log.close()


def test_a_batch_inside_a_message_is_not_taken_for_one_of_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROOMY)
    inner = make_batch(40, count=2)
    outer = make_batch(0, size=1)
    append(log, outer)
    # A message whose content is a batch of this very partition with a later offset.
    from fanlog.format.batch import encode_batch, stamp  # noqa: PLC0415

    owner = log.owner
    raw = encode_batch([inner.data * 3], topic=owner.topic, partition=owner.partition)
    carrier = stamp(raw, base_offset=1, append_time_us=0, leader_epoch=1, topic=owner.topic)
    log.append(carrier, 2, 0, 0)
    last = make_batch(2)
    append(log, last)
    log.close()
    flip(segments(tmp_path)[0], len(outer.data) + len(carrier) - 9)
    log = open_log(tmp_path, ROOMY)
    assert [(d.first, d.next) for d in log.damaged] == [(1, 2)]
    assert log.end_offset == 3
    log.close()


def test_another_partitions_batches_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    written(tmp_path)
    log = open_log(tmp_path, ROOMY, owner=Owner(7, 4))
    assert log.end_offset == 0
    log.close()


def test_a_start_reads_the_newest_segment_and_of_the_others_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, msgspec.structs.replace(SETTINGS, segment_bytes=64 * KIB))
    fill(log, 4000, size=200)
    log.close()
    total = sum(path.stat().st_size for path in segments(tmp_path))
    newest = segments(tmp_path)[-1].stat().st_size
    assert total > 10 * newest
    before = bytes_read()
    log = open_log(tmp_path)
    cost = bytes_read() - before
    # The scan, and a second look at the zeros behind the last batch.
    assert cost <= 2 * newest + 4 * KIB
    log.close()


def bytes_read() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def test_producers_come_back_as_runs_of_sequence_and_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROOMY)
    producers = [(5, 1, 0), (5, 1, 2), (5, 1, 4), (9, 0, 100), (5, 1, 6), (0, 0, 0), (5, 2, 0)]
    for i, producer in enumerate(producers):
        append(log, make_batch(2 * i, count=2, producer=producer))
    log.close()
    log = open_log(tmp_path, ROOMY)
    assert log.recovered == [
        ProducerRun(5, 1, 0, 6, 0),
        ProducerRun(9, 0, 100, 2, 6),
        ProducerRun(5, 1, 6, 2, 8),
        ProducerRun(5, 2, 0, 2, 12),
    ]
    log.close()


def test_leftovers_of_a_crash_are_cleared(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    samples = fill(log, 100)
    log.close()
    (tmp_path / f"{0:020d}.idx.tmp").write_bytes(b"half")
    orphan = tmp_path / f"{10**6:020d}.idx"
    shutil.copy(next(tmp_path.glob("*.idx")), orphan)
    log = open_log(tmp_path)
    assert not orphan.exists()
    assert not list(tmp_path.glob("*.tmp"))
    assert list(read_batches(log)) == [s.data for s in samples]
    log.close()


def test_a_crash_at_any_point_of_a_retention_leaves_a_log_without_holes(tmp_path: Path) -> None:
    aged = msgspec.structs.replace(SETTINGS, retention_seconds=1)
    source = tmp_path / "source"
    log = open_log(source, aged)
    samples = fill(log, 100)
    copies: list[Path] = []
    unlink = os.unlink

    def unlink_and_copy(path: str) -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(source, copies[-1])
        unlink(path)

    os.unlink = unlink_and_copy
    try:
        log.retain(samples[-1].time_us + 2_000_000)
    finally:
        os.unlink = unlink
    log.close()
    assert len(copies) > 6
    for copy in copies:
        log = open_log(copy, aged)
        assert log.end_offset == 100
        assert list(read_batches(log, log.start_offset)) == [
            s.data for s in samples[log.start_offset :]
        ]
        log.close()
