"""The lake: each batch once, whatever was left by a crash, and small files merged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fanlog.errors import ConfigError
from fanlog.spark.lake import Lake, LakeState


def rows(spark: SparkSession, first: int, end: int, parts: int = 2) -> DataFrame:
    """Records `first` to `end`, of two topics in turn."""
    numbers = spark.range(first, end, 1, parts)
    return numbers.select(
        f.lit(None).cast("binary").alias("key"),
        f.col("id").cast("string").cast("binary").alias("value"),
        f.lit(0).alias("partition"),
        f.col("id").alias("offset"),
        f.timestamp_micros("id").alias("timestamp"),
        f.timestamp_micros("id").alias("event_time"),
        f.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
        f.concat(f.lit("t"), f.col("id") % 2).alias("topic"),
        f.to_date(f.timestamp_micros("id")).alias("date"),
    )


def held(lake: Lake, spark: SparkSession) -> list[int]:
    return sorted(row["offset"] for row in lake.read(spark).select("offset").collect())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.claim("q")
    return made


def reopened(lake: Lake) -> Lake:
    """The lake as the next process finds it."""
    lake.release()
    found = Lake(lake.root)
    found.claim("q")
    return found


def test_a_batch_that_comes_again_is_there_once(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 10), 0)
    lake.add(rows(spark, 10, 20), 1)
    lake.add(rows(spark, 10, 20), 1)
    again = reopened(lake)
    again.add(rows(spark, 10, 20), 1)
    assert held(again, spark) == list(range(20))


def staged_whole(lake: Lake, some: DataFrame, batch: int, name: str = "1") -> list[Path]:
    """A batch as a crash leaves it after it was declared whole; its files."""
    staged = lake.root / f"_archive/staged/{batch:010}-{name}"
    some.write.partitionBy("topic", "date").parquet(str(staged))
    lake._declare_whole(batch, staged)  # pyright: ignore[reportPrivateUsage]
    return sorted(staged.glob("topic=*/date=*/part-*.parquet"))


def move(lake: Lake, path: Path, batch: int) -> None:
    """One file of a batch to where it belongs."""
    target = lake.root.joinpath(*path.parts[-3:-1])
    path.rename(target / f"batch-{batch:010}-{path.name}")


def test_a_batch_that_was_moved_by_half_is_moved_on(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 10), 0)
    move(lake, staged_whole(lake, rows(spark, 10, 20), 1)[0], 1)
    assert held(lake, spark) == list(range(10)), "half a batch was seen"
    again = reopened(lake)
    assert held(again, spark) == list(range(20))
    # Other tasks have other rows this time: what was whole first counts.
    again.add(rows(spark, 10, 20, parts=5), 1)
    assert held(again, spark) == list(range(20))
    assert not list(lake.root.glob("_archive/staged/*"))
    assert not list(lake.root.glob("_archive/whole/*"))


def test_a_batch_that_was_moved_but_not_noted_is_noted(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 10), 0)
    for path in staged_whole(lake, rows(spark, 10, 20), 1):
        move(lake, path, 1)
    assert held(reopened(lake), spark) == list(range(20))


def test_a_batch_that_was_staged_by_half_is_written_anew(spark: SparkSession, lake: Lake) -> None:
    # Spark's own mark is there, but a power cut may have left nothing in the files beside it.
    staged = lake.root / "_archive/staged/0000000000-1"
    rows(spark, 0, 5).write.partitionBy("topic", "date").parquet(str(staged))
    assert (staged / "_SUCCESS").exists()
    again = reopened(lake)
    again.add(rows(spark, 0, 10), 0)
    assert held(again, spark) == list(range(10))


def test_of_two_writers_of_a_batch_the_first_one_counts(spark: SparkSession, lake: Lake) -> None:
    """A driver that should be dead and its successor: as if the lock had been lost."""
    staged_whole(lake, rows(spark, 0, 10), 0, "zombie")
    staged_whole(lake, rows(spark, 0, 10, parts=5), 0, "heir")
    lake.add(rows(spark, 0, 10), 0)
    assert held(lake, spark) == list(range(10))
    # The other one comes again, long after: what is done stays as it is.
    staged_whole(lake, rows(spark, 0, 10), 0, "again")
    lake._finish(0)  # pyright: ignore[reportPrivateUsage]
    assert held(lake, spark) == list(range(10))
    assert held(reopened(lake), spark) == list(range(10))


def test_a_writer_that_comes_late_takes_nothing_back(spark: SparkSession, lake: Lake) -> None:
    heir = reopened(lake)
    heir.add(rows(spark, 0, 10), 0)
    heir.add(rows(spark, 10, 20), 1)
    lake._save(LakeState("q", done=0))  # pyright: ignore[reportPrivateUsage]
    assert held(heir, spark) == list(range(20))
    again = reopened(heir)
    again.add(rows(spark, 10, 20), 1)
    assert held(again, spark) == list(range(20))


def test_a_lake_that_lacks_batches_of_its_checkpoint_takes_no_more(
    spark: SparkSession, lake: Lake
) -> None:
    wanted = "it lacks the batches 0 to 6. Bring the lake back, or give another --state"
    with pytest.raises(ConfigError, match=wanted):
        lake.add(rows(spark, 0, 10), 7)
    lake.add(rows(spark, 0, 10), 0)
    with pytest.raises(ConfigError, match="it lacks the batches 1 to 1"):
        lake.add(rows(spark, 0, 10), 2)
    assert held(lake, spark) == list(range(10))


def test_a_copy_whose_state_is_older_than_its_files_is_refused(lake: Lake) -> None:
    folder = lake.root / "topic=t/date=2026-01-01"
    folder.mkdir(parents=True)
    (folder / "merged-0000000000-0000000001.parquet").touch()
    with pytest.raises(ConfigError, match="copy the lake again while no archive writes to it"):
        lake.check_filled()


def test_a_folder_whose_name_is_a_pattern_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / r"a [lake] of {a,b} *? and \ more")
    lake.claim("q")
    for batch in range(2):
        lake.add(rows(spark, batch * 10, batch * 10 + 10), batch)
    assert held(lake, spark) == list(range(20))
    assert lake.compact(spark, files_min=2, bytes_max=1 << 20) == 8
    assert held(lake, spark) == list(range(20))


def test_a_batch_without_rows_is_a_batch(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 0), 0)
    lake.add(rows(spark, 0, 10), 1)
    assert held(reopened(lake), spark) == list(range(10))


def test_all_is_on_the_disk_before_a_batch_is_called_done(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut takes is what was not synced: files, and names in folders."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    lake.add(rows(spark, 0, 10), 0)
    noted = synced.index(lake.root / "_archive/state.json.tmp")
    before = {path.name for path in synced[:noted]}
    for path in lake.files():
        assert path.name.removeprefix("batch-0000000000-") in before
        assert {path.parent, path.parent.parent} <= set(synced[:noted])
    assert lake.root in synced[:noted]
    assert synced[-1] == lake.root / "_archive"


def test_a_query_whose_files_are_merged_in_the_midst_is_asked_again(
    spark: SparkSession, lake: Lake
) -> None:
    for batch in range(2):
        lake.add(rows(spark, batch * 10, batch * 10 + 10), batch)
    asked: list[int] = []

    def ask(found: DataFrame) -> int:
        asked.append(len(lake.files()))
        if len(asked) == 1:
            lake.compact(spark, files_min=2, bytes_max=1 << 20)
        return found.count()

    assert lake.query(spark, ask) == 20
    assert len(asked) == 2

    def fail(found: DataFrame) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lake.query(spark, fail)


def test_small_files_are_merged_and_nothing_else_changes(spark: SparkSession, lake: Lake) -> None:
    for batch in range(4):
        lake.add(rows(spark, batch * 10, batch * 10 + 10), batch)
    assert lake.compact(spark, files_min=2, bytes_max=1 << 20) == 16
    assert len(lake.files()) == 2
    assert held(lake, spark) == list(range(40))
    lake.add(rows(spark, 40, 50), 4)
    lake.compact(spark, files_min=2, bytes_max=1 << 20)
    names = {path.name for path in lake.files()}
    assert names == {"merged-0000000000-0000000004.parquet"}
    assert held(lake, spark) == list(range(50))


def test_files_that_a_crash_left_beside_their_merger_do_not_count(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    for batch in range(2):
        lake.add(rows(spark, batch * 10, batch * 10 + 10), batch)
    shutil.copytree(lake.root, tmp_path / "before")
    lake.compact(spark, files_min=2, bytes_max=1 << 20)
    shutil.copytree(tmp_path / "before", lake.root, dirs_exist_ok=True)
    assert held(lake, spark) == list(range(20))
    again = reopened(lake)
    assert held(again, spark) == list(range(20))
    assert not list(lake.root.glob("topic=*/date=*/batch-*"))


def test_files_stay_apart_that_would_be_too_large(spark: SparkSession, lake: Lake) -> None:
    for batch in range(3):
        lake.add(rows(spark, batch * 10, batch * 10 + 10), batch)
    assert lake.compact(spark, files_min=3, bytes_max=1) == 0
    assert held(lake, spark) == list(range(30))


def test_who_lists_the_files_while_they_are_merged_misses_none(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.add(rows(spark, 0, 10), 0)
    before = lake.files()
    real = Lake._done_on_disk  # pyright: ignore[reportPrivateUsage]
    looks: list[int | None] = []

    def done_on_disk(self: Lake) -> int | None:
        done = real(self)
        looks.append(done)
        if len(looks) == 1:
            # Between the one look and the other a batch is done, and all files become one.
            monkeypatch.undo()
            self.add(rows(spark, 10, 20), 1)
            self.compact(spark, files_min=2, bytes_max=1 << 20)
            monkeypatch.setattr(Lake, "_done_on_disk", done_on_disk)
        return done

    monkeypatch.setattr(Lake, "_done_on_disk", done_on_disk)
    assert held(lake, spark) == list(range(20))
    assert looks[:2] == [0, 1]
    assert not any(path.exists() for path in before)


def test_another_streams_lake_is_refused(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 2), 0)
    lake.release()
    with pytest.raises(ConfigError, match="belongs to another stream"):
        Lake(lake.root).claim("other")


def test_an_empty_lake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="archive something first"):
        Lake(tmp_path).read(spark)
    with pytest.raises(ConfigError, match="archive something first"):
        Lake(tmp_path).check_filled()
