"""The mark of a data folder: which start inherits an incarnation, and what damage leads to."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from fanlog.cluster.mark import (
    NAME,
    FolderMark,
    begin_with,
    inherit_or_new,
    load_mark,
    save_mark,
)
from fanlog.cluster.records import SeenRecord, node_of
from fanlog.cluster.views import Folder
from fanlog.errors import FolderUnusableError
from tests.cluster.views import record

MARK = FolderMark(
    cluster_name="prod",
    cluster_id="c0ffee",
    node="a",
    incarnation="a.1",
    boot_id="boot-1",
    clean=True,
    state=Folder.WHOLE,
    last_reign=4,
    seen=SeenRecord(record(), 10),
    etcd="e1",
)


def test_a_folder_that_was_only_begun_is_known_as_such(tmp_path: Path) -> None:
    begun = FolderMark(cluster_name="n", node="a", incarnation="a.1", state=Folder.EMPTY)
    save_mark(str(tmp_path), begun)
    assert load_mark(str(tmp_path)) == begun


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load_mark(str(tmp_path)) is None
    save_mark(str(tmp_path), MARK)
    assert load_mark(str(tmp_path)) == MARK
    assert MARK.known.seen == MARK.seen
    assert MARK.known.cluster == "c0ffee"


@pytest.mark.parametrize(
    ("mark", "boot_id", "inherits"),
    [
        (MARK, "boot-2", True),
        (replace(MARK, clean=False), "boot-1", True),
        (replace(MARK, clean=False), "boot-2", False),
        (replace(MARK, clean=False, boot_id=""), "", False),
        (replace(MARK, state=Folder.COPYING), "boot-1", False),
        (replace(MARK, state=Folder.CUTTING), "boot-1", False),
        # The first record may have this incarnation, and it has nothing to lose.
        (replace(MARK, state=Folder.EMPTY, clean=False), "boot-2", True),
        (replace(MARK, state=Folder.ADOPTING, clean=False), "boot-2", True),
    ],
)
def test_a_start_inherits_its_incarnation_only_if_nothing_can_be_lost(
    mark: FolderMark, boot_id: str, inherits: bool
) -> None:
    incarnation = inherit_or_new(mark, boot_id)
    assert (incarnation == "a.1") is inherits
    assert node_of(incarnation) == "a"


def test_a_clean_stop_is_used_up_by_the_next_start() -> None:
    begun = begin_with(MARK, "boot-2")
    assert begun.incarnation == "a.1"
    assert not begun.clean
    assert inherit_or_new(begun, "boot-3") != "a.1"


def test_what_a_power_cut_may_have_taken_is_looked_for_until_it_was_done() -> None:
    crashed = replace(MARK, clean=False)
    assert not begin_with(MARK, "boot-2").suspect
    assert not begin_with(crashed, "boot-1").suspect
    begun = begin_with(crashed, "boot-2")
    assert begun.suspect
    assert begin_with(begun, "boot-2").suspect
    assert begin_with(replace(begun, clean=True), "boot-2").suspect


def test_a_mark_with_any_flipped_bit_is_of_a_copy_that_is_not_whole(tmp_path: Path) -> None:
    save_mark(str(tmp_path), MARK)
    path = tmp_path / NAME
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        path.write_bytes(damaged)
        for aside in tmp_path.glob(f"{NAME}.damaged-*"):
            aside.unlink()
        mark = load_mark(str(tmp_path))
        # White space may have become other white space.
        if mark == MARK:
            continue
        assert mark is not None
        assert mark.state is Folder.COPYING
        assert mark.cluster_id == "c0ffee"
        assert inherit_or_new(mark, "boot-1") != "a.1"
        assert mark.last_reign == record().epoch, "no epoch that it may have reigned in"


def test_a_mark_that_is_gone_is_as_good_as_a_damaged_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_mark(str(tmp_path), MARK)
    (tmp_path / NAME).unlink()
    with caplog.at_level(logging.ERROR):
        mark = load_mark(str(tmp_path))
    assert mark is not None
    assert mark.state is Folder.COPYING
    assert "copied again" in caplog.text


def test_a_folder_whose_mark_and_copy_are_damaged_is_refused(tmp_path: Path) -> None:
    save_mark(str(tmp_path), MARK)
    for name in (NAME, f"{NAME}.copy"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(FolderUnusableError):
        load_mark(str(tmp_path))
