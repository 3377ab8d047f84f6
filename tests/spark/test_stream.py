"""Streams: bounded batches, topics and partitions that come later, and what is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import fanlog
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.conftest import Reading
from tests.spark.sessions import wait_for_end
from tests.spark.test_source import fill


class Copying:
    """A stream into Parquet files, which it can be asked for, with a checkpoint of its own."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, **options: Any) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {"url": url, "startingOffsets": "earliest"} | options

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = self._spark.readStream.format("fanlog").options(**self._options).load()
        named = stream.selectExpr("cast(value as string) value", "topic", "partition", "offset")
        writer = named.writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return writer.trigger(**trigger).start(str(self._folder / "out"))

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Reads all that is there; what each batch said of itself."""
        self._options |= options
        query = self.start(availableNow=True)
        wait_for_end(query)
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def places(self) -> list[tuple[str, int, int]]:
        rows = self._spark.read.parquet(str(self._folder / "out")).collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)


@pytest.fixture
def copying(spark: SparkSession, reading: Reading, tmp_path: Path) -> Any:
    return lambda **options: Copying(spark, reading.url, tmp_path, **options)


def all_of(topic: str, *counts: int) -> list[tuple[str, int, int]]:
    return [(topic, p, offset) for p, count in enumerate(counts) for offset in range(count)]


def test_a_stream_reads_what_is_there_in_bounded_batches_and_ends(
    client: fanlog.sync.Client, topic: str, copying: Any
) -> None:
    fill(client, topic, 300)
    stream = copying(topics=topic, maxRecordsPerTrigger=100)
    batches = stream.run()
    assert [batch["numInputRows"] for batch in batches][:2] == [99, 99]
    assert all(batch["numInputRows"] <= 100 for batch in batches)
    assert stream.places() == all_of(topic, 100, 100, 100)


def test_a_limit_in_bytes_bounds_a_batch_too(
    client: fanlog.sync.Client, topic: str, copying: Any
) -> None:
    client.create_topic(topic)
    for i in range(200):
        client.send(topic, b"x" * 1000 + str(i).encode())
    client.flush()
    batches = copying(topics=topic, maxBytesPerTrigger=50_000).run()
    assert sum(batch["numInputRows"] for batch in batches) == 200
    assert all(40 <= batch["numInputRows"] <= 50 for batch in batches[:-1])


def test_a_stream_goes_on_where_its_checkpoint_is_and_tells_how_far_the_log_is(
    client: fanlog.sync.Client, topic: str, copying: Any
) -> None:
    fill(client, topic, 30)
    stream = copying(topics=topic, maxRecordsPerTrigger=15)
    first, *_ = stream.run()
    (source,) = first["sources"]
    assert json.loads(source["latestOffset"])[topic]["offsets"] == {"0": 10, "1": 10, "2": 10}
    assert json.loads(source["endOffset"])[topic]["offsets"] == {"0": 5, "1": 5, "2": 5}
    fill(client, topic, 12)
    assert sum(batch["numInputRows"] for batch in stream.run()) == 12
    assert stream.places() == all_of(topic, 14, 14, 14)


def test_topics_that_appear_and_partitions_that_grow_are_read_from_their_first_record(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with fanlog.sync.connect(broker.url) as client:
            fill(client, f"{topic}.a", 4, partitions=2)
        stream = Copying(
            spark, broker.url, tmp_path, pattern=f"{topic}.*", startingOffsets="latest"
        )
        query = stream.start(processingTime="0 seconds")
        try:
            query.processAllAvailable()
            # The stream outlives its broker's restart, too.
            broker.stop()
            broker.start()
            with fanlog.sync.connect(broker.url) as client:
                client.grow_topic(f"{topic}.a", 3)
                fill(client, f"{topic}.b", 3, partitions=1)
                client.publish(f"{topic}.a", b"new", partition=2)
            query.processAllAvailable()
            assert stream.places() == [(f"{topic}.a", 2, 0), *all_of(f"{topic}.b", 3)]
        finally:
            query.stop()


def test_a_stream_that_retention_overtook_says_so_or_goes_on_if_it_may(
    client: fanlog.sync.Client, topic: str, copying: Any
) -> None:
    fill(client, topic, 10, partitions=1)
    stream = copying(topics=topic)
    stream.run()
    fill(client, topic, 10, partitions=1)
    client.delete_records(topic, {0: 15})
    with pytest.raises(StreamingQueryException, match=r"Offsets 10 to 14 .* retention overtook"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.places() == [(topic, 0, n) for n in (*range(10), *range(15, 20))]


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(
    client: fanlog.sync.Client, topic: str, copying: Any, reading: Reading
) -> None:
    fill(client, topic, 5, partitions=1)
    stream = copying(topics=topic)
    stream.run()
    client.delete_topic(topic)
    with fanlog.sync.connect(reading.url) as another:
        fill(another, topic, 8, partitions=1)
    with pytest.raises(StreamingQueryException, match="is not the one that the query knows"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.places() == sorted(all_of(topic, 5) + all_of(topic, 8))


def test_a_streams_progress_shows_as_a_groups_lag(
    client: fanlog.sync.Client, topic: str, copying: Any
) -> None:
    fill(client, topic, 30)
    stream = copying(topics=topic, group=f"spark {topic}")
    stream.run()
    described = client.groups.describe(f"spark {topic}")
    assert {p.partition: (p.committed, p.lag) for p in described.partitions} == {
        0: (10, 0),
        1: (10, 0),
        2: (10, 0),
    }
    fill(client, topic, 3)
    assert client.groups.describe(f"spark {topic}").lag == 3
