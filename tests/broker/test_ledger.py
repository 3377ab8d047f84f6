"""Ledgers: what was written is there after a restart, the last of each key, and no more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.broker.state.ledger import LEDGER_SETTINGS, Entry, Ledger
from fanlog.errors import DiskFullError, LogFailedError
from fanlog.format.messages import Position
from fanlog.log import disk
from tests.broker.stage import Stage, no_room, stage
from tests.broker.transactions.staging import settle


class Kept:
    """A dictionary that survives."""

    def __init__(self, on: Stage, *, durability: str = "fsync") -> None:
        settings = LEDGER_SETTINGS.__class__(
            durability=durability,  # type: ignore[arg-type]
            segment_bytes=64 * 1024,
            tail_bytes=4096,
            retention_seconds=0,
        )
        self.ledger = Ledger(on.core.internal, "kept", self._everything, "it is gone", settings)
        self.values: dict[bytes, bytes] = {}
        self.ledger.load(self._take)

    def set(self, key: bytes, value: bytes | None) -> None:
        entry: Entry = (key, value)
        self.ledger.write([entry])
        self._take(key, value)

    def _take(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        for key in list(self.values):
            if key in self.values:
                yield key, self.values[key]


def test_the_last_entry_of_each_key_counts_after_a_restart(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on)
        kept.set(b"a", b"1")
        kept.set(b"b", b"2")
        kept.set(b"a", b"3")
        kept.set(b"b", None)
    with stage(data) as on:
        assert Kept(on).values == {b"a": b"3"}


def test_a_ledger_stays_as_small_as_what_it_holds(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on)
        for i in range(60_000):
            kept.set(b"key-%d" % (i % 100), b"%d" % i)
            if not i % 1000:
                settle(on)
        settle(on)
        log = on.core.catalog.get("_fanlog.kept").partitions[0].log
        assert log.start_offset > 0
        assert log.bytes < 4 << 20
        values = dict(kept.values)
    with stage(data) as on:
        assert Kept(on).values == values


def test_what_is_before_a_snapshot_goes_only_when_all_of_it_is_durable(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on)
        for i in range(19_990):
            kept.set(b"key-%d" % (i % 5000), b"%d" % i)
        settle(on)
        for i in range(19_990, 20_010):
            kept.set(b"key-%d" % (i % 5000), b"%d" % i)
        log = on.core.catalog.get("_fanlog.kept").partitions[0].log
        syncs = 0
        on.run()
        while on.sync_group.waiting:
            assert log.start_offset == 0
            on.sync_group.sync()
            syncs += 1
            on.run()
        assert log.start_offset > 0
        # Five slices, of which the first goes with what piled up, and the mark.
        assert syncs == 6


def test_a_snapshot_leaves_the_loop_to_others_between_its_slices(data: Path) -> None:
    """What is written meanwhile counts, wherever the snapshot is."""
    with stage(data) as on:
        kept = Kept(on)
        for i in range(19_990):
            kept.set(b"key-%d" % (i % 7000), b"%d" % i)
        settle(on)
        for i in range(19_990, 20_010):
            kept.set(b"key-%d" % (i % 7000), b"%d" % i)
        crashes: list[tuple[Path, dict[bytes, bytes]]] = []
        turn = 0
        while on.runtime.due or on.sync_group.waiting:
            if on.runtime.due:
                on.runtime.due.popleft()()
            else:
                on.sync_group.sync()
            if turn < 20:
                kept.set(b"key-%d" % (turn * 350), b"later-%d" % turn)
                kept.set(b"key-%d" % (turn * 350 + 1), None)
                kept.set(b"new-%d" % turn, b"new")
            copy = data.parent / f"crash-{turn}"
            shutil.copytree(data, copy)
            crashes.append((copy, dict(kept.values)))
            turn += 1
        assert on.core.catalog.get("_fanlog.kept").partitions[0].log.start_offset > 0
    assert len(crashes) > 15
    for copy, values in crashes:
        with stage(copy) as on:
            assert Kept(on).values == values
            assert on.core.status().problems == ()


def test_a_ledger_of_an_older_release_becomes_durable_at_the_start(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on, durability="os")
        kept.set(b"a", b"1")
        assert on.sync_group.waiting == []
    with stage(data) as on:
        assert Kept(on).values == {b"a": b"1"}
        assert on.core.describe("_fanlog.kept").settings.durability == "fsync"
    with stage(data) as on:
        kept = Kept(on)
        kept.set(b"a", b"2")
        assert len(on.sync_group.waiting) == 1


def test_a_ledger_whose_sync_failed_takes_no_more_entries_and_says_so(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on)
        kept.set(b"a", b"1")
        told: list[object] = []
        on.core.internal.when_durable(told.append)
        on.run()
        assert told == []
        on.fail_sync()
        (fault,) = told
        assert isinstance(fault, LogFailedError)
        with pytest.raises(LogFailedError):
            kept.set(b"a", b"2")
        on.core.internal.when_durable(told.append)
        assert isinstance(told[1], LogFailedError)


def test_whoever_waits_for_a_ledger_waits_for_what_was_written_before(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on)
        told: list[object] = []
        on.core.internal.when_durable(told.append)
        assert told == [None]
        kept.set(b"a", b"1")
        on.core.internal.when_durable(lambda fault: told.append(("first", fault)))
        on.run()
        waiting = on.sync_group.waiting
        on.sync_group.waiting = []
        kept.set(b"a", b"2")
        on.core.internal.when_durable(lambda fault: told.append(("second", fault)))
        later, on.sync_group.waiting = on.sync_group.waiting, waiting
        on.sync_group.sync()
        assert told == [None, ("first", None)]
        on.sync_group.waiting = later
        on.sync_group.sync()
        assert told == [None, ("first", None), ("second", None)]


def test_a_full_disk_refuses_an_entry_and_owes_what_has_happened(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        kept = Kept(on)
        kept.set(b"a", b"1")
        with monkeypatch.context() as full:
            full.setattr(disk.os, "pwrite", no_room)
            with pytest.raises(DiskFullError):
                kept.set(b"a", b"2")
            kept.ledger.write_or_owe([(b"gone", b"x"), (b"a", None)])
        kept.set(b"b", b"3")
    with stage(data) as on:
        assert Kept(on).values == {b"gone": b"x", b"b": b"3"}


def test_with_fsync_an_entry_is_said_to_be_durable_when_it_is(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on, durability="fsync")
        told: list[object] = []
        kept.ledger.write([(b"a", b"1")], told.append)
        on.run()
        assert told == []
        on.sync_group.sync()
        assert told == [None]


def test_nothing_is_kept_in_a_broker_without_a_folder() -> None:
    with stage() as on:
        told: list[object] = []
        Kept(on).ledger.write([(b"a", b"1")], told.append)
        assert told == [None]
        assert on.core.catalog.find("_fanlog.kept") is None


def test_a_deleted_topics_positions_are_forgotten_for_good(data: Path) -> None:
    with stage(data) as on:
        for topic in ("t", "u"):
            on.publish(topic, [b"x"])
        on.run()
        on.core.commit_positions("a", (Position("t", 0, 1, 1), Position("u", 0, 1, 1)))
        on.core.commit_positions("b", (Position("t", 0, 1, 1),))
        on.core.delete_topic("t")
    with stage(data) as on:
        (position,) = on.core.durable.positions("a")
        assert (position.topic, position.offset) == ("u", 1)
        assert list(on.core.durable.names()) == ["a"]
