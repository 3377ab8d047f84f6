"""What a Spark benchmark runs, in the process that has the driver: its session lives as long."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fanlog.bench.systems import BenchError
from fanlog.bench.wires import make_payload
from fanlog.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CEILING = "ready-made Arrow batches"
ROWS = "row by row"
SCAN = "batch, from the broker"
FILES = "batch, from the files"
STREAM = "stream, availableNow"
MICRO_BATCH = "stream, its micro-batch"
SINK = "sink, batch"
IDLE = "idle stream"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    # So that an idle stream reports the time of each check for new records.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
}
WARM_UP_RECORDS = 1_000_000
STREAM_TIMEOUT_S = 600.0
IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Where the records are, and how many each job uses."""

    url: str
    data: str
    topic: str
    records: int
    payload_bytes: int
    row_records: int
    sink_records: int
    idle_s: float
    master: str
    scratch: str


_sessions: list[SparkSession] = []


def data_folder(folder: Path) -> Path:
    """The data folder of the broker that was started in `folder`."""
    (catalog,) = folder.rglob("catalog.json")
    return catalog.parent


def _spark(dataset: Dataset) -> SparkSession:
    if not _sessions:
        made = session(dataset.master, **SETTINGS)
        made.sparkContext.setLogLevel("ERROR")
        # pyspark is optional, and slow to import.
        from fanlog.bench.spark_sources import ReadySource, RowSource  # noqa: PLC0415

        made.dataSource.register(ReadySource)
        made.dataSource.register(RowSource)
        _sessions.append(made)
    return _sessions[0]


def stop() -> None:
    while _sessions:
        _sessions.pop().stop()


def warm_up(dataset: Dataset) -> None:
    """Starts Spark, and warms up Java's compiler."""
    records = min(WARM_UP_RECORDS, dataset.records)
    for way in (CEILING, SCAN, FILES):
        _scan(dataset, way, records)
    _scan(dataset, ROWS, min(records, dataset.row_records) // 20 * 2)
    few = replace(dataset, sink_records=dataset.sink_records // 10)
    _sink(few)
    _stream(few)


def measure(way: str, dataset: Dataset) -> float:
    """Records a second; for the idle stream, milliseconds of one check."""
    return WAYS[way](dataset)


def _source(dataset: Dataset, way: str, records: int) -> DataFrame:
    reader = _spark(dataset).read
    if way == CEILING:
        return reader.format("ready").options(records=records, payload=dataset.payload_bytes).load()
    options: dict[str, Any] = {"url": dataset.url, "topics": dataset.topic, "minPartitions": 2}
    if records < dataset.records:
        ends = {str(partition): records // 2 for partition in range(2)}
        options["endingOffsets"] = f'{{"{dataset.topic}": {ends}}}'.replace("'", '"')
    if way == FILES:
        options["data"] = dataset.data
    return reader.format("fanlog_rows" if way == ROWS else "fanlog").options(**options).load()


def _scan(dataset: Dataset, way: str, records: int) -> float:
    """Reads every value of this many records. Returns the rate."""
    rows = _source(dataset, way, records)
    began = time.perf_counter()
    found = _looked_at(rows)
    took_s = time.perf_counter() - began
    _check(way, found, records, dataset.payload_bytes)
    return records / took_s


def _looked_at(rows: DataFrame) -> Sequence[int]:
    """How many records there are, and the bytes of their values."""
    return rows.selectExpr("count(offset)", "coalesce(sum(length(value)), 0)").collect()[0]


def _check(way: str, found: Sequence[int], records: int, payload_bytes: int) -> None:
    if tuple(found) != (records, records * payload_bytes):
        raise BenchError(f"{way}: {found[0]} of {records} records were found, {found[1]} bytes")


def _scanning(way: str) -> Callable[[Dataset], float]:
    def scan(dataset: Dataset) -> float:
        return _scan(dataset, way, dataset.row_records // 2 * 2 if way == ROWS else dataset.records)

    return scan


def _stream(dataset: Dataset) -> float:
    """The time of the whole query, with its start and end, as a user sees it."""
    return dataset.records / _streamed(dataset).whole_s


def _micro_batch(dataset: Dataset) -> float:
    """The time of the batch alone, as in a running query."""
    return dataset.records / _streamed(dataset).batches_s


class _Streamed(NamedTuple):
    whole_s: float
    batches_s: float


def _streamed(dataset: Dataset) -> _Streamed:
    found: list[Sequence[int]] = []

    def look(rows: DataFrame, batch: int) -> None:
        del batch
        found.append(rows.selectExpr("count(offset)", "coalesce(sum(bytes), 0)").collect()[0])

    with tempfile.TemporaryDirectory(dir=dataset.scratch) as checkpoint:
        stream = (
            _spark(dataset)
            .readStream.format("fanlog")
            .options(url=dataset.url, topics=dataset.topic, startingOffsets="earliest")
        )
        # The stream reads the values, as a scan reads them before it adds up.
        rows = stream.load().selectExpr("offset", "length(value) as bytes")
        writer = rows.writeStream.foreachBatch(look)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        began = time.perf_counter()
        query = writer.start()
        if not query.awaitTermination(int(STREAM_TIMEOUT_S)):
            raise BenchError(f"{STREAM}: not done within {STREAM_TIMEOUT_S:.0f} s")
        took_s = time.perf_counter() - began
        batches_ms = sum(event["durationMs"]["triggerExecution"] for event in query.recentProgress)
    total = [sum(column) for column in zip(*found, strict=True)]
    _check(STREAM, total, dataset.records, dataset.payload_bytes)
    return _Streamed(took_s, batches_ms / 1000)


def _sink(dataset: Dataset) -> float:
    # Rows that cost Spark nothing, so that only the sink is measured.
    value = f"X'{make_payload(dataset.payload_bytes).hex()}' value"
    rows = _spark(dataset).range(0, dataset.sink_records, 1, 2).selectExpr(value)
    topic = f"{dataset.topic}.sink.{time.time_ns()}"
    writer = rows.write.format("fanlog").options(url=dataset.url, topic=topic, partitions=2)
    began = time.perf_counter()
    writer.mode("append").save()
    took_s = time.perf_counter() - began
    written = _spark(dataset).read.format("fanlog").options(url=dataset.url, topics=topic).load()
    _check(SINK, _looked_at(written), dataset.sink_records, dataset.payload_bytes)
    return dataset.sink_records / took_s


def _idle(dataset: Dataset) -> float:
    checkpoint = tempfile.mkdtemp(dir=dataset.scratch)
    stream = (
        _spark(dataset).readStream.format("fanlog").options(url=dataset.url, topics=dataset.topic)
    )
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        query.processAllAvailable()
        give_up_at = time.monotonic() + IDLE_TIMEOUT_S
        looks: list[int] = []
        # On a busy machine the first check may take longer than the requested time.
        while not looks and time.monotonic() < give_up_at:
            time.sleep(dataset.idle_s)
            progress = _idle_progress(query.recentProgress)
            looks = [event["durationMs"]["triggerExecution"] for event in progress]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    if not looks:
        raise BenchError(f"{IDLE}: Spark reported no batches in {IDLE_TIMEOUT_S} s")
    return float(statistics.median(looks))


def _idle_progress(progress: Sequence[Any]) -> Iterator[Any]:
    """The events after the first batch, in which Spark sets itself up."""
    for event in progress:
        if not event["numInputRows"] and "addBatch" not in event["durationMs"]:
            yield event


WAYS: dict[str, Callable[[Dataset], float]] = {
    CEILING: _scanning(CEILING),
    SCAN: _scanning(SCAN),
    FILES: _scanning(FILES),
    ROWS: _scanning(ROWS),
    STREAM: _stream,
    MICRO_BATCH: _micro_batch,
    SINK: _sink,
    IDLE: _idle,
}
