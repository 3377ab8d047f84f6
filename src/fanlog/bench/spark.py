"""Spark over a log: how near a scan comes to a source that has its Arrow batches ready, and how far
it is from one that makes row after row; a stream, the sink, and what an idle stream costs.

Law: all of it runs in one Spark, in turn, after a run that does not count; every scan must have
found every record. The ceiling has the same columns, and as many rows in a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fanlog.bench import spark_jobs
from fanlog.bench.results import SparkReport, SparkRow
from fanlog.bench.runner import (
    BenchProgress,
    RunOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
)
from fanlog.bench.spark_jobs import Dataset
from fanlog.bench.startup import check_room
from fanlog.bench.systems import HOST, BenchError, SystemSpec, started
from fanlog.bench.wires import make_payload
from fanlog.bench.wires.fanlog import NAME
from fanlog.client.aio import connect
from fanlog.spark.environment import check_java

# Bytes of a record beside its payload, in the log and staged.
ROOM_FACTOR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkBenchOptions(RunOptions):
    """What to measure. The row-by-row source and the sink get fewer records, as they take longer;
    all rates are records a second."""

    records: int = 10_000_000
    row_records: int = 500_000
    sink_records: int = 2_000_000
    payload_bytes: int = 128
    partitions: int = 2
    master: str = "local[2]"
    idle_s: float = 5.0
    repeat: int = 3


def run_spark(options: SparkBenchOptions, progress: BenchProgress = silent) -> SparkReport:
    """Fill a topic, then read it in every way.

    >>> run_spark(SparkOptions(records=1_000_000))  # doctest: +SKIP
    """
    check_java()
    environment = environment_of(options, (), pinned=False)
    parent = options.directory or Path(tempfile.gettempdir())
    check_room(parent, ROOM_FACTOR * options.records * options.payload_bytes)
    ways = spark_jobs.WAYS
    total = len(ways) * options.repeat + 2
    runs: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(_folder(parent)))
        broker = stack.enter_context(started(SystemSpec("fanlog", "os"), None, folder))
        load = stack.enter_context(load_process(None))
        progress(0, total, "filling the topic")
        url = f"fanlog://{HOST}:{broker.port}"
        records = load.call(fill, url, options)
        dataset = Dataset(
            url=url,
            data=str(spark_jobs.data_folder(folder)),
            topic=NAME,
            records=records,
            payload_bytes=options.payload_bytes,
            row_records=min(records, options.row_records),
            sink_records=options.sink_records,
            idle_s=options.idle_s,
            master=options.master,
            scratch=str(folder),
        )
        progress(1, total, "starting Spark")
        load.call(spark_jobs.warm_up, dataset)
        for turn in range(options.repeat):
            for i, way in enumerate(ways):
                progress(2 + turn * len(ways) + i, total, way)
                runs.setdefault(way, []).append(load.call(spark_jobs.measure, way, dataset))
        load.call(spark_jobs.stop)
        progress(total, total, "done")
    rows = [_row(way, runs[way], options) for way in ways]
    return SparkReport(rows=rows, left_out=[], environment=environment)


def _folder(parent: Path) -> contextlib.AbstractContextManager[str]:
    return tempfile.TemporaryDirectory(prefix="fanlog-bench-", dir=parent)


def fill(url: str, options: SparkBenchOptions) -> int:
    """Publishes the records as a client does. Returns how many the broker has."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stored = runner.run(_fill(url, options))
    if stored != options.records:
        raise BenchError(f"{stored} of {options.records} records are there after filling")
    return stored


async def _fill(url: str, options: SparkBenchOptions) -> int:
    payload = make_payload(options.payload_bytes)
    async with connect(url) as client:
        await client.create_topic(NAME, partitions=options.partitions, durability="os")
        for _ in range(options.records):
            await client.send(NAME, payload)
        await client.flush()
        return (await client.describe_topic(NAME)).records


def _row(way: str, runs: list[float], options: SparkBenchOptions) -> SparkRow:
    """A row. That of the idle stream is a time: less is better."""
    chosen = runs[pick_run(runs, options.pick)]
    idle = way == spark_jobs.IDLE
    return SparkRow(
        how=way,
        payload=options.payload_bytes,
        records_per_s=0.0 if idle else round(chosen, 1),
        micro_batch_ms=round(chosen, 2) if idle else 0.0,
        runs=runs,
    )
