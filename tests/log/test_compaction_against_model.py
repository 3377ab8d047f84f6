"""A compacted log says of every key what a plain list of all records would, through rolls, runs,
restarts, deletions, and a crash at any step of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanlog.format.codecs import Codec
from fanlog.log.partition import PartitionLog
from tests.log.compacting import COMPACTED, Row, begin, check_files, compact, put, rows
from tests.log.pieces import OPTIONS, open_log
from tests.quick_folders import quick_folder

SECOND_US = 1_000_000
TOMBSTONE_SECONDS = 100
# What changes files: a process that is gone does none of it.
CALLS = ("open", "pwrite", "fdatasync", "fsync", "rename", "replace", "unlink", "ftruncate")

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"long" * 20, None])
values = st.one_of(st.none(), st.binary(max_size=400))


class CrashError(BaseException):
    """The process is gone."""


@contextmanager
def crash_at(step: int) -> Iterator[None]:
    """Lets so many calls through. The next one is done by half, if it can be, and none after."""
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}
    left = step

    def patched(name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal left
            if name == "open" and not given[1] & (os.O_CREAT | os.O_TRUNC):
                return real[name](*given)
            left -= 1
            if left < 0:
                if left == -1 and name == "pwrite":
                    fd, data, at = given
                    real[name](fd, bytes(data)[: len(data) // 2], at)
                raise CrashError
            return real[name](*given)

        return call

    try:
        for name in CALLS:
            setattr(os, name, patched(name))
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)


class Written(NamedTuple):
    key: bytes | None
    value: bytes | None
    time_us: int


class CompactedAgainstList(RuleBasedStateMachine):
    """The model is every record ever written; its index is its offset."""

    log: PartitionLog

    @initialize(keys_max=st.sampled_from([2, 5, 1000]))
    def begin(self, keys_max: int) -> None:
        self.held = ExitStack()
        self.folder = self.held.enter_context(quick_folder()) / "0"
        self.settings = msgspec.structs.replace(COMPACTED, tombstone_seconds=TOMBSTONE_SECONDS)
        self.options = msgspec.structs.replace(OPTIONS, compaction_keys_max=keys_max)
        self.model: list[Written] = []
        self.start = 0
        self.now_us = 1000 * SECOND_US
        self.reopen()

    def reopen(self) -> None:
        self.log = open_log(self.folder, self.settings, self.options)

    @rule(
        pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=30),
        wait_seconds=st.integers(0, 60),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZLIB]),
    )
    def publish(
        self, pairs: list[tuple[bytes | None, bytes | None]], wait_seconds: int, codec: Codec
    ) -> None:
        self.now_us += wait_seconds * SECOND_US
        put(self.log, *pairs, time_us=self.now_us, codec=codec)
        self.model += [Written(key, value, self.now_us) for key, value in pairs]

    @rule(everything=st.booleans())
    def compact(self, everything: bool) -> None:
        compact(self.log, self.now_us, everything=everything)
        if everything:
            found = [row[1] for row in rows(self.log) if row[1] is not None]
            assert len(found) == len(set(found))

    @rule(step=st.integers(0, 40), everything=st.booleans())
    def crash_in_a_run(self, step: int, everything: bool) -> None:
        try:
            with crash_at(step):
                compact(self.log, self.now_us, everything=everything)
        except CrashError:
            pass
        self.restart()

    @rule(pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=20))
    def publish_during_a_run(self, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
        run = begin(self.log, self.now_us)
        while (rewritten := run.step()) is not None:
            self.publish(pairs, 0, Codec.NONE)
            run.swap(rewritten)

    @rule(place=st.floats(0, 1))
    def delete_records(self, place: float) -> None:
        self.start += int(place * (len(self.model) - self.start))
        assert self.log.delete_before(self.start) == self.start

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.reopen()

    @rule()
    def nothing_is_left_behind(self) -> None:
        """After a start every file is one of the list."""
        self.restart()
        check_files(self.folder, self.log)

    @invariant()
    def every_key_has_its_last_value(self) -> None:
        log, model, start = self.log, self.model, self.start
        assert (log.start_offset, log.end_offset) == (start, len(model))
        found = rows(log)
        assert log.damaged == []
        offsets = [row[0] for row in found]
        assert offsets == sorted(set(offsets))
        assert all(model[offset][:2] == (key, value) for offset, key, value in found)
        written = [(i, *model[i][:2]) for i in range(start, len(model))]
        assert last_values(found) == last_values(written)
        assert [r for r in found if r[1] is None] == [r for r in written if r[1] is None]
        # A tombstone that is young, and the last of its key, is still there.
        last = {key: offset for offset, key, _ in written if key is not None}
        young_us = self.now_us - TOMBSTONE_SECONDS * SECOND_US
        assert {
            offset
            for offset in last.values()
            if model[offset].value is None and model[offset].time_us >= young_us
        } <= set(offsets)

    def teardown(self) -> None:
        if hasattr(self, "held"):
            with self.held:
                self.log.close()


def last_values(found: list[Row]) -> dict[bytes, bytes]:
    """What someone knows who has read all of it."""
    known: dict[bytes, bytes] = {}
    for _, key, value in found:
        if key is not None and value is not None:
            known[key] = value
        elif key is not None:
            known.pop(key, None)
    return known


TestCompactedAgainstList = CompactedAgainstList.TestCase
TestCompactedAgainstList.settings = hypothesis_settings(
    max_examples=80, stateful_step_count=30, deadline=None
)


def test_a_crash_at_any_step_of_a_run_loses_and_brings_back_nothing(tmp_path: Path) -> None:
    """Every step in turn: the run's steps are all gone through once one crash comes too late."""
    step, finished = 0, False
    while not finished:
        folder = tmp_path / str(step)
        log = open_log(folder, COMPACTED)
        for i in range(40):
            value = None if i in (20, 39) else b"%d" % i * 60
            put(log, (b"k%d" % (i % 5), value), (b"same", value))
        expected = last_values(rows(log))
        try:
            with crash_at(step):
                compact(log, 10**15)
            finished = True
        except CrashError:
            step += 1
        log.close()
        log = open_log(folder, COMPACTED)
        for _ in range(2):
            assert last_values(rows(log)) == expected
            assert (log.start_offset, log.end_offset, log.damaged) == (0, 80, [])
            check_files(folder, log)
            compact(log, 10**15)
        assert len(rows(log)) == len(expected)
        log.close()
    assert step > 20
