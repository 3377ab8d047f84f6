"""A log's epochs: what they say of a reader's position is true, whatever a crash took."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fanlog.format.checksum import crc32c
from fanlog.format.header import read_header
from fanlog.log import replay
from fanlog.log.disk import LogResources
from fanlog.log.epochs import EpochStart, before, parted_at, since, with_epoch
from fanlog.log.partition import PartitionLog
from fanlog.log.producers import decode_producers, encode_producers
from fanlog.log.replay import Journaled
from tests.log.compacting import COMPACTED, compact, keyed_batch
from tests.log.pieces import OPTIONS, OWNER, SETTINGS, append, make_batch, open_log, segments
from tests.quick_folders import quick_folder

HISTORY = (EpochStart(2, 0), EpochStart(5, 100), EpochStart(6, 300))


@pytest.mark.parametrize(
    ("epoch", "parted"), [(0, None), (1, 0), (2, 100), (4, 100), (5, 300), (6, None), (9, None)]
)
def test_a_log_parts_from_a_reader_where_a_later_epoch_begins(
    epoch: int, parted: int | None
) -> None:
    assert parted_at(HISTORY, epoch) == parted


def test_a_history_is_cut_on_both_sides() -> None:
    assert before(HISTORY, 100) == HISTORY[:1]
    assert before(HISTORY, 101) == HISTORY[:2]
    assert since(HISTORY, 99) == HISTORY
    assert since(HISTORY, 100) == HISTORY[1:]
    assert since(HISTORY, 1000) == HISTORY[2:]
    assert since((), 5) == before((), 5) == ()


def test_only_a_higher_epoch_is_new() -> None:
    assert with_epoch(HISTORY, 6, 400) is HISTORY
    assert with_epoch(HISTORY, 3, 400) is HISTORY
    assert with_epoch(HISTORY, 7, 400) == (*HISTORY, (7, 400))


def write(log: PartitionLog, epoch: int, batches: int = 1, size: int = 100) -> None:
    for _ in range(batches):
        append(log, make_batch(log.end_offset, count=2, size=size, epoch=epoch))


def reopened(log: PartitionLog, folder: Path) -> PartitionLog:
    log.close()
    return open_log(folder)


def written(folder: Path) -> PartitionLog:
    """A log of three epochs and several segments, all of them sealed in the second epoch."""
    log = open_log(folder)
    for epoch, batches in ((1, 2), (3, 40), (4, 1)):
        write(log, epoch, batches)
        log = reopened(log, folder)
    assert log.segment_count > 2
    return log


THREE = ((1, 0), (3, 4), (4, 84))


def test_a_start_knows_the_epochs_of_segments_that_it_does_not_read(tmp_path: Path) -> None:
    assert written(tmp_path).epochs == THREE


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_without_a_whole_file_the_epochs_come_from_the_batches(tmp_path: Path, fault: str) -> None:
    log = written(tmp_path)
    (path,) = tmp_path.glob("*.producers")
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert reopened(log, tmp_path).epochs == THREE
    assert decode_producers(path.read_bytes(), int(path.stem)).epochs == THREE[:2]


def test_a_file_of_before_epochs_were_kept_says_nothing_of_them(tmp_path: Path) -> None:
    """What came later is known, and so is that nothing can be said of what was before."""
    log = written(tmp_path)
    (path,) = tmp_path.glob("*.producers")
    base = int(path.stem)
    new = encode_producers(base, [])
    old = b"FANLPRD1" + new[8:24]
    path.write_bytes(old[:8] + crc32c(old[12:]).to_bytes(4, "little") + old[12:])
    write(log, 4)
    log = reopened(log, tmp_path)
    assert log.epochs == ((4, max(base, 84)),)


def test_a_log_that_was_emptied_goes_on_with_what_is_new(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.delete_before(log.end_offset)
    assert log.epochs == THREE[2:]
    log = reopened(log, tmp_path)
    write(log, 9)
    assert log.epochs[-1] == (9, 86)
    assert parted_at(log.epochs, 4) == 86


def test_offsets_that_were_deleted_and_lost_are_not_taken_for_those_that_come(
    tmp_path: Path,
) -> None:
    """The records went in a crash, but not the note that they were deleted."""
    log = open_log(tmp_path)
    write(log, 1, 20)
    log.delete_before(30)
    log.close()
    os.truncate(segments(tmp_path)[-1], 0)
    log = open_log(tmp_path)
    assert log.end_offset == 30
    write(log, 2)
    assert log.epochs[-1] == (2, 30)


def test_batches_that_the_journal_brings_back_keep_their_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 1, 3)
    log.close()
    journaled = Journaled()
    for base, epoch in ((0, 1), (2, 1), (4, 1), (6, 2), (8, 4)):
        data = make_batch(base, count=2, epoch=epoch).data
        journaled.add(read_header(data), memoryview(data))
    os.truncate(segments(tmp_path)[-1], len(make_batch(0, count=2).data))
    known = replay.Known(journaled, promised_end=10)
    log = PartitionLog.open(os.fspath(tmp_path), SETTINGS, OWNER, LogResources(OPTIONS), known)
    assert log.epochs == ((1, 0), (2, 6), (4, 8))


class Known(NamedTuple):
    """What a reader has read: the next offset, the epoch, and what was there."""

    offset: int
    epoch: int
    records: tuple[int, ...]


class EpochsAgainstIdentities(RuleBasedStateMachine):
    """Every record has an identity of its own. A position still counts if the log has the same
    records before it as when it was taken; the log's epochs must say the same."""

    log: PartitionLog

    @initialize()
    def begin(self) -> None:
        self.held = ExitStack()
        self.folder = self.held.enter_context(quick_folder()) / "0"
        self.log = open_log(self.folder, COMPACTED)
        self.epoch = 1
        self.records: list[int] = []
        # Of each batch: where it ends, and its epoch.
        self.ends: list[tuple[int, int]] = []
        self.identity = 0
        self.known: list[Known] = []
        self.compacted = False

    @rule(batches=st.integers(1, 12), count=st.integers(1, 4), size=st.sampled_from([10, 400]))
    def append(self, batches: int, count: int, size: int) -> None:
        for _ in range(batches):
            base = self.log.end_offset
            pairs = [(b"k%d" % (i % 3), b"v" * size) for i in range(count)]
            append(self.log, keyed_batch(base, pairs, epoch=self.epoch))
            self.records += range(self.identity, self.identity + count)
            self.identity += count
            self.ends.append((base + count, self.epoch))

    @precondition(lambda self: self.ends)
    @rule(data=st.data(), by_batch=st.booleans())
    def read(self, data: st.DataObject, by_batch: bool) -> None:
        """A position has the epoch of the last batch, or that of the broker then."""
        offset, epoch = data.draw(st.sampled_from(self.ends))
        records = tuple(self.records[:offset])
        self.known.append(Known(offset, epoch if by_batch else self.epoch, records))

    @rule(starts=st.integers(1, 3))
    def restart(self, starts: int) -> None:
        self.log.close()
        self._open(starts)

    def _open(self, starts: int) -> None:
        self.log = open_log(self.folder, COMPACTED)
        self.epoch += starts
        end = self.log.end_offset
        del self.records[end:]
        self.ends = [known for known in self.ends if known[0] <= end]

    @rule(data=st.data())
    def lose_the_end(self, data: st.DataObject) -> None:
        """A crash takes some batches of the newest segment, or all of it with its name."""
        self.log.close()
        files = segments(self.folder) if self.folder.exists() else []
        if files:
            places = _batch_ends(files[-1])
            at = data.draw(st.sampled_from([0, *places]))
            # Compaction makes the names durable. Without the file beside the newest segment, the
            # epochs of a compacted log begin where the first record of each is that is left.
            nameless = not self.compacted and data.draw(st.booleans())
            if not at and len(files) > 1 and nameless:
                files[-1].unlink()
            else:
                os.truncate(files[-1], at)
        self._open(1)

    @precondition(lambda self: not self.compacted)
    @rule()
    def lose_the_file_of_producers(self) -> None:
        self.log.close()
        for path in self.folder.glob("*.producers"):
            path.write_bytes(b"")
        self._open(1)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.start_offset, self.log.end_offset))
        self.log.delete_before(offset)

    @rule()
    def compact(self) -> None:
        self.compacted = True
        compact(self.log)

    @invariant()
    def positions_count_if_what_they_are_behind_is_there(self) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        assert end == len(self.records)
        for known in self.known:
            parted = parted_at(self.log.epochs, known.epoch)
            limit = end if parted is None else parted
            same = _same(known.records, self.records)
            if known.offset < start:
                continue  # Whatever it was, it is not kept any more.
            assert (known.offset <= limit) == (same >= known.offset)
            if known.offset > limit:
                assert max(start, limit) == max(start, same)

    def teardown(self) -> None:
        self.log.close()
        self.held.close()


def _same(one: tuple[int, ...], other: list[int]) -> int:
    """How many records both begin with."""
    count = min(len(one), len(other))
    return next((i for i in range(count) if one[i] != other[i]), count)


def _batch_ends(path: Path) -> list[int]:
    data = path.read_bytes()
    ends: list[int] = []
    at = 0
    while at + 64 <= len(data) and (length := int.from_bytes(data[at : at + 4], "little")):
        at += length
        ends.append(at)
    return ends


TestEpochsAgainstIdentities = EpochsAgainstIdentities.TestCase
TestEpochsAgainstIdentities.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
