"""Ledgers: what was written is there after a restart, the last of each key, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fanlog.broker.ledger import LEDGER_SETTINGS, Entry, Ledger
from fanlog.errors import DiskFullError, LogFailedError
from fanlog.format.messages import Position
from fanlog.log import disk
from tests.broker.stage import Stage, no_room, stage


class Kept:
    """A dictionary that survives."""

    def __init__(self, on: Stage, *, durability: str = "os") -> None:
        settings = LEDGER_SETTINGS.__class__(
            durability=durability,  # type: ignore[arg-type]
            segment_bytes=64 * 1024,
            tail_bytes=4096,
            retention_seconds=0,
        )
        self.ledger = Ledger(on.core.internal, "kept", self._everything, settings)
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
        yield from self.values.items()


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
        on.run()
        log = on.core.catalog.get("_fanlog.kept").partitions[0].log
        assert log.start_offset > 0
        assert log.bytes < 4 << 20
        values = dict(kept.values)
    with stage(data) as on:
        assert Kept(on).values == values


def test_what_is_before_a_snapshot_goes_only_when_the_snapshot_is_durable(data: Path) -> None:
    with stage(data) as on:
        kept = Kept(on)
        log = None
        for i in range(25_000):
            kept.set(b"key", b"%d" % i)
        log = on.core.catalog.get("_fanlog.kept").partitions[0].log
        assert log.start_offset == 0
        on.run()
        assert log.start_offset > 0


def test_a_sync_is_about_every_segment_of_a_ledger(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync_file = disk.sync_file

    def noted(path: str) -> None:
        synced.add(path)
        sync_file(path)

    def sync(kept: Kept) -> set[str]:
        """What a sync has left out."""
        synced.clear()
        told: list[object] = []
        kept.ledger.sync(told.append)
        on.run()
        assert told == [None]
        folder = Path(next(iter(synced))).parent
        return {str(path) for path in folder.glob("*.log")} - synced

    monkeypatch.setattr(disk, "sync_file", noted)
    with stage(data) as on:
        kept = Kept(on)
        for i in range(1500):
            kept.set(b"%d" % i, bytes(100))
        assert sync(kept) == set()
        before = set(synced)
        assert len(before) > 2
        for i in range(1500):
            kept.set(b"%d" % i, bytes(100))
        # The second time only what has come since.
        assert len(sync(kept) & before) == len(before) - 1
        assert len(synced) > 2
    with stage(data) as on:
        kept = Kept(on)
        kept.set(b"again", b"")
        assert sync(kept) == set()


def test_a_ledger_whose_sync_failed_takes_no_more_entries(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        kept = Kept(on)
        kept.set(b"a", b"1")
        told: list[object] = []
        with monkeypatch.context() as broken:
            broken.setattr(disk, "sync_file", no_room)
            kept.ledger.sync(told.append)
            on.run()
        (fault,) = told
        assert isinstance(fault, LogFailedError)
        with pytest.raises(LogFailedError):
            kept.set(b"a", b"2")


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
