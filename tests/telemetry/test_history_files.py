"""The history on disk: restarts, crashes, damage, and disks that take nothing."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.telemetry import history_files, history_format
from fanlog.telemetry.history import HistoryRings, NewRow, Tier
from fanlog.telemetry.history_files import HistoryFiles
from fanlog.telemetry.history_reading import Captured, Grid

TIERS = (Tier(5, 12), Tier(20, 9), Tier(100, 7))
NOON = 1_790_000_000
MEAN = "published_messages"


def reads(
    history: HistoryRings, names: Sequence[str], now: int
) -> list[dict[str, list[float | None]]]:
    grids = [
        Grid(now // 100 * 100 - 900, tier.step_seconds, 1000 // tier.step_seconds) for tier in TIERS
    ]
    return [Captured(history, names).read(grid, now) for grid in grids]


def begin(folder: Path, series_max: int = 8) -> tuple[HistoryRings, HistoryFiles]:
    files, history = HistoryFiles(str(folder), TIERS), HistoryRings(series_max, TIERS)
    files.load(history)
    return history, files


def fill(folder: Path, samples: int = 30) -> int:
    """Writes samples with value 1, 2, 3... and returns the time of the last."""
    history, files = begin(folder)
    for i in range(samples):
        files.append(history.add(NOON + 5 * i, {MEAN: i + 1, "topic.a.messages": 7}))
    return NOON + 5 * (samples - 1)


def newest(history: HistoryRings, now: int) -> list[float | None]:
    return Captured(history, [MEAN]).read(Grid(now - 45, 5, 10), now)[MEAN]


runs = st.lists(
    st.tuples(
        st.sampled_from([5, 5, 5, 5, 20, 60, 130]),
        st.sets(st.integers(0, 9), max_size=6),
        # Whether the process is killed after it.
        st.sampled_from([False, False, False, False, True]),
    ),
    max_size=100,
)


@settings(max_examples=100, deadline=None)
@given(runs)
def test_a_restart_changes_nothing(found: list[tuple[int, set[int], bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history, files = begin(Path(folder) / "metrics", 10)
        now = NOON
        for after, names, killed in found:
            now += after
            values = {f"topic.{name}.messages": float(name * 100 + after) for name in names}
            files.append(history.add(now, values))
            if killed:
                held = list(history.columns)
                before = reads(history, held, now)
                history, files = begin(Path(folder) / "metrics", 10)
                assert reads(history, held, now) == before
        sizes = [path.stat().st_size for path in (Path(folder) / "metrics").glob("*")]
        assert len(sizes) <= 2 * len(TIERS)
        assert sum(sizes) < 20_000


@settings(max_examples=100, deadline=None)
@given(runs, st.lists(st.integers(3, 8), min_size=1))
def test_no_series_has_the_values_of_another_after_a_restart(
    found: list[tuple[int, set[int], bool]], limits: list[int]
) -> None:
    """With few columns that change hands often, and other limits at every start."""
    with tempfile.TemporaryDirectory() as folder:
        history, files = begin(Path(folder) / "metrics", 3)
        now = NOON
        for i, (after, names, killed) in enumerate(found):
            now += after
            files.append(
                history.add(now, {f"topic.{name}.messages": 100.0 + name for name in names})
            )
            if killed:
                history, files = begin(Path(folder) / "metrics", limits[i % len(limits)])
            for shown in reads(history, list(history.columns), now):
                for name, found_values in shown.items():
                    assert set(found_values) <= {None, 100.0 + int(name.split(".")[1])}


def test_columns_that_no_longer_fit_are_those_of_the_oldest_series(tmp_path: Path) -> None:
    history, files = begin(tmp_path / "metrics")
    files.append(history.add(NOON, {"topic.old.messages": 1, MEAN: 1}))
    for i in range(1, 4):
        files.append(history.add(NOON + 5 * i, {MEAN: i, "topic.new.messages": i}))
    history, files = begin(tmp_path / "metrics", series_max=2)
    assert MEAN in history.columns
    assert len(history.columns) == 2


def test_a_file_that_was_cut_off_anywhere_is_whole_up_to_there(tmp_path: Path) -> None:
    now = fill(tmp_path / "metrics")
    file = max((tmp_path / "metrics").glob("5s-*"))
    data = file.read_bytes()
    for size in range(0, len(data), 3):
        for tail in (b"", bytes(50)):
            file.write_bytes(data[:size] + tail)
            history, files = begin(tmp_path / "metrics")
            shown = newest(history, now)
            files.append(history.add(now + 5, {MEAN: 99}))
            again, _ = begin(tmp_path / "metrics")
            assert newest(again, now)[:-1] == shown[:-1]
            assert newest(again, now + 5)[-1] == 99
            assert not list((tmp_path / "metrics").glob("*.damaged"))
            file.unlink()
            for other in (tmp_path / "metrics").glob("5s-*"):
                other.unlink(missing_ok=True)


def test_a_damaged_file_is_set_aside_and_what_was_before_the_damage_stays(tmp_path: Path) -> None:
    now = fill(tmp_path / "metrics")
    file = max((tmp_path / "metrics").glob("5s-*"))
    data = file.read_bytes()
    for at in range(0, len(data) - 60, 7):
        for other in (tmp_path / "metrics").glob("5s*"):
            other.unlink()
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        history, files = begin(tmp_path / "metrics")
        shown = newest(history, now)
        # Coarser tiers have files of their own.
        assert len(history.rings[1].rows) >= 6
        files.append(history.add(now + 5, {MEAN: 99}))
        again, _ = begin(tmp_path / "metrics")
        assert newest(again, now)[:-1] == shown[:-1]
        assert newest(again, now + 5)[-1] == 99
        assert file.with_name("5s.damaged").exists() or len(shown) == 10


@pytest.mark.parametrize(
    "data", [b"x", b"no history at all" * 100, bytes(100), b"", b"FLMH\x09" + bytes(7)]
)
def test_a_file_that_is_something_else_does_not_stop_a_start(tmp_path: Path, data: bytes) -> None:
    now = fill(tmp_path / "metrics")
    for file in (tmp_path / "metrics").glob("*"):
        file.write_bytes(data)
    history, files = begin(tmp_path / "metrics")
    assert not history.columns
    files.append(history.add(now, {MEAN: 5}))
    assert newest(begin(tmp_path / "metrics")[0], now)[-1] == 5


def test_folders_and_strange_names_do_not_stop_a_start(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    now = fill(folder)
    (folder / "5s-000009.metrics").mkdir()
    (folder / "7s-000001.metrics").write_bytes(b"x")
    (folder / "notes.txt").write_text("mine")
    history, files = begin(folder)
    assert newest(history, now)[-1] == 30
    files.append(history.add(now + 5, {MEAN: 31}))
    assert (folder / "notes.txt").exists()
    assert newest(begin(folder)[0], now + 5)[-1] == 31


def test_a_disk_that_fills_up_stops_only_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history, files = begin(tmp_path / "metrics")
    pwrite = os.pwrite
    full = False

    def half(fd: int, data: Any, at: int) -> int:
        if not full:
            return pwrite(fd, data, at)
        if len(data) > 20:
            return pwrite(fd, data[:20], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(history_files.os, "pwrite", half)
    for i in range(30):
        full = 10 <= i < 20
        files.append(history.add(NOON + 5 * i, {MEAN: i}))
    warnings = [one for one in caplog.records if "is not written" in one.message]
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0].message
    assert newest(history, NOON + 145) == list(range(20, 30))
    again, _ = begin(tmp_path / "metrics")
    assert newest(again, NOON + 145) == list(range(20, 30))


def test_a_folder_that_can_not_be_written_stops_only_the_writing(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("a file where the folder should be")
    history, files = begin(tmp_path / "metrics")
    files.append(history.add(NOON, {MEAN: 1}))
    files.append(history.add(NOON + 5, {MEAN: 2}))
    assert newest(history, NOON + 5)[-2:] == [1, 2]


def test_rows_that_a_killed_process_did_not_sum_up_are_summed_up_later(tmp_path: Path) -> None:
    history, files = begin(tmp_path / "metrics")
    start = NOON // 100 * 100
    for i in range(12):
        files.append(history.add(start + 5 * i, {MEAN: 10}))
    # The last of three slots of 20 s is not over when the process ends. A later one comes.
    again, files = begin(tmp_path / "metrics")
    files.append(again.add(start + 300, {MEAN: 50}))
    files.append(again.add(start + 320, {MEAN: 50}))
    assert [row.slot * 20 - start for row in again.rings[1].rows] == [0, 20, 40, 300]
    assert [row.slot * 100 - start for row in again.rings[2].rows] == [0]


def test_lost_coarse_files_come_back_from_finer_rows(tmp_path: Path) -> None:
    fill(tmp_path / "metrics", 12)
    for file in (tmp_path / "metrics").glob("20s-*"):
        file.unlink()
    history, _ = begin(tmp_path / "metrics")
    assert len(history.rings[1].rows) >= 2
    again, _ = begin(tmp_path / "metrics")
    assert [row.slot for row in again.rings[1].rows] == [row.slot for row in history.rings[1].rows]


def test_rows_of_a_wide_history_fit_into_the_files(tmp_path: Path) -> None:
    history, files = begin(tmp_path / "metrics", 2000)
    values = {f"topic.{'long name ' * 20}{i}.messages": float(i) for i in range(2000)}
    new: list[NewRow] = history.add(NOON, values)
    files.append(new)
    again, _ = begin(tmp_path / "metrics", 2000)
    assert again.names == history.names
    assert again.rings[0].rows[-1].values == history.rings[0].rows[-1].values


def test_names_that_are_no_text_are_damage(tmp_path: Path) -> None:
    now = fill(tmp_path)
    path = max(tmp_path.glob("5s-*.metrics"))
    with path.open("ab") as file:
        file.write(history_format._record(1, b'[[0,"\xff"]]') + bytes(range(100)))
    history, _ = begin(tmp_path)
    assert newest(history, now)[-1] == 30
    assert (tmp_path / "5s.damaged").exists()
