"""An archive whose driver and whose Python workers are killed ten times while data flows, and which
merges files meanwhile, has every record in its lake exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from fanlog.spark.lake import Lake
from tests.spark.killing import KILLS, Killed


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_archive_that_is_killed_ten_times_has_every_record_once(
    killed: Killed, spark: SparkSession
) -> None:
    assert killed.driver_kills == killed.worker_kills == KILLS // 2
    rows = Lake(killed.lake).read(spark).selectExpr("cast(value as string) as value").collect()
    found = Counter(row["value"] for row in rows)
    assert found == Counter(str(i) for i in range(killed.records))
    assert list(killed.lake.glob("topic=*/date=*/merged-*")), "nothing was merged"
