"""Sources to compare with: one with ready Arrow batches, the most that Spark can take, and the same
log read by a plain source, a tuple for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import fanlog
from fanlog.bench.wires import make_payload
from fanlog.config import SparkOptions
from fanlog.spark.rows import SOURCE_SCHEMA, arrow_schema
from fanlog.spark.source import BatchReader, FanlogSource, RangePartition

TASKS = 2
SOME_TIME_US = 1_700_000_000_000_000


class ReadySource(DataSource):
    """The requested number of records: the same batch, repeated."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> ReadyReader:
        return ReadyReader(schema, int(self.options["records"]), int(self.options["payload"]))


class ReadyReader(DataSourceReader):
    def __init__(self, schema: StructType, records: int, payload_bytes: int) -> None:
        self._schema = schema
        self._records = records
        self._payload_bytes = payload_bytes

    def partitions(self) -> Sequence[InputPartition]:
        shares = [self._records * i // TASKS for i in range(TASKS + 1)]
        return [InputPartition(shares[i + 1] - shares[i]) for i in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = SparkOptions().rows_max
        ready = ready_batch(arrow_schema(self._schema), rows, self._payload_bytes)
        left: int = partition.value
        while left > 0:
            yield ready if left >= rows else ready.slice(0, left)
            left -= rows


def ready_batch(schema: pa.Schema, rows: int, payload_bytes: int) -> pa.RecordBatch:
    """A batch as from the log: values, no keys, no headers."""
    payload = make_payload(payload_bytes)
    times = pa.array(np.full(rows, SOME_TIME_US, np.int64))
    columns = {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.repeat(pa.scalar(payload, pa.binary()), rows),
        "topic": pa.repeat(pa.scalar("ready", pa.string()), rows),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "offset": pa.array(np.arange(rows, dtype=np.int64)),
        "timestamp": times.cast(schema.field("timestamp").type),
        "event_time": times.cast(schema.field("event_time").type),
        "headers": pa.nulls(rows, schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class RowSource(FanlogSource):
    """The same plan, read by the blocking client and handed over as tuples."""

    @classmethod
    def name(cls) -> str:
        return "fanlog_rows"

    def reader(self, schema: StructType) -> RowReader:
        made = super().reader(schema)
        return RowReader(made.options, schema)


class RowReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, RangePartition):
            return
        wanted = partition.range
        with fanlog.sync.connect(self.options.url) as client:
            offset = wanted.first
            while offset < wanted.end:
                fetched = client.fetch(wanted.tp.topic, wanted.tp.partition, offset)
                for batch in fetched.batches:
                    for message in fanlog.MessageBatch(batch):
                        if wanted.first <= message.offset < wanted.end:
                            yield _row(message)
                    offset = batch.next_offset


def _row(message: fanlog.Message) -> tuple[Any, ...]:
    return (
        message.key,
        message.value,
        message.topic,
        message.partition,
        message.offset,
        message.timestamp,
        message.event_time,
        [(name, content) for name, content in message.headers.items()],
    )
