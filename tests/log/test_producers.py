"""Producers across segments: what a new segment writes down, and what a start makes of it."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import FormatError
from fanlog.log import disk as disk_module
from fanlog.log.partition import PartitionLog, ProducerRun
from fanlog.log.producers import ProducerRuns, decode_producers, encode_producers
from fanlog.log.scan import FoundBatch
from tests.log.pieces import append, make_batch, open_log

NUMBERS = st.integers(0, 1 << 40)


def kept(folder: Path) -> list[int]:
    """The segments that have a file of producers."""
    return sorted(int(path.stem) for path in folder.glob("*.producers"))


def found_batch(
    base: int, producer: tuple[int, int, int], count: int, span: int | None = None
) -> FoundBatch:
    producer_id, epoch, sequence = producer
    return FoundBatch(
        80, epoch, base, 0, producer_id, sequence, count, count if span is None else span, 1
    )


class Writer:
    """Two producers that write in turn, and the broker's part: who has written so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = open_log(folder)
        self.runs = ProducerRuns()
        self.runs.add_runs(self.log.recovered)
        self.log.keep_producers(self.runs.histories)
        self.sequences = [0, 0]

    def write(self, pieces: int, *, count: int = 2) -> None:
        for _ in range(pieces):
            for i, producer_id in enumerate((5, 9)):
                base = self.log.end_offset
                producer = (producer_id, 1, self.sequences[i])
                batch = make_batch(base, count=count, size=200, producer=producer)
                # The broker counts a batch before it is in the log: a roll in between must cope.
                self.runs.add([found_batch(base, producer, count)])
                append(self.log, batch)
                self.sequences[i] += count

    def reopen(self) -> PartitionLog:
        self.log.close()
        self.log = open_log(self.folder)
        return self.log


def written(folder: Path, *, segments: int = 3) -> Writer:
    writer = Writer(folder)
    while writer.log.segment_count < segments:
        writer.write(1)
    writer.write(1)
    return writer


@st.composite
def written_runs(draw: st.DrawFn) -> ProducerRuns:
    """Producers that wrote in turn, with numbers as large as they get."""
    found = ProducerRuns()
    base = draw(NUMBERS)
    for producer_id, count, gap in draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 1 << 40), NUMBERS), max_size=20)
    ):
        base += gap
        found.add_runs([ProducerRun(producer_id, 3, base, count, base)])
        base += count
    return found


@given(written_runs(), st.integers(0, 1 << 43))
def test_a_file_of_producers_has_what_was_written_before_its_segment(
    found: ProducerRuns, base: int
) -> None:
    expected = [
        run._replace(record_count=min(run.record_count, base - run.base_offset))
        for run in found.in_order()
        if run.base_offset < base
    ]
    assert sorted(decode_producers(encode_producers(base, found.histories()), base).runs) == sorted(
        expected
    )


@given(written_runs(), st.data())
def test_a_file_of_producers_with_a_wrong_byte_is_refused(
    found: ProducerRuns, data: st.DataObject
) -> None:
    base = 1 << 60
    whole = encode_producers(base, found.histories())
    at = data.draw(st.integers(0, len(whole) - 1))
    mask = data.draw(st.integers(1, 255))
    bad = whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]
    with pytest.raises(FormatError):
        decode_producers(bad, base)
    with pytest.raises(FormatError):
        decode_producers(whole[:at], base)
    with pytest.raises(FormatError):
        decode_producers(whole, base + 1)


def test_of_a_producer_with_a_new_epoch_only_that_is_kept() -> None:
    runs = [ProducerRun(5, 1, 0, 9, 0), ProducerRun(5, 2, 0, 3, 9), ProducerRun(5, 2, 3, 1, 20)]
    found = ProducerRuns()
    found.add_runs(runs)
    assert decode_producers(encode_producers(30, found.histories()), 30).runs == runs[1:]


def test_what_was_before_a_compacted_batch_is_forgotten_and_not_guessed() -> None:
    """Its producer's later batches may be among those that went."""
    found = ProducerRuns()
    found.add([found_batch(0, (5, 1, 0), 4), found_batch(4, (9, 1, 0), 4)])
    found.add([found_batch(8, (0, 0, 0), 1, span=6), found_batch(14, (9, 1, 10), 2)])
    assert found.in_order() == [ProducerRun(9, 1, 10, 2, 14)]


def test_a_start_knows_who_wrote_the_segments_that_it_does_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written(tmp_path)
    expected = writer.runs.in_order()
    with caplog.at_level(logging.WARNING):
        log = writer.reopen()
    assert log.recovered == expected
    assert caplog.messages == []
    assert kept(tmp_path) == [int(max(tmp_path.glob("*.log")).name[:20])]


def test_each_new_segment_takes_the_file_of_the_one_before_away(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert kept(tmp_path) == []
    for segments in (2, 3, 4):
        while writer.log.segment_count < segments:
            writer.write(1)
        assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("fault", ["missing", "damaged", "empty", "of another segment"])
def test_without_a_whole_file_the_earlier_segments_are_read(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written(tmp_path)
    expected = writer.runs.in_order()
    (path,) = tmp_path.glob("*.producers")
    data = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "damaged":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif fault == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(encode_producers(1, []))
    with caplog.at_level(logging.WARNING):
        assert writer.reopen().recovered == expected
    assert "no complete file of producers" in caplog.text
    caplog.clear()
    # It was written anew, so that the next start is quick again.
    assert path.read_bytes() == data
    assert writer.reopen().recovered == expected
    assert caplog.messages == []


def test_a_crash_before_the_file_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written(tmp_path, segments=2)
    before = kept(tmp_path)

    def crash(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(disk_module, "write_producers", crash)
        while writer.log.segment_count < 3:
            writer.write(1)
    assert kept(tmp_path) == before
    caplog.clear()
    assert writer.reopen().recovered == writer.runs.in_order()
    assert f"from offset {before[0]} on" in caplog.text


def test_a_crash_before_the_old_file_is_removed_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = written(tmp_path)
    older = sorted(tmp_path.glob("*.log"))[1]
    (newest,) = kept(tmp_path)
    Path(str(older.with_suffix(".producers"))).write_bytes(encode_producers(1, []))
    (tmp_path / f"{10**15:020d}.producers").write_bytes(b"of a segment that never was")
    assert writer.reopen().recovered == writer.runs.in_order()
    assert kept(tmp_path) == [newest]


def test_a_full_disk_keeps_the_file_from_being_written_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = written(tmp_path, segments=2)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(disk_module, "write_producers", full)
        while writer.log.segment_count < 4:
            writer.write(1)
    newest = int(max(tmp_path.glob("*.log")).name[:20])
    assert kept(tmp_path) != [newest]
    writer.log.drop_before(newest)
    assert kept(tmp_path) == [newest]
    assert writer.reopen().recovered == writer.runs.in_order()


def test_producers_outlive_the_segments_that_they_wrote(tmp_path: Path) -> None:
    writer = written(tmp_path)
    writer.log.drop_before(writer.log.end_offset)
    assert writer.log.start_offset > 0
    assert writer.reopen().recovered == writer.runs.in_order()


def test_a_deleted_log_leaves_no_file_of_producers(tmp_path: Path) -> None:
    writer = written(tmp_path / "log")
    writer.log.delete()
    assert not (tmp_path / "log").exists()
