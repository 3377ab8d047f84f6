"""The sinks: what is written is there exactly once, whatever becomes of tasks and drivers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import fanlog
from fanlog.client.request_connection import RequestConnection
from fanlog.errors import ConnectionLostError, MessageTooLargeError, TransactionNotFoundError
from fanlog.format.frames import FrameKind
from fanlog.format.keys import partition_of
from fanlog.spark import sink
from fanlog.spark.options import write_options
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


def test_an_id_in_foreach_batch_counts_within_its_query(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading, tmp_path: Path
) -> None:
    fill(client, topic, 6, partitions=1)

    def add(rows: DataFrame, batch: int) -> None:
        write(rows, reading.url, topic=f"{topic}.copy", transactionId=f"copy/{batch}")

    def run(checkpoint: Path) -> None:
        stream = spark.readStream.format("fanlog").options(
            url=reading.url, topics=topic, startingOffsets="earliest"
        )
        writer = stream.load().select("value").writeStream.foreachBatch(add)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        wait_for_end(writer.start())

    run(tmp_path / "one")
    assert len(reading.values(f"{topic}.copy")) == 6
    # Spark has not noted that the batch is done, and repeats it.
    (tmp_path / "one/commits/0").unlink()
    (tmp_path / "one/commits/.0.crc").unlink(missing_ok=True)
    run(tmp_path / "one")
    assert len(reading.values(f"{topic}.copy")) == 6
    run(tmp_path / "another")
    assert len(reading.values(f"{topic}.copy")) == 12


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


# Without Spark: what tasks and the driver do


def some_rows(*values: str, **columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch(
        {name: pa.array(some) for name, some in {"value": [*values], **columns}.items()}
    )


def batch_sink(url: str, **options: str) -> sink.BatchSink:
    return sink.BatchSink(write_options({"url": url, **options}, streaming=False), overwrite=False)


def test_a_row_that_fits_no_frame_is_refused_with_a_sentence(
    broker: BrokerProcess, client: fanlog.sync.Client, topic: str
) -> None:
    client.create_topic(topic, message_bytes_max=64 << 20)
    writer = batch_sink(broker.url, topic=topic)
    with pytest.raises(MessageTooLargeError, match=r"A row has 17\d+ bytes .*frame_bytes_max"):
        writer.write(iter([some_rows("small", "x" * (17 << 20))]))


class Losing(RequestConnection):
    """A connection that is lost with every batch that is staged."""

    lost = 0

    def post_parts(self, kind: FrameKind, *parts: bytes | memoryview) -> int:
        self.lost += 1
        self.close()
        raise ConnectionLostError("lost once more")


def test_a_task_gives_up_when_no_new_connection_brings_it_on(
    broker: BrokerProcess, topic: str
) -> None:
    options = write_options({"url": broker.url, "topic": topic}, streaming=False)
    with Losing(broker.url) as connection:
        stager = sink.SinkStager(connection, options, "never")
        with pytest.raises(ConnectionLostError, match="lost once more"):
            stager.add(some_rows("x"))
        assert connection.lost == 1 + options.limits.stage_rounds_max


def test_a_connection_that_is_lost_before_a_new_topic_is_noticed(
    broker: BrokerProcess, client: fanlog.sync.Client, topic: str
) -> None:
    options = write_options({"url": broker.url}, streaming=False)
    with RequestConnection(broker.url) as connection:
        stager = sink.SinkStager(connection, options, topic)
        stager.add(some_rows("1", topic=[f"{topic}.a"]))
        connection.close()
        stager.add(some_rows("2", "3", topic=[f"{topic}.b"] * 2))
        stager.flush()
    writer = batch_sink(broker.url, transactionId=topic)
    writer.commit([sink.StagedAttempt(stager.ticket, stager.rows)])
    assert client.describe_topic(f"{topic}.a").records == 1
    assert client.describe_topic(f"{topic}.b").records == 2


def test_an_id_that_was_committed_leaves_nothing_open_and_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    narrow = tmp_path / "narrow.toml"
    narrow.write_text("[broker]\ntransactions_max = 1\n")
    with BrokerProcess(tmp_path / "data", "--config", str(narrow)) as broker:
        writer = batch_sink(broker.url, topic="t", transactionId="a job")
        writer.commit([writer.write(iter([some_rows("1")]))])
        assert not caplog.messages
        # Each would be one too many, if it stayed open.
        again = [writer.write(iter([some_rows("1")])) for _ in range(3)]
        assert [(some.ticket, some.committed) for some in again] == [("", True)] * 3
        broker.kill()
        waiting = threading.Timer(0.3, broker.start)
        waiting.start()
        with caplog.at_level(logging.WARNING, "fanlog.spark"):
            writer.commit([*again, None])
        waiting.join()
        assert "a job was committed before: nothing was written now" in caplog.text
        # What must have been committed is not committed in part.
        other = batch_sink(broker.url, topic="t", transactionId="another")
        staged = other.write(iter([some_rows("2")]))
        with pytest.raises(TransactionNotFoundError):
            other.commit([staged, again[0]])
        other.commit([staged])
        with fanlog.sync.connect(broker.url) as client:
            assert client.describe_topic("t").records == 2


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


def test_rows_of_a_task_are_written_in_time_order_where_that_is_asked(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    rows = spark.range(50).selectExpr(
        "cast(id as string) value", "timestamp_seconds(1000 - id) event_time"
    )
    write(rows.coalesce(1), reading.url, topic=topic, inTimeOrder="true")
    with client.subscribe(topic, start="earliest") as written:
        values = [written.next(timeout_seconds=60).text for _ in range(50)]
    assert values == [str(id) for id in range(49, -1, -1)]
    with pytest.raises(PySparkException, match="`inTimeOrder` sorts rows by their column"):
        write(numbers(spark, 3), reading.url, topic=topic, inTimeOrder="true")
