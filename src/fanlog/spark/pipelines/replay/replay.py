"""A slice of the lake back into a topic: `python replay.py lake=/data/lake to=orders.again`.

The slice is cut into chunks before the first is written, and the plan is kept. A chunk is a
transaction whose id is in the plan, so that a replay which is started again resumes, and writes no
chunk twice. Chunks, and the records in each, are in the order in which the broker once took them:
so a key's records stay in order though its topic grew, and they moved to another partition.
"""

import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

import fanlog.spark
from fanlog.errors import ConfigError, InvalidArgumentError
from fanlog.log.files import replace_file
from fanlog.spark.lake import SETTINGS, Lake
from fanlog.spark.pipelines import fault_in_short, program_options
from fanlog.spark.pipelines.kinds import split_names, time_of
from fanlog.spark.pipelines.progress import PROGRESS, Written

# With a limit, a chunk has the records of this many seconds; without one, this many records.
CHUNK_SECONDS = 5
CHUNK_RECORDS = 200_000
# The options that decide which records are in the slice, and their target.
SLICE_OPTIONS = ("url", "lake", "topics", "from", "until", "where", "to")
# Spark evaluates these when a query starts, so they stay the same during it.
CLOCKS = ("CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now")


# The position of a record.
POSITION = ("topic", "partition", "offset")


class ReplayRange(msgspec.Struct, frozen=True):
    """Records of one partition, both ends included."""

    topic: str
    partition: int
    first: int
    last: int
    records: int


class ReplayPlan(msgspec.Struct, frozen=True):
    id: str
    slice: dict[str, str]
    chunks: list[list[ReplayRange]]


class Pace(NamedTuple):
    """The clock, for the rate limit."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def replay(options: dict[str, str], pace: Pace = Pace()) -> None:  # noqa: B008 - it is frozen
    state = Path(options["state"])
    lake = Lake(Path(options["lake"]))
    lake.check_filled()
    spark = fanlog.spark.session(options["master"], **SETTINGS)
    plan = lake.query(spark, lambda rows: planned(state, chosen(rows, options), options))
    rate = float(options["rate"])
    total = sum(map(records_of, plan.chunks))
    finished = chunks_done(state)
    # Records written by an earlier run don't count for the limit.
    before = done = sum(map(records_of, plan.chunks[:finished]))
    begun = pace.now()
    for number, chunk in enumerate(plan.chunks[finished:], finished):
        id = f"replay/{plan.id}/{number}"
        lake.query(spark, partial(write, chunk=chunk, options=options, id=id))
        done += records_of(chunk)
        if rate:
            pace.sleep(max(0.0, begun + (done - before) / rate - pace.now()))
        written = Written(len(plan.chunks), number + 1, total, done)
        replace_file(str(state / PROGRESS), msgspec.json.encode(written), durable=True)


def records_of(chunk: list[ReplayRange]) -> int:
    return sum(stretch.records for stretch in chunk)


def chosen(rows: DataFrame, options: dict[str, str]) -> DataFrame:
    """The slice of the lake's rows."""
    if options["topics"]:
        rows = rows.where(f.col("topic").isin(split_names(options["topics"])))
    if options["from"]:
        first = f.lit(time_of(options["from"]))
        rows = rows.where((f.col("event_time") >= first) & (f.col("date") >= f.to_date(first)))
    if options["until"]:
        end = f.lit(time_of(options["until"]))
        rows = rows.where((f.col("event_time") < end) & (f.col("date") <= f.to_date(end)))
    if options["where"]:
        rows = filtered(rows, options["where"])
    return rows


def filtered(rows: DataFrame, where: str) -> DataFrame:
    try:
        found = rows.where(where)
    except AnalysisException as fault:
        raise InvalidArgumentError(
            f"The option 'where' is no condition on the lake's columns ({fault_in_short(fault)}): "
            f"they are {', '.join(rows.columns)}."
        ) from None
    if differs_each_time(cast("Any", found)._jdf.queryExecution().analyzed().condition()):
        raise InvalidArgumentError(
            f"The option 'where' ({where}) depends on the current time or on chance, so it would "
            "choose other records for each chunk: write fixed times, as in "
            "event_time > timestamp'2026-01-31T12:00:00Z'."
        )
    return found


def differs_each_time(condition: Any) -> bool:
    """Whether a condition, as Spark parsed it, may choose other rows in the next query."""
    if not condition.deterministic() or condition.getClass().getSimpleName() in CLOCKS:
        return True
    parts = condition.children()
    return any(differs_each_time(parts.apply(i)) for i in range(parts.size()))


def planned(state: Path, rows: DataFrame, options: dict[str, str]) -> ReplayPlan:
    """The plan of this state folder. It is made if missing."""
    path = state / "plan.json"
    wanted = {name: options[name] for name in SLICE_OPTIONS}
    if path.exists():
        plan = msgspec.json.decode(path.read_bytes(), type=ReplayPlan)
        if plan.slice != wanted:
            raise ConfigError(
                f"{state} holds the replay of another slice: give another --state for this one."
            )
        return plan
    rate = float(options["rate"])
    size = max(1, int(rate * CHUNK_SECONDS)) if rate else CHUNK_RECORDS
    plan = ReplayPlan(secrets.token_hex(8), wanted, cut(rows, size))
    state.mkdir(parents=True, exist_ok=True)
    replace_file(str(path), msgspec.json.encode(plan), durable=True)
    return plan


def cut(rows: DataFrame, size: int) -> list[list[ReplayRange]]:
    """Chunks of `size` records, the oldest first, across partitions."""
    number = f.row_number().over(Window.orderBy("taken", *POSITION)) - 1
    stretches = (
        rows.select(*POSITION, taken().alias("taken"))
        .withColumn("chunk", f.floor(number / size))
        .groupBy("chunk", "topic", "partition")
        .agg(f.min("offset").alias("a"), f.max("offset").alias("z"), f.count("*").alias("n"))
        .orderBy("chunk", "topic", "partition")
    )
    found: dict[int, list[ReplayRange]] = {}
    for row in stretches.collect():
        stretch = ReplayRange(row["topic"], row["partition"], row["a"], row["z"], row["n"])
        found.setdefault(row["chunk"], []).append(stretch)
    return list(found.values())


def taken() -> Column:
    """When the broker stored a record. A clock that was set back changes no order in a
    partition."""
    before = Window.partitionBy("topic", "partition").orderBy("offset")
    return f.max("timestamp").over(before)


def chunks_done(state: Path) -> int:
    path = state / PROGRESS
    if not path.exists():
        return 0
    return msgspec.json.decode(path.read_bytes(), type=Written).chunks_done


def write(rows: DataFrame, chunk: list[ReplayRange], options: dict[str, str], id: str) -> None:
    inside = f.lit(False)
    for some in chunk:
        inside |= (
            (f.col("topic") == some.topic)
            & (f.col("partition") == some.partition)
            & f.col("offset").between(some.first, some.last)
        )
    # The sink commits tasks in order, so the whole chunk stays in order.
    ordered = chosen(rows, options).where(inside).withColumn("taken", taken())
    ordered = ordered.orderBy("taken", *POSITION).select("key", "value", "headers", "event_time")
    # Cached, so that the counted rows are the written rows.
    kept = ordered.persist()
    try:
        check_count(kept.count(), chunk, options)
        writer = kept.write.format("fanlog").mode("append")
        writer.options(url=options["url"], topic=options["to"], transactionId=id).save()
    finally:
        kept.unpersist()


def check_count(found: int, chunk: list[ReplayRange], options: dict[str, str]) -> None:
    planned = sum(stretch.records for stretch in chunk)
    if found != planned:
        raise ConfigError(
            f"The lake {options['lake']} has {found} records where it had {planned} when the "
            "replay was planned: give another --state and another topic, to begin anew."
        )


if __name__ == "__main__":
    replay(program_options(__file__, sys.argv[1:]))
