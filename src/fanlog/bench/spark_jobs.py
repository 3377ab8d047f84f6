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
    # So that an idle stream tells what each look for news took.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
}
WARM_UP_RECORDS = 1_000_000
STREAM_TIMEOUT_S = 600.0
IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Where the records are, and how many are used for what."""

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


def _spark(place: Dataset) -> SparkSession:
    if not _sessions:
        made = session(place.master, **SETTINGS)
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


def warm_up(place: Dataset) -> None:
    """Starts Spark, and lets Java compile what will be measured."""
    records = min(WARM_UP_RECORDS, place.records)
    for way in (CEILING, SCAN, FILES):
        _scan(place, way, records)
    _scan(place, ROWS, min(records, place.row_records) // 20 * 2)
    few = replace(place, sink_records=place.sink_records // 10)
    _sink(few)
    _stream(few)


def measure(way: str, place: Dataset) -> float:
    """Records a second; of the idle stream, milliseconds for a look."""
    return WAYS[way](place)


def _source(place: Dataset, way: str, records: int) -> DataFrame:
    reader = _spark(place).read
    if way == CEILING:
        return reader.format("ready").options(records=records, payload=place.payload_bytes).load()
    options: dict[str, Any] = {"url": place.url, "topics": place.topic, "minPartitions": 2}
    if records < place.records:
        ends = {str(partition): records // 2 for partition in range(2)}
        options["endingOffsets"] = f'{{"{place.topic}": {ends}}}'.replace("'", '"')
    if way == FILES:
        options["data"] = place.data
    return reader.format("fanlog_rows" if way == ROWS else "fanlog").options(**options).load()


def _scan(place: Dataset, way: str, records: int) -> float:
    """Reads every value of so many records, and the rate at which it did."""
    rows = _source(place, way, records)
    began = time.perf_counter()
    found = _looked_at(rows)
    took_s = time.perf_counter() - began
    _check(way, found, records, place.payload_bytes)
    return records / took_s


def _looked_at(rows: DataFrame) -> Sequence[int]:
    """How many records there are, and the bytes of their values."""
    return rows.selectExpr("count(offset)", "coalesce(sum(length(value)), 0)").collect()[0]


def _check(way: str, found: Sequence[int], records: int, payload_bytes: int) -> None:
    if tuple(found) != (records, records * payload_bytes):
        raise BenchError(f"{way}: {found[0]} of {records} records were found, {found[1]} bytes")


def _scanning(way: str) -> Callable[[Dataset], float]:
    def scan(place: Dataset) -> float:
        return _scan(place, way, place.row_records // 2 * 2 if way == ROWS else place.records)

    return scan


def _stream(place: Dataset) -> float:
    """The whole of it, as a user who runs it once has it: with the query's start and its end."""
    return place.records / _streamed(place).whole_s


def _micro_batch(place: Dataset) -> float:
    """Only the batch, as a user has it whose query goes on."""
    return place.records / _streamed(place).batches_s


class _Streamed(NamedTuple):
    whole_s: float
    batches_s: float


def _streamed(place: Dataset) -> _Streamed:
    found: list[Sequence[int]] = []

    def look(rows: DataFrame, batch: int) -> None:
        del batch
        found.append(rows.selectExpr("count(offset)", "coalesce(sum(bytes), 0)").collect()[0])

    with tempfile.TemporaryDirectory(dir=place.scratch) as checkpoint:
        stream = (
            _spark(place)
            .readStream.format("fanlog")
            .options(url=place.url, topics=place.topic, startingOffsets="earliest")
        )
        # What is looked at is taken out in the stream, as a scan takes it out before it adds up.
        rows = stream.load().selectExpr("offset", "length(value) as bytes")
        writer = rows.writeStream.foreachBatch(look)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        began = time.perf_counter()
        query = writer.start()
        if not query.awaitTermination(int(STREAM_TIMEOUT_S)):
            raise BenchError(f"{STREAM}: not done within {STREAM_TIMEOUT_S:.0f} s")
        took_s = time.perf_counter() - began
        batches_ms = sum(told["durationMs"]["triggerExecution"] for told in query.recentProgress)
    total = [sum(column) for column in zip(*found, strict=True)]
    _check(STREAM, total, place.records, place.payload_bytes)
    return _Streamed(took_s, batches_ms / 1000)


def _sink(place: Dataset) -> float:
    # Rows that cost Spark nothing to make: the sink is measured, not what is before it.
    value = f"X'{make_payload(place.payload_bytes).hex()}' value"
    rows = _spark(place).range(0, place.sink_records, 1, 2).selectExpr(value)
    topic = f"{place.topic}.sink.{time.time_ns()}"
    writer = rows.write.format("fanlog").options(url=place.url, topic=topic, partitions=2)
    began = time.perf_counter()
    writer.mode("append").save()
    took_s = time.perf_counter() - began
    written = _spark(place).read.format("fanlog").options(url=place.url, topics=topic).load()
    _check(SINK, _looked_at(written), place.sink_records, place.payload_bytes)
    return place.sink_records / took_s


def _idle(place: Dataset) -> float:
    checkpoint = tempfile.mkdtemp(dir=place.scratch)
    stream = _spark(place).readStream.format("fanlog").options(url=place.url, topics=place.topic)
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        query.processAllAvailable()
        give_up_at = time.monotonic() + IDLE_TIMEOUT_S
        looks: list[int] = []
        # A busy machine may take longer for the first look than the time that was asked for.
        while not looks and time.monotonic() < give_up_at:
            time.sleep(place.idle_s)
            progress = _idle_progress(query.recentProgress)
            looks = [told["durationMs"]["triggerExecution"] for told in progress]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    if not looks:
        raise BenchError(f"{IDLE}: Spark told nothing of its batches in {IDLE_TIMEOUT_S} s")
    return float(statistics.median(looks))


def _idle_progress(progress: Sequence[Any]) -> Iterator[Any]:
    """What was told after the first batch, in which Spark sets itself up."""
    for told in progress:
        if not told["numInputRows"] and "addBatch" not in told["durationMs"]:
            yield told


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
