"""The same source through Spark Connect, and inside Spark Declarative Pipelines."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

import fanlog
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.processes import Driver, Program
from tests.spark.sessions import PUSHDOWN_SETTING
from tests.spark.test_kill import published
from tests.spark.test_source import fill

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

dp.create_sink("copies", "fanlog", {"url": URL, "topic": "pipeline.out"})


@dp.append_flow(target="copies")
def copy():
    orders = spark.readStream.format("fanlog").option("url", URL)
    return orders.option("startingOffsets", "earliest").load("pipeline.in").select("key", "value")


@dp.materialized_view
def counted():
    orders = spark.read.format("fanlog").option("url", URL).load("pipeline.in")
    return orders.groupBy("partition").count()
"""


@pytest.mark.timeout(1000)
def test_spark_connect_reads_and_writes(
    connect: str, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    fill(client, "connect.in", 300)
    names = ("connect.in", "connect.out", str(tmp_path / "checkpoint"))
    with Driver(tmp_path, "over_connect", connect, broker.url, *names) as driver:
        driver.end_well()
    assert "read 100 300" in driver.said()
    assert published(client, "connect.out") == Counter(str(i) for i in range(300))


@pytest.mark.timeout(1000)
def test_a_declarative_pipeline_reads_and_writes(
    connect: str, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    fill(client, "pipeline.in", 300)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: copying\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: code/**\n"
        f'configuration:\n  {PUSHDOWN_SETTING}: "true"\n'
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code/copying.py").write_text(f"URL = {broker.url!r}\n{PIPELINE}")
    program = Path(sys.executable).parent / "spark-pipelines"
    with Program(tmp_path, [str(program), "--remote", connect, "run"]) as run:
        run.end_well()
    assert published(client, "pipeline.out") == Counter(str(i) for i in range(300))
