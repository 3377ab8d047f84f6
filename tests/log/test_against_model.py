"""A log does what a plain list of batches would, through rolls, restarts and retention."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanlog.errors import OffsetOutOfRangeError
from fanlog.log.partition import PartitionLog
from tests.log.pieces import SETTINGS, Sample, append, make_batch, open_log, read_batches
from tests.quick_folders import quick_folder


class LogAgainstList(RuleBasedStateMachine):
    """The model is a list of batches, and the offset it begins with."""

    log: PartitionLog

    @initialize()
    def begin(self) -> None:
        self.held = ExitStack()
        self.folder = self.held.enter_context(quick_folder()) / "0"
        self.settings = msgspec.structs.replace(SETTINGS, retention_seconds=1)
        self.log = open_log(self.folder, self.settings)
        self.model: list[Sample] = []
        self.now_us = 10_000_000

    @rule(
        counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
        size=st.sampled_from([0, 10, 200, 900]),
        wait_us=st.integers(0, 300_000),
    )
    def append(self, counts: list[int], size: int, wait_us: int) -> None:
        piece: list[Sample] = []
        base = self.log.end_offset
        for count in counts:
            piece.append(make_batch(base, count=count, time_us=self.now_us, size=size))
            base = piece[-1].next
            self.now_us += wait_us
        append(self.log, *piece)
        self.model += piece

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = open_log(self.folder, self.settings)

    @rule(wait_us=st.integers(0, 2_000_000))
    def retain_by_age(self, wait_us: int) -> None:
        self.now_us += wait_us
        before = self.log.start_offset
        deleted = self.log.retain(self.now_us)
        assert self.log.start_offset == before + deleted
        gone = [s for s in self.model if s.base < self.log.start_offset]
        oldest_us = self.now_us - 1_000_000
        assert all(s.time_us < oldest_us for s in gone)
        self.model = self.model[len(gone) :]
        if self.model:
            assert self.model[0].base == self.log.start_offset
            assert any(s.time_us >= oldest_us for s in self.model)

    @rule(bytes_max=st.integers(1, 20_000))
    def retain_by_size(self, bytes_max: int) -> None:
        settings = msgspec.structs.replace(
            self.settings, retention_seconds=0, retention_bytes=bytes_max
        )
        self.log.settings = settings
        self.log.retain(self.now_us)
        disk = self.log._disk
        assert disk is not None
        # One that is larger than the settings allow stays if little is kept without it.
        first = disk.segments[0].bytes if disk.segments else 0
        large = first > disk.segment_limit() and self.log.bytes - first < bytes_max
        self.log.settings = self.settings
        assert self.log.bytes <= bytes_max or self.log.segment_count == 1 or large
        self.model = [s for s in self.model if s.base >= self.log.start_offset]

    @rule(place=st.floats(0, 1), room=st.floats(0, 1))
    def read_from_anywhere(self, place: float, room: float) -> None:
        if not self.model:
            return
        end = self.model[int(room * (len(self.model) - 1))].next
        start = self.log.start_offset
        offset = start + int(place * (end - start - 1))
        block = self.log.read(offset, end)
        first = next(i for i, s in enumerate(self.model) if s.next > offset)
        assert block.base_offset == self.model[first].base
        assert block.next_offset <= end
        expected = b"".join(s.data for s in self.model[first:] if s.next <= block.next_offset)
        assert block.data == expected
        # All that lies in one segment and fits a block comes at once.
        assert block.data

    @rule(before_us=st.integers(-1_000, 3_000_000))
    def look_for_a_time(self, before_us: int) -> None:
        time_us = self.now_us - before_us
        i = bisect_left([s.time_us for s in self.model], time_us)
        expected = self.model[i].base if i < len(self.model) else self.log.end_offset
        assert self.log.offset_at(time_us) == expected

    @rule()
    def read_everything(self) -> None:
        start = self.log.start_offset
        assert list(read_batches(self.log, start)) == [s.data for s in self.model]
        if start:
            try:
                self.log.read(start - 1, start + 1)
                raise AssertionError("what was deleted can't be read")
            except OffsetOutOfRangeError:
                pass

    @invariant()
    def the_numbers_fit(self) -> None:
        log = self.log
        assert log.bytes == sum(len(s.data) for s in self.model)
        assert log.start_offset == (self.model[0].base if self.model else log.end_offset)
        assert log.tail.end_offset == log.end_offset
        assert log.start_offset <= log.tail.start_offset or not log.tail.bytes
        assert log.damaged == []
        if self.model:
            assert log.end_offset == self.model[-1].next
            assert log.last_time_us == self.model[-1].time_us

    def teardown(self) -> None:
        if hasattr(self, "held"):
            with self.held:
                self.log.close()


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
