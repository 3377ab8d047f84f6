"""The lake: each batch once, whatever was left by a crash, and small files merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fanlog.errors import ConfigError
from fanlog.spark.lake import Lake


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


def test_a_batch_that_was_moved_by_half_is_moved_on(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 10), 0)
    staged = lake.root / "_archive/staged/0000000001"
    rows(spark, 10, 20).write.partitionBy("topic", "date").parquet(str(staged))
    moved = min(staged.glob("topic=*/date=*/part-*.parquet"))
    target = lake.root / moved.relative_to(staged).parent
    moved.rename(target / f"batch-0000000001-{moved.name}")
    again = reopened(lake)
    # Other tasks have other rows this time: what is staged whole counts.
    again.add(rows(spark, 10, 20, parts=5), 1)
    assert held(again, spark) == list(range(20))
    assert not list(lake.root.glob("_archive/staged/*"))


def test_a_batch_that_was_staged_by_half_is_written_anew(spark: SparkSession, lake: Lake) -> None:
    staged = lake.root / "_archive/staged/0000000000"
    rows(spark, 0, 5).write.partitionBy("topic", "date").parquet(str(staged))
    (staged / "_SUCCESS").unlink()
    again = reopened(lake)
    again.add(rows(spark, 0, 10), 0)
    assert held(again, spark) == list(range(10))


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


def test_another_streams_lake_is_refused(spark: SparkSession, lake: Lake) -> None:
    lake.add(rows(spark, 0, 2), 0)
    lake.release()
    with pytest.raises(ConfigError, match="is another stream's"):
        Lake(lake.root).claim("other")


def test_an_empty_lake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="archive something first"):
        Lake(tmp_path).read(spark)
