"""The sinks: what is written is there exactly once, whatever becomes of tasks and drivers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import fanlog
from fanlog.format.keys import partition_of
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.conftest import Reading
from tests.spark.sessions import wait_for_end
from tests.spark.test_source import fill


def write(rows: DataFrame, url: str, **options: Any) -> None:
    rows.write.format("fanlog").options(url=url, **options).mode("append").save()


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) value")


def as_values(count: int) -> list[str]:
    return sorted(str(i) for i in range(count))


def test_rows_are_written_with_key_headers_time_and_partition(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    rows = spark.range(1000).selectExpr(
        "concat('value ', id) value",
        "if(id % 4 = 0, null, concat('key ', id % 20)) key",
        "array(named_struct('key', 'id', 'value', cast(cast(id as string) as binary))) headers",
        "timestamp_micros(1700000000000000 + id) event_time",
        "if(id % 100 = 0, 2, null) partition",
    )
    write(rows, reading.url, topic=topic, partitions=3, compression="lz4")
    assert client.describe_topic(topic).settings.partitions == 3
    found = reading(topics=topic).collect()
    assert len(found) == 1000
    for row in found:
        number = int(bytes(row.value).split()[1])
        assert bytes(row.headers[0].value) == str(number).encode()
        assert row.event_time.microsecond == number
        assert (row.key is None) == (number % 4 == 0)
        if number % 100 == 0:
            assert row.partition == 2
        elif row.key is not None:
            assert row.partition == partition_of(bytes(row.key), 3)


def test_rows_go_to_the_topics_that_they_name(
    spark: SparkSession, topic: str, reading: Reading
) -> None:
    named = f"concat('{topic}.', id % 2) topic"
    write(spark.range(10).selectExpr("cast(id as string) value", named), reading.url)
    assert reading.values(f"{topic}.0") == ["0", "2", "4", "6", "8"]
    assert reading.values(f"{topic}.1") == ["1", "3", "5", "7", "9"]


def test_rows_of_many_megabytes_are_committed_as_a_whole(
    spark: SparkSession, topic: str, reading: Reading
) -> None:
    rows = spark.range(0, 60_000, 1, 3).selectExpr("concat(id, ' ', repeat('x', 200)) value")
    write(rows, reading.url, topic=topic, partitions=2)
    found = reading(topics=topic).selectExpr("split(cast(value as string), ' ')[0] n")
    assert found.count() == found.distinct().count() == 60_000


def test_nothing_to_write_is_no_mistake(spark: SparkSession, topic: str, reading: Reading) -> None:
    write(numbers(spark, 0), reading.url, topic=topic)
    assert reading.values(topic) == []


def test_a_job_that_is_run_again_under_its_id_writes_nothing_twice(
    spark: SparkSession, topic: str, reading: Reading
) -> None:
    for _ in range(2):
        write(numbers(spark, 20), reading.url, topic=topic, transactionId=f"the job of {topic}")
    assert reading.values(topic) == as_values(20)


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes rows on, and fails behind them if the task is tried for the first time."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


def always_failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 1:
        raise RuntimeError("this task never ends well")


def dying_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The Python worker is killed behind the rows of a first attempt."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize("trouble", [failing_at_first, dying_at_first])
def test_what_a_failed_attempt_has_staged_is_not_written(
    spark: SparkSession, topic: str, reading: Reading, trouble: Any
) -> None:
    rows = numbers(spark, 5000, 3).mapInArrow(trouble, "value string")
    write(rows, reading.url, topic=topic, partitions=2)
    assert reading.values(topic) == as_values(5000)


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    client.create_topic(topic)
    rows = numbers(spark, 5000, 2).mapInArrow(always_failing, "value string")
    with pytest.raises(Exception, match="this task never ends well"):
        write(rows, reading.url, topic=topic)
    assert reading.values(topic) == []


class TopicToTopic:
    """A stream from a topic to another, in batches of ten."""

    def __init__(self, spark: SparkSession, url: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._topic = topic
        self.checkpoint = folder / "checkpoint"

    def run(self, **options: Any) -> None:
        stream = self._spark.readStream.format("fanlog").options(
            url=self._url,
            topics=self._topic,
            startingOffsets="earliest",
            maxRecordsPerTrigger=10,
            minPartitions=2,
        )
        rows = stream.load().select("key", "value")
        writer = rows.writeStream.format("fanlog").options(
            url=self._url, topic=f"{self._topic}.out", checkpointLocation=str(self.checkpoint)
        )
        wait_for_end(writer.options(**options).trigger(availableNow=True).start())

    def forget_last_commit(self) -> None:
        """As if the driver had died after the broker's commit and before Spark's own."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()


def test_a_batch_that_a_restarted_stream_repeats_is_written_once(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading, tmp_path: Path
) -> None:
    fill(client, topic, 35, partitions=1)
    stream = TopicToTopic(spark, reading.url, topic, tmp_path)
    for _ in range(3):
        stream.run()
        stream.forget_last_commit()
        assert reading.values(f"{topic}.out") == as_values(35)


def test_what_a_sink_has_promised_outlives_its_broker(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        reading = Reading(spark, broker.url)
        with fanlog.sync.connect(broker.url) as client:
            fill(client, topic, 25, partitions=1)
        stream = TopicToTopic(spark, broker.url, topic, tmp_path)
        stream.run()
        stream.forget_last_commit()
        broker.kill()
        broker.start()
        stream.run()
        assert reading.values(f"{topic}.out") == as_values(25)
