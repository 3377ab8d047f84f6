"""Mistakes: one clear sentence each, on the driver, before any task runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import fanlog
from tests.spark.conftest import Reading
from tests.spark.sessions import wait_for_end
from tests.spark.test_source import fill

NO_BROKER = "fanlog://127.0.0.1:1"


def test_an_unknown_option_is_told_when_the_source_is_loaded(reading: Reading) -> None:
    with pytest.raises(PySparkException, match="no option `topic`: did you mean `topics`"):
        reading(topic="orders")


def test_a_topic_that_does_not_exist(reading: Reading) -> None:
    with pytest.raises(PySparkException, match="There is no topic 'nowhere'"):
        reading(topics="nowhere").count()
    with pytest.raises(PySparkException, match="No topic matches the pattern 'nowhere"):
        reading(pattern="nowhere.*").count()


def test_a_broker_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    said = "No broker answers at 127.0.0.1:1 .* Start one there with: fanlog serve"
    with pytest.raises(PySparkException, match=said):
        spark.read.format("fanlog").option("url", NO_BROKER).load("orders").count()
    stream = spark.readStream.format("fanlog").option("url", NO_BROKER).load("orders")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match=said):
        wait_for_end(query)
    rows = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(PySparkException, match=said):
        rows.write.format("fanlog").option("url", NO_BROKER).mode("append").save("orders")


def test_a_schema_that_does_not_fit(spark: SparkSession, reading: Reading) -> None:
    wrong = spark.read.format("fanlog").option("url", reading.url)
    with pytest.raises(PySparkException, match="a column `amount`, but the columns of `fanlog`"):
        wrong.schema("amount int").load("orders").count()
    with pytest.raises(PySparkException, match="`value` as string, but it is binary"):
        wrong.schema("value string").load("orders").count()
    with pytest.raises(PySparkException, match="names a column `price`"):
        reading(topics="orders", columns="price")


SINK_MISTAKES = {
    "Rows need a column `value`": ("cast(id as string) text",),
    "The column `value` is bigint, but must be binary or string": ("id value",),
    "does not know the column `price`": ("'x' value", "1 price"),
    "The column `headers` is map": ("'x' value", "map('a', 'b') headers"),
    "The column `headers` is array<string>": ("'x' value", "array('a') headers"),
}


@pytest.mark.parametrize("said", SINK_MISTAKES)
def test_rows_that_can_not_be_written(spark: SparkSession, reading: Reading, said: str) -> None:
    write_wrongly(spark.range(3).selectExpr(*SINK_MISTAKES[said]), reading, said, topic="orders")


def write_wrongly(rows: DataFrame, reading: Reading, said: str, **options: str) -> None:
    with pytest.raises(PySparkException, match=said):
        rows.write.format("fanlog").options(url=reading.url, **options).mode("append").save()


def test_rows_for_nowhere(spark: SparkSession, reading: Reading) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value")
    write_wrongly(rows, reading, "give the option `topic`, or rows with a column")
    options = {"topic": "not-made", "createTopics": "false"}
    write_wrongly(rows, reading, "There is no topic 'not-made'", **options)


def test_a_log_can_not_be_overwritten(spark: SparkSession, reading: Reading) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(PySparkException, match="Nothing in a log can be overwritten"):
        rows.write.format("fanlog").option("url", reading.url).mode("overwrite").save("orders")


def test_an_offset_that_is_not_there_yet(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 3, partitions=1)
    far = f'{{"{topic}": {{"0": 99}}}}'
    with pytest.raises(PySparkException, match=r"Offset 99 of partition 0 .* ends at 3"):
        reading(topics=topic, startingOffsets=far).count()
    with pytest.raises(PySparkException, match="does not read partition 0 of 'other'"):
        reading(topics=topic, startingOffsets='{"other": {"0": 1}}').count()


def test_a_stream_with_an_end(spark: SparkSession, reading: Reading, tmp_path: Path) -> None:
    stream = spark.readStream.format("fanlog").options(url=reading.url, endingOffsets="latest")
    query = stream.load("orders").writeStream.format("noop")
    with pytest.raises(PySparkException, match="a stream has no end") as caught:
        wait_for_end(query.option("checkpointLocation", str(tmp_path)).start())
    assert "UnboundLocalError" not in str(caught.value), "nothing of Spark's own in front of it"
