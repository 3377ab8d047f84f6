"""Kills at random: an archive whose driver and whose Python workers are killed ten times while data
flows, and which merges files meanwhile, has every record in its lake exactly once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import fanlog
from fanlog.spark.lake import Lake, State
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.processes import Driver
from tests.spark.test_kill import PATIENCE_SECONDS, Publishing

KILLS = 10
TOPIC = "archived.under.fire"


def batches_done(lake: Path) -> int:
    path = lake / "_archive/state.json"
    return msgspec.json.decode(path.read_bytes(), type=State).done if path.exists() else -1


def wait_for_more(lake: Path, driver: Driver) -> None:
    """Until the archive has put something in; it is started again if it has died."""
    before = batches_done(lake)
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while batches_done(lake) == before:
        if not driver.alive:
            driver.start()
        assert time.monotonic() < give_up_at, driver.said()[-5000:]
        time.sleep(0.05)


def values(lake: Path, spark: SparkSession) -> Counter[str]:
    rows = Lake(lake).read(spark).selectExpr("cast(value as string) as value").collect()
    return Counter(row["value"] for row in rows)


@pytest.mark.timeout(600)
def test_an_archive_that_is_killed_ten_times_has_every_record_once(
    spark: SparkSession, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    client.create_topic(TOPIC, partitions=2)
    lake = tmp_path / "lake"
    options = {
        "url": broker.url,
        "topics": TOPIC,
        "lake": str(lake),
        "state": str(tmp_path / "state"),
        "every": "0 seconds",
        "batch_records": "500",
        "merge_files": "2",
        "merge_batches": "3",
    }
    given = [f"{name}={value}" for name, value in options.items()]
    publishing = Publishing(broker.url, TOPIC)
    publishing.start()
    chance = random.Random(5)
    try:
        with Driver(tmp_path, "archiving", *given) as driver:
            for kill in range(KILLS):
                wait_for_more(lake, driver)
                time.sleep(chance.uniform(0.0, 1.5))
                if kill % 2 == 0:
                    driver.kill_worker(chance)
                else:
                    driver.kill()
            publishing.stop()
            give_up_at = time.monotonic() + PATIENCE_SECONDS
            while lag(client) and time.monotonic() < give_up_at:
                if not driver.alive:
                    driver.start()
                time.sleep(0.2)
    finally:
        publishing.stop()
    assert values(lake, spark) == Counter(str(i) for i in range(publishing.count))
    assert list(lake.glob("topic=*/date=*/merged-*")), "nothing was merged"


def lag(client: fanlog.sync.Client) -> int:
    """What the archive's group has not committed: it does so when a batch is in the lake."""
    return client.groups.describe("pipeline.archive").lag
