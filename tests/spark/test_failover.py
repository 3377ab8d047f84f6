"""Spark and a cluster of three nodes: tasks read the copies of followers, and a stream from topic
to topic has every record once, also if the primary is killed in the middle of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import fanlog
from tests.cluster.processes import ClusterProcesses, NodeProcess
from tests.etcd_servers import etcd_servers
from tests.spark.processes import PATIENCE_SECONDS
from tests.spark.test_kill import published
from tests.spark.test_source import fill

RECORDS = 400
PARTITIONS = 2
# Metrics may be a second old.
_METRICS_SECONDS = 1.1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with (
        etcd_servers(tmp_path) as etcd,
        closing(ClusterProcesses(tmp_path, etcd)) as nodes,
    ):
        nodes.start()
        yield nodes


def wait_until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, f"{what}: not in {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.1)


def fetched_bytes(node: NodeProcess) -> int:
    """Bytes of history that this node has given to clients."""
    with fanlog.sync.connect(node.url, wait_seconds=PATIENCE_SECONDS) as client:
        return client.metrics().totals.fetched_bytes


def wait_until_copied(node: NodeProcess, topic: str) -> None:
    """Until a follower gives the last record of each partition from its own files."""
    with fanlog.sync.connect(node.url, wait_seconds=PATIENCE_SECONDS) as client:

        def gives(number: int, last: int, before: int) -> bool:
            client.fetch(topic, number, last)
            time.sleep(_METRICS_SECONDS)
            return client.metrics().totals.fetched_bytes > before

        for partition in client.describe_topic(topic).partitions:
            before = client.metrics().totals.fetched_bytes
            where = partition.partition, partition.visible_end - 1, before
            wait_until(partial(gives, *where), f"{node.node} has {topic}")


def test_tasks_read_the_copy_of_a_follower_and_spread_over_all_nodes(
    spark: SparkSession, cluster: ClusterProcesses
) -> None:
    primary = cluster.nodes[cluster.primary()]
    followers = [node for node in cluster.nodes.values() if node is not primary]
    with fanlog.sync.connect(primary.url) as client:
        fill(client, "t", RECORDS, partitions=6)
    for node in followers:
        wait_until_copied(node, "t")

    def values(url: str) -> list[str]:
        rows = spark.read.format("fanlog").options(url=url, topics="t", columns="value").load()
        return sorted(bytes(row.value).decode() for row in rows.collect())

    expected = sorted(str(i) for i in range(RECORDS))
    before = fetched_bytes(primary)
    assert values(followers[0].url) == expected
    time.sleep(_METRICS_SECONDS)
    assert fetched_bytes(primary) == before
    assert values(cluster.url) == expected


def _slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that a micro-batch takes a while."""
    for batch in batches:
        time.sleep(0.02 * len(batch))
        yield batch


def test_a_stream_is_exact_when_the_primary_is_killed_in_the_middle_of_a_batch(
    spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    with fanlog.sync.connect(cluster.url, wait_seconds=PATIENCE_SECONDS) as client:
        fill(client, "t", RECORDS, partitions=PARTITIONS)
        client.create_topic("t.out", partitions=PARTITIONS)

    def start() -> StreamingQuery:
        stream = spark.readStream.format("fanlog").options(
            url=cluster.url, topics="t", startingOffsets="earliest", maxRecordsPerTrigger=50
        )
        rows = stream.load().select("key", "value")
        slow = rows.mapInArrow(_slowly, rows.schema)
        writer = slow.writeStream.format("fanlog").options(
            url=cluster.url, topic="t.out", checkpointLocation=str(tmp_path / "checkpoint")
        )
        return writer.start()

    def copied() -> int:
        try:
            with fanlog.sync.connect(cluster.url, wait_seconds=PATIENCE_SECONDS) as client:
                return client.describe_topic("t.out").records
        except fanlog.errors.FanlogError:
            return 0

    query = start()
    try:
        wait_until(lambda: copied() >= 100, "two batches")
        first = cluster.primary()
        time.sleep(0.3)
        cluster.nodes[first].kill()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while copied() < RECORDS:
            assert time.monotonic() < give_up_at, f"{copied()} are copied"
            if not query.isActive:
                # Its open transaction was the old primary's. Whoever runs a stream restarts it.
                query = start()
            time.sleep(0.2)
    finally:
        query.stop()
    assert cluster.primary() != first
    with fanlog.sync.connect(cluster.url, wait_seconds=PATIENCE_SECONDS) as client:
        assert published(client, "t.out") == Counter(str(i) for i in range(RECORDS))
