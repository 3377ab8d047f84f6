"""Reading a partition's files beside the broker that writes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanlog
from fanlog.format.batch import Batch
from fanlog.log.read_only import find_partition, read_runs
from fanlog.log.scan import BatchRun, Owner

RECORDS = 3000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Owner]:
    """A partition of several files, and whose it is."""
    folder = tmp_path_factory.mktemp("read-only") / "data"

    async def write() -> int:
        async with fanlog.Broker(folder) as broker:
            topic = await broker.create_topic("t", segment_bytes=64 * 1024)
            for i in range(RECORDS):
                await broker.send("t", f"{i:060d}".encode())
                if i % 50 == 0:
                    await broker.flush()
            await broker.flush()
            return topic.number

    owner = Owner(asyncio.run(write()), 0)
    found = find_partition(str(folder), owner, "t")
    assert found is not None
    assert len(list(Path(found).glob("*.log"))) > 2
    return found, owner


def values(runs: list[BatchRun], first: int, end: int) -> list[int]:
    found: list[int] = []
    for run in runs:
        at = 0
        for some in run.batches:
            batch = Batch(run.data[at : at + some.length])
            found += [int(value or b"") for value in batch.values]
            at += some.length
    return [value for value in found if first <= value < end]


@given(st.integers(0, RECORDS), st.integers(0, RECORDS))
def test_every_range_is_read_whole(written: tuple[str, Owner], first: int, size: int) -> None:
    folder, owner = written
    end = min(RECORDS, first + size)
    runs = list(read_runs(folder, owner, first, end, chunk_bytes=16 * 1024))
    assert values(runs, first, end) == list(range(first, end))


def test_reading_ends_where_the_files_do(written: tuple[str, Owner]) -> None:
    folder, owner = written
    runs = list(read_runs(folder, owner, 2900, 99_999, chunk_bytes=1 << 20))
    assert values(runs, 2900, 99_999) == list(range(2900, RECORDS))


def test_reading_ends_before_what_is_damaged(written: tuple[str, Owner], tmp_path: Path) -> None:
    folder, owner = written
    for path in Path(folder).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    second = sorted(tmp_path.glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    found = values(list(read_runs(str(tmp_path), owner, 0, RECORDS, chunk_bytes=4096)), 0, RECORDS)
    assert found == list(range(len(found)))
    assert int(second.stem) < len(found) < RECORDS


def test_nothing_is_changed_in_a_folder_that_is_only_looked_at(
    written: tuple[str, Owner], tmp_path: Path
) -> None:
    _, owner = written
    (tmp_path / "left.tmp").touch()
    assert list(read_runs(str(tmp_path), owner, 0, 10, chunk_bytes=4096)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["left.tmp"]


def test_a_folder_that_is_not_here_is_no_fault(tmp_path: Path) -> None:
    assert find_partition(str(tmp_path / "nowhere"), Owner(1, 0), "t") is None
    (tmp_path / "topics/1-t").mkdir(parents=True)
    assert find_partition(str(tmp_path), Owner(1, 0), "t") is None
    (tmp_path / "topics/1-t/0").mkdir()
    assert find_partition(str(tmp_path), Owner(1, 0), "t") is None


def test_a_folder_with_another_topic_under_the_number_is_left_alone(
    written: tuple[str, Owner],
) -> None:
    folder, owner = written
    data = str(Path(folder).parents[2])
    assert find_partition(data, owner, "t") == folder
    assert find_partition(data, owner, "salaries") is None
