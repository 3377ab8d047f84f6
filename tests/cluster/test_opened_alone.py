"""A folder of a cluster is opened alone by nobody: neither by a program with a broker in it, nor by
its tests, nor by `fanlog serve`. It would part from the other nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

import fanlog
import fanlog.sync
import fanlog.testing
from fanlog.cluster.mark import NAME, FolderMark, save_mark
from fanlog.errors import FolderUnusableError
from fanlog.log.cluster_mark import check_alone

MARK = FolderMark(cluster_name="orders", node="b", incarnation="b.1")
REFUSAL = "belongs to node b of the cluster 'orders'"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_no_broker_opens_it_and_nothing_in_it_changes(tmp_path: Path) -> None:
    save_mark(str(tmp_path), MARK)
    before = names(tmp_path)
    with pytest.raises(FolderUnusableError, match=REFUSAL):
        async with fanlog.Broker(tmp_path):
            pass
    with pytest.raises(FolderUnusableError, match=REFUSAL):
        fanlog.sync.Broker(tmp_path)
    with pytest.raises(FolderUnusableError, match=REFUSAL):
        async with fanlog.testing.Broker(tmp_path):
            pass
    assert names(tmp_path) == before


@pytest.mark.parametrize("lost", [NAME, f"{NAME}.copy"])
@pytest.mark.parametrize("damaged", [False, True])
def test_one_of_the_mark_and_its_copy_is_enough(tmp_path: Path, lost: str, damaged: bool) -> None:
    save_mark(str(tmp_path), MARK)
    if damaged:
        (tmp_path / lost).write_bytes(b"{")
    else:
        (tmp_path / lost).unlink()
    with pytest.raises(FolderUnusableError, match=REFUSAL):
        check_alone(str(tmp_path))


def test_a_folder_whose_mark_and_copy_are_damaged_is_refused(tmp_path: Path) -> None:
    for name in (NAME, f"{NAME}.copy"):
        (tmp_path / name).write_bytes(b"{")
    with pytest.raises(FolderUnusableError, match="Move it away"):
        check_alone(str(tmp_path))


async def test_it_goes_on_alone_once_both_are_removed(tmp_path: Path) -> None:
    save_mark(str(tmp_path), MARK)
    for name in (NAME, f"{NAME}.copy"):
        (tmp_path / name).unlink()
    async with fanlog.Broker(tmp_path) as broker:
        await broker.publish("t", "alone")
