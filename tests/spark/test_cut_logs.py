"""A stream over a log that lost its end in a power cut, and has grown past it since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import fanlog.sync
from fanlog.errors import MessagesLostError
from fanlog.spark.options import read_options
from fanlog.spark.rows import SOURCE_SCHEMA
from fanlog.spark.source import FanlogStreamReader, RangePartition
from tests.broker.cuts import cut_log
from tests.scenarios.broker_process import BrokerProcess


def publish(broker: BrokerProcess, count: int) -> None:
    """Batches of ten."""
    with fanlog.sync.connect(broker.url) as client:
        for _ in range(count // 10):
            client.publish_many("t", [b"x"] * 10)


def stream(broker: BrokerProcess, **options: str) -> FanlogStreamReader:
    given = read_options({"url": broker.url, "topics": "t", **options}, streaming=True)
    return FanlogStreamReader(given, SOURCE_SCHEMA)


def ranges_of(reader: FanlogStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    parts = reader.partitions(start, end)
    return [(p.range.first, p.range.end) for p in parts if isinstance(p, RangePartition)]


@pytest.mark.parametrize("new", [10, 150])
def test_what_came_in_the_place_of_lost_records_is_read(data: Path, new: int) -> None:
    with BrokerProcess(data) as broker:
        publish(broker, 100)
        reader = stream(broker, startingOffsets="earliest")
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert start["t"]["offsets"] == {"0": 100}
        reader.stop()
        broker.kill()
        cut_log(data, "t", 40)
        broker.start()
        publish(broker, new)
        strict = stream(broker)
        with pytest.raises(
            MessagesLostError, match="has lost records that it read from offset 40 on"
        ):
            strict.latestOffset(start, ReadAllAvailable())
        strict.stop()
        reader = stream(broker, failOnDataLoss="false")
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["t"]["offsets"] == {"0": 40 + new}
        assert ranges_of(reader, start, end) == [(40, 40 + new)]
        reader.stop()
        # A driver that was restarted plans the same batch again.
        again = stream(broker, failOnDataLoss="false")
        assert ranges_of(again, start, end) == [(40, 40 + new)]
        assert again.latestOffset(end, ReadAllAvailable()) == end
        again.stop()


def test_a_restart_of_the_broker_alone_is_no_news(data: Path) -> None:
    with BrokerProcess(data) as broker:
        publish(broker, 20)
        reader = stream(broker)
        start = reader.initialOffset()
        reader.stop()
        broker.kill()
        broker.start()
        reader = stream(broker)
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        reader.stop()
