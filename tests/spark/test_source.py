"""Batch reads: every record with all that belongs to it, from where to where one likes."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import fanlog
from fanlog.spark import register
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.conftest import Reading
from tests.spark.sessions import PUSHDOWN_SETTING

EVENT_US = 1_700_000_000_000_000


def fill(client: fanlog.sync.Client, topic: str, count: int, partitions: int = 3) -> None:
    client.create_topic(topic, partitions=partitions, exist_ok=True)
    for i in range(count):
        client.send(topic, str(i).encode(), partition=i % partitions)
    client.flush()


def test_spark_finds_the_format_and_reads_what_was_published(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    client.create_topic(topic, partitions=2, compression="zstd")
    for i in range(100):
        client.send(
            topic,
            f"value {i}".encode(),
            key=f"key {i}" if i % 2 else None,
            headers={"number": str(i).encode()} if i % 3 == 0 else None,
            event_time=EVENT_US + i,
            partition=i % 2,
        )
    client.flush()
    rows = reading(topics=topic).orderBy("event_time").collect()
    assert len(rows) == 100
    for i, row in enumerate(rows):
        assert bytes(row.value) == f"value {i}".encode()
        assert row.key == (f"key {i}".encode() if i % 2 else None)
        assert (row.topic, row.partition, row.offset) == (topic, i % 2, i // 2)
        assert row.event_time == dt.datetime.fromtimestamp(EVENT_US / 1e6, dt.UTC).replace(
            tzinfo=None
        ) + dt.timedelta(microseconds=i)
        assert row.timestamp > row.event_time
        found = {header.key: bytes(header.value) for header in row.headers or []}
        assert found == ({"number": str(i).encode()} if i % 3 == 0 else {})


def test_registering_by_hand_works_too(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, broker: BrokerProcess
) -> None:
    register(spark)
    fill(client, topic, 10)
    assert spark.read.format("fanlog").option("url", broker.url).load(topic).count() == 10


def test_a_read_begins_and_ends_where_it_is_told(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 30)
    time.sleep(0.002)
    between = dt.datetime.now(dt.UTC)
    fill(client, topic, 12)
    some = f'{{"{topic}": {{"0": 3, "1": "latest", "2": -2}}}}'
    other = f'{{"{topic}": {{"0": 5, "2": 7}}}}'
    assert reading(topics=topic).count() == 42
    assert reading(topics=topic, startingOffsets="latest").count() == 0
    assert reading(topics=topic, startingOffsets=between.isoformat()).count() == 12
    assert reading(topics=topic, endingOffsets=between.isoformat()).count() == 30
    assert reading(topics=topic, startingOffsets=some).count() == 11 + 0 + 14
    assert reading(topics=topic, startingOffsets=some, endingOffsets=other).count() == 2 + 0 + 7


def test_a_pattern_reads_every_topic_that_fits(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, f"{topic}.a", 3)
    fill(client, f"{topic}.b", 4)
    fill(client, f"{topic}.b.c", 5)
    counts = reading(pattern=f"{topic}.*").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {f"{topic}.a": 3, f"{topic}.b": 4}


def test_a_partition_is_split_over_many_tasks(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 1000, partitions=1)
    rows = reading(topics=topic, minPartitions=7)
    assert rows.rdd.getNumPartitions() == 7
    assert sorted(row.offset for row in rows.select("offset").collect()) == list(range(1000))


FILTERS = {
    "partition = 1": (range(1, 30, 3), 1),
    "partition in (0, 2) and offset < 2": ((0, 2, 3, 5), 2),
    "offset >= 3 and offset <= 4 and partition < 1": ((9, 12), 1),
    "topic = 'no such topic'": ((), 1),
    "value = '7'": ((7,), 3),
    "partition = 1 or offset = 0": ((0, 2, *range(1, 30, 3)), 3),
    "timestamp < '2020-01-01'": ((), 1),
    "timestamp >= '2020-01-01' and offset = 5": ((15, 16, 17), 3),
}


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_choose_the_same_rows_pushed_down_or_not(
    client: fanlog.sync.Client, reading: Reading, condition: str
) -> None:
    if not client.topics("filters"):
        fill(client, "filters", 30)
    expected, tasks = FILTERS[condition]
    for pushed in ("true", "false"):
        rows = reading(topics="filters", pushFilters=pushed).where(condition)
        found = sorted(int(bytes(row.value)) for row in rows.select("value").collect())
        assert found == sorted(expected)
        # The log reads no more than it must, and that shows in the tasks.
        assert rows.rdd.getNumPartitions() == (tasks if pushed == "true" else 3)


def test_filters_of_one_query_are_not_those_of_another(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 30)
    rows = reading(topics=topic)
    assert rows.where("partition = 1").count() == 10
    assert rows.count() == 30
    both = rows.where("partition = 1 and offset < 3").union(rows.where("partition = 2"))
    assert both.count() == 13


def test_pushing_filters_where_spark_does_not_is_told(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 3)
    spark.conf.set(PUSHDOWN_SETTING, "false")
    try:
        with pytest.raises(PySparkException, match=PUSHDOWN_SETTING):
            reading(topics=topic, pushFilters="true").count()
        assert reading(topics=topic).where("partition = 0").count() == 1
    finally:
        spark.conf.set(PUSHDOWN_SETTING, "true")


def test_only_the_columns_that_are_named_are_read(
    spark: SparkSession, client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 3, partitions=1)
    rows = reading(topics=topic, columns="offset, value")
    assert rows.columns == ["offset", "value"]
    assert [row.offset for row in rows.collect()] == [0, 1, 2]
    by_schema = spark.read.format("fanlog").schema("value binary, topic string")
    found = by_schema.option("url", reading.url).load(topic)
    assert next((bytes(row.value), row.topic) for row in found.collect()) == (b"0", topic)


def test_a_folder_that_is_here_is_read_straight_from_its_files(
    client: fanlog.sync.Client, topic: str, reading: Reading, data_folder: Path
) -> None:
    client.create_topic(topic, partitions=2, segment_bytes=64 * 1024)
    for i in range(3000):
        client.send(topic, str(i).encode() * 20, partition=i % 2)
    client.flush()
    plain = reading(topics=topic, minPartitions=5)
    direct = reading(topics=topic, minPartitions=5, data=str(data_folder))
    columns = ["partition", "offset", "value", "timestamp"]
    assert direct.count() == 3000
    assert direct.select(columns).exceptAll(plain.select(columns)).count() == 0
    # And where it is not, the broker is asked.
    assert reading(topics=topic, data="/no/such/folder").count() == 3000


def test_a_compacted_topic_has_the_offsets_that_are_left(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    client.create_topic(topic, cleanup="compact", segment_bytes=64 * 1024, compact_after_bytes=1)
    for i in range(4000):
        client.send(topic, f"{i:050d}".encode(), key=f"key {i % 10}")
    client.flush()
    client.compact_topic(topic)
    rows = reading(topics=topic).collect()
    last = {row.key: int(bytes(row.value)) for row in sorted(rows, key=lambda row: row.offset)}
    assert last == {f"key {i % 10}".encode(): i for i in range(3990, 4000)}
    assert all(int(bytes(row.value)) == row.offset for row in rows)
    assert len(rows) < 4000


def test_records_that_were_deleted_are_never_passed_over_in_silence(
    client: fanlog.sync.Client, topic: str, reading: Reading
) -> None:
    fill(client, topic, 30, partitions=1)
    client.delete_records(topic, {0: 10})
    wanted: dict[str, Any] = {"topics": topic, "startingOffsets": f'{{"{topic}": {{"0": 5}}}}'}
    assert reading(topics=topic).count() == 20
    with pytest.raises(Exception, match=r"Offsets 5 to 9 of partition 0 .* are not kept any more"):
        reading(**wanted).count()
    assert reading(**wanted, failOnDataLoss="false").count() == 20
