"""A stream from topic to topic, whose driver and whose Python workers are killed ten times while
data flows, has every record in the end exactly once."""

from __future__ import annotations

from collections import Counter

import pytest

import fanlog
from tests.spark.killing import KILLS, Killed


@pytest.mark.timeout(1800)
def test_a_stream_that_is_killed_ten_times_has_copied_every_record_once(
    killed: Killed, client: fanlog.sync.Client
) -> None:
    assert killed.driver_kills == killed.worker_kills == KILLS // 2
    assert published(client, killed.topic) == Counter(str(i) for i in range(killed.records))


def published(client: fanlog.sync.Client, topic: str) -> Counter[str]:
    """How often each value is in a topic."""
    found: Counter[str] = Counter()
    for partition in client.describe_topic(topic).partitions:
        offset = partition.start_offset
        while offset < partition.visible_end:
            fetched = client.fetch(topic, partition.partition, offset)
            for batch in fetched.batches:
                found.update(value.decode() for value in batch.values if value is not None)
                offset = batch.next_offset
    return found
