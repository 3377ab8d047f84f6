"""Streams: bounded batches, topics and partitions that come later, and what is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

import fanlog
from fanlog.errors import MessagesLostError, TopicNotFoundError
from fanlog.spark.options import read_options
from fanlog.spark.rows import SOURCE_SCHEMA
from fanlog.spark.source import FanlogStreamReader, RangePartition
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


Readers = Callable[..., FanlogStreamReader]


@pytest.fixture
def reader_of(broker: BrokerProcess) -> Iterator[Readers]:
    """Makes a stream's reader as the driver has it, without Spark."""
    made: list[FanlogStreamReader] = []

    def make(**options: str) -> FanlogStreamReader:
        given = read_options({"url": broker.url, **options}, streaming=True)
        made.append(FanlogStreamReader(given, SOURCE_SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def ranges_of(reader: FanlogStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    parts = reader.partitions(start, end)
    return [(p.range.first, p.range.end) for p in parts if isinstance(p, RangePartition)]


def test_a_log_that_was_cut_short_is_not_read_again(
    client: fanlog.sync.Client,
    topic: str,
    reader_of: Readers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, topic, 10, partitions=1)
    log = str(client.describe_topic(topic).number)
    start = {topic: {"log": log, "offsets": {"0": 12}}}
    with pytest.raises(
        MessagesLostError,
        match=r"is at offset 12 .* has lost records that it read from offset 10 on",
    ):
        reader_of(topics=topic).latestOffset(start, ReadAllAvailable())
    group = f"spark {topic}"
    reader = reader_of(topics=topic, failOnDataLoss="false", group=group)
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.commit(start)
    assert [p.committed for p in client.groups.describe(group).partitions] == [10]
    assert end[topic]["offsets"] == {"0": 10}
    assert ranges_of(reader, start, end) == []
    assert "continues at offset 10; nothing is read again" in caplog.text
    # What comes gets the lost ones' offsets, and is read.
    fill(client, topic, 1, partitions=1)
    assert ranges_of(reader, end, reader.latestOffset(end, ReadAllAvailable())) == [(10, 11)]


def test_what_retention_has_removed_takes_no_part_in_a_batchs_limit(
    client: fanlog.sync.Client,
    topic: str,
    reader_of: Readers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, topic, 20, partitions=1)
    client.delete_records(topic, {0: 15})
    log = str(client.describe_topic(topic).number)
    start = {topic: {"log": log, "offsets": {"0": 3}}}
    reader = reader_of(topics=topic, failOnDataLoss="false")
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert ranges_of(reader, start, end) == [(15, 17)]
    assert ranges_of(reader, end, reader.latestOffset(end, ReadMaxRows(2))) == [(17, 19)]
    assert caplog.text.count("are not kept any more") == 1
    assert "Offsets 3 to 14" in caplog.text


def test_a_group_is_told_only_of_logs_that_are_there(
    client: fanlog.sync.Client, topic: str, broker: BrokerProcess, reader_of: Readers
) -> None:
    for name in ("kept", "deleted", "anew"):
        fill(client, f"{topic}.{name}", 5, partitions=1)
    start = reader_of(pattern=f"{topic}.*").initialOffset()
    for name in ("deleted", "anew"):
        client.delete_topic(f"{topic}.{name}")
    with fanlog.sync.connect(broker.url) as another:
        fill(another, f"{topic}.anew", 8, partitions=1)
    options = {"pattern": f"{topic}.*", "group": f"spark {topic}"}
    with pytest.raises(MessagesLostError):
        reader_of(**options).latestOffset(start, ReadAllAvailable())
    assert f"spark {topic}" not in {group.name for group in client.groups.list()}
    reader = reader_of(**options, failOnDataLoss="false")
    reader.commit(start)
    end = reader.latestOffset(start, ReadAllAvailable())
    described = client.groups.describe(f"spark {topic}")
    assert {p.topic: p.committed for p in described.partitions} == {f"{topic}.kept": 5}
    reader.commit(end)
    described = client.groups.describe(f"spark {topic}")
    assert {p.topic: p.committed for p in described.partitions} == {
        f"{topic}.kept": 5,
        f"{topic}.anew": 8,
    }


def test_a_checkpoint_of_other_topics_is_told_from_topics_that_were_deleted(
    client: fanlog.sync.Client, topic: str, reader_of: Readers
) -> None:
    for name in ("a", "b"):
        fill(client, f"{topic}.{name}", 3, partitions=1)
    start = reader_of(topics=f"{topic}.a").initialOffset()
    with pytest.raises(MessagesLostError, match=r"use another checkpoint folder .* failOnDataLoss"):
        reader_of(topics=f"{topic}.b").latestOffset(start, ReadAllAvailable())
    reader = reader_of(topics=f"{topic}.b", failOnDataLoss="false")
    assert list(reader.latestOffset(start, ReadAllAvailable())) == [f"{topic}.b"]
    client.delete_topic(f"{topic}.a")
    with pytest.raises(MessagesLostError, match="was deleted"):
        reader_of(pattern=f"{topic}.*").latestOffset(start, ReadAllAvailable())


def test_a_topic_that_was_read_and_is_deleted_is_told_from_one_that_never_was(
    client: fanlog.sync.Client, topic: str, reader_of: Readers
) -> None:
    for name in ("a", "b"):
        fill(client, f"{topic}.{name}", 3, partitions=1)
    both = f"{topic}.a,{topic}.b"
    start = reader_of(topics=both).initialOffset()
    client.delete_topic(f"{topic}.a")
    reader = reader_of(topics=both)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(MessagesLostError, match=r"\.a' was deleted"):
        reader.latestOffset(start, ReadAllAvailable())
    reader = reader_of(topics=both, failOnDataLoss="false")
    assert list(reader.latestOffset(start, ReadAllAvailable())) == [f"{topic}.b"]
    with pytest.raises(TopicNotFoundError):
        reader_of(topics=f"{topic}.c").latestOffset({}, ReadAllAvailable())


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
