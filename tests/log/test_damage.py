"""Damage in sealed segments: found when it is read, named exactly, and left where it is."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.errors import DamagedError
from fanlog.log.damage import ACCEPTED, Quarantine
from fanlog.log.partition import PartitionLog
from fanlog.model import KIB, DamagedRange
from tests.log.pieces import (
    OPTIONS,
    OWNER,
    SETTINGS,
    Sample,
    fill,
    open_log,
    read_around_damage,
    segments,
)


def sealed(folder: Path) -> list[Sample]:
    """A log whose first segment is sealed and holds several batches."""
    log = open_log(folder)
    samples = fill(log, 30, size=200)
    log.close()
    return samples


def spoil(path: Path, *positions: int) -> None:
    data = bytearray(path.read_bytes())
    for at in positions:
        data[at] ^= 0x10
    path.write_bytes(data)


def hit_by(samples: list[Sample], position: int) -> int:
    end = 0
    for i, sample in enumerate(samples):
        end += len(sample.data)
        if position < end:
            return i
    raise AssertionError(position)


def test_a_flipped_byte_anywhere_in_a_sealed_segment_loses_exactly_its_batch(
    tmp_path: Path,
) -> None:
    samples = sealed(tmp_path)
    path = segments(tmp_path)[0]
    size = path.stat().st_size
    log = open_log(tmp_path)
    two_batches = len(samples[0].data) * 2
    for at in [*range(two_batches), *range(two_batches, size, 17), size - 1]:
        spoil(path, at)
        i = hit_by(samples, at)
        found, lost = read_around_damage(log)
        assert lost == [(i, i + 1)], at
        assert found == [s.data for s in samples if s.base != i]
        spoil(path, at)
    assert read_around_damage(log)[1] == []
    log.close()


@settings(max_examples=60, deadline=None)
@given(places=st.lists(st.floats(0, 0.999), min_size=1, max_size=6))
def test_any_number_of_flipped_bytes_lose_exactly_their_batches(
    tmp_path_factory: pytest.TempPathFactory, places: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    samples = sealed(folder)
    path = segments(folder)[0]
    positions = {int(place * path.stat().st_size) for place in places}
    spoil(path, *positions)
    bad = {hit_by(samples, at) for at in positions}
    log = open_log(folder)
    found, lost = read_around_damage(log)
    assert {i for first, after in lost for i in range(first, after)} == bad
    assert found == [s.data for s in samples if s.base not in bad]
    assert {i for d in log.damaged for i in range(d.first, d.next)} == bad
    known = log.damaged
    log.close()
    log = open_log(folder)
    assert log.damaged == known
    log.close()


def test_a_block_ends_before_damage_and_the_next_read_names_it(tmp_path: Path) -> None:
    samples = sealed(tmp_path)
    spoil(segments(tmp_path)[0], 3 * len(samples[0].data) + 100)
    log = open_log(tmp_path)
    assert log.damaged == []
    assert log.read(0, 30).next_offset == 3
    # The damage behind the block was seen by nobody yet.
    with pytest.raises(DamagedError, match=r"Records 3 to 3 .* Continue at 4") as caught:
        log.read(3, 30)
    assert (caught.value.first, caught.value.next) == (3, 4)
    assert [(d.first, d.next) for d in log.damaged] == [(3, 4)]
    assert log.read(4, 30).base_offset == 4
    log.close()


def test_damage_up_to_the_end_of_a_segment_goes_on_to_the_next_segment(tmp_path: Path) -> None:
    samples = sealed(tmp_path)
    path = segments(tmp_path)[0]
    second = int(segments(tmp_path)[1].stem)
    data = path.read_bytes()
    path.write_bytes(data[: 2 * len(samples[0].data)].ljust(len(data), b"\0"))
    log = open_log(tmp_path)
    found, lost = read_around_damage(log)
    assert lost == [(2, second)]
    assert found == [s.data for s in samples if not 2 <= s.base < second]
    log.close()


def test_a_segment_that_was_cut_short_is_damage_up_to_the_next(tmp_path: Path) -> None:
    samples = sealed(tmp_path)
    path = segments(tmp_path)[0]
    second = int(segments(tmp_path)[1].stem)
    os.truncate(path, 2 * len(samples[0].data))
    log = open_log(tmp_path)
    assert read_around_damage(log)[1] == [(2, second)]
    assert log.offset_at(samples[3].time_us) == second
    log.close()


def test_damage_is_never_said_to_reach_past_the_end_that_readers_may_see(tmp_path: Path) -> None:
    samples = sealed(tmp_path)
    size = len(samples[0].data)
    log = open_log(tmp_path)
    spoil(segments(tmp_path)[0], 3 * size + 100, 4 * size + 100)
    with pytest.raises(DamagedError) as caught:
        log.read(3, 4)
    assert (caught.value.first, caught.value.next) == (3, 4)
    log.close()


def test_a_time_in_a_damaged_stretch_is_the_first_offset_after_it(tmp_path: Path) -> None:
    samples = sealed(tmp_path)
    spoil(segments(tmp_path)[0], 3 * len(samples[0].data) + 100)
    log = open_log(tmp_path)
    assert log.offset_at(samples[3].time_us) == 4
    assert log.offset_at(samples[2].time_us) == 2
    log.close()


def test_pages_that_the_disk_can_not_give_are_damage_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = msgspec.structs.replace(SETTINGS, segment_bytes=64 * KIB)
    log = open_log(tmp_path, roomy)
    samples = fill(log, 400, size=200)
    pread = os.pread

    def faulty(fd: int, size: int, at: int) -> bytes:
        if at < 12288 and at + size > 8192:
            raise OSError(errno.EIO, "bad sector")
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", faulty)
    size = len(samples[0].data)
    found, lost = read_around_damage(log)
    assert lost[0] == (8192 // size, -(-12288 // size))
    assert len(found) + sum(after - first for first, after in lost) == 400
    log.close()


def test_a_reader_learns_of_damage_even_when_the_list_of_it_can_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = sealed(tmp_path)
    spoil(segments(tmp_path)[0], 100)
    log = open_log(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    found, lost = read_around_damage(log)
    assert lost == [(0, 1)]
    assert len(found) == len(samples) - 1
    log.close()


def test_a_list_of_damage_that_can_not_be_read_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text("{")
    quarantine = Quarantine(str(tmp_path), OWNER, set())
    problems: list[str] = []
    quarantine.load(problems.append)
    assert quarantine.ranges == []
    assert "reading finds the same damage again" in problems[0]
    quarantine.add(DamagedRange(5, 7, "f", "r"))
    quarantine.add(DamagedRange(7, 9, "f", "r"))
    quarantine.add(DamagedRange(6, 8, "f", "r"))
    quarantine.add(DamagedRange(1, 2, "f", "r"))
    assert [(r.first, r.next) for r in quarantine.ranges] == [(1, 2), (5, 9)]
    assert len(json.loads((tmp_path / "damaged.json").read_text())["damaged"]) == 2


def test_damage_that_was_found_since_a_loss_was_accepted_is_not_accepted(tmp_path: Path) -> None:
    quarantine = Quarantine(str(tmp_path), OWNER, set())
    quarantine.add(DamagedRange(5, 7, "f", "r"))
    quarantine.accept()
    quarantine.add(DamagedRange(6, 9, "f", "r"))
    quarantine.add(DamagedRange(3, 5, "f", "r"))
    found = [(r.first, r.next, r.reason) for r in quarantine.ranges]
    assert found == [(3, 5, "r"), (5, 7, ACCEPTED), (7, 9, "r")]
    assert quarantine.known(DamagedRange(5, 6, "f", "r")).reason == ACCEPTED
    assert quarantine.known(DamagedRange(6, 8, "f", "r")).reason == "r"


def test_damage_under_a_read_block_of_any_size_is_the_same(tmp_path: Path) -> None:
    samples = sealed(tmp_path)
    size = len(samples[0].data)
    spoil(segments(tmp_path)[0], size + 60, 5 * size + 3)
    for block_bytes in (64, 300, 1000, 1 << 20):
        options = msgspec.structs.replace(OPTIONS, read_block_bytes=block_bytes)
        log: PartitionLog = open_log(tmp_path, options=options)
        found, lost = read_around_damage(log)
        assert lost == [(1, 2), (5, 6)]
        assert found == [s.data for s in samples if s.base not in (1, 5)]
        log.close()
