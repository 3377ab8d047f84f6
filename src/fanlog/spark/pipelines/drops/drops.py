"""A report on what did not arrive: `python drops.py report=/tmp/report`.

Three questions: what did readers miss, which jobs and rows were given up and why, and who is
behind. The broker has written the first down, in a topic of its own, and the second, as dead
letters: Spark reads and counts them. For the third it asks the broker.
"""

import datetime as dt
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

import fanlog.spark
from fanlog.spark.lake import SETTINGS, Lake
from fanlog.spark.pipelines import program_options
from fanlog.spark.pipelines.drops_page import DropsFacts, Hole, IntervalDeadLetters, write_report
from fanlog.spark.pipelines.drops_page_misses import (
    CUT_OFF,
    NOT_KEPT,
    LongGap,
    MissCount,
    Misses,
    ReaderMisses,
)

DROPS_TOPIC = "_fanlog.drops"
# The broker's drop records, as JSON. Unknown fields are left out.
DROP = (
    "kind string, topic string, partition int, first bigint, next bigint, records bigint, "
    "times bigint, since_us bigint, until_us bigint, begin bigint, `end` bigint, client string, "
    "peer string, durable string, `group` string, queue string"
)
READERS_MAX = 1000
GAPS_MAX = 100
LETTER_COLUMNS = "key,value,topic,partition,offset,timestamp,headers"


def drops(options: dict[str, str]) -> None:
    with fanlog.sync.connect(options["url"]) as client:
        topics = client.topics()
        groups = client.groups.list(">")
        written = [info for info in client.topics(DROPS_TOPIC, internal=True) if info.records]
    spark = fanlog.spark.session(options["master"], **SETTINGS)
    misses = count_misses(spark, options) if written else None
    letter_topics = [
        info.name for info in topics if info.settings.role == "dead-letter" and info.records
    ]
    letters = count_letters(spark, options, letter_topics) if letter_topics else []
    holes = find_holes(spark, Path(options["lake"])) if options["lake"] else []
    facts = DropsFacts(topics, groups, misses, letters, holes)
    write_report(Path(options["report"]), facts, reasons_max=int(options["reasons"]))


def with_time(row: Row, name: str) -> dict[str, Any]:
    """A row with a time in seconds in one column."""
    return {**row.asDict(), name: dt.datetime.fromtimestamp(row[name], dt.UTC)}


def interval_start(time: Column | str, options: dict[str, str]) -> Column:
    """The start of a time's interval, in seconds: the same in every zone."""
    return f.unix_seconds(f.window(time, options["interval"])["start"])


# Misses of readers


def count_misses(spark: SparkSession, options: dict[str, str]) -> Misses:
    source = spark.read.format("fanlog").options(
        url=options["url"], topics=DROPS_TOPIC, columns="value"
    )
    drop = f.from_json(f.col("value").cast("string"), DROP)
    written = source.load().select(drop.alias("drop")).select("drop.*")
    notes = (
        written.withColumn("reader", reader_name())
        .withColumn("topic", f.when(f.col("kind") == "more", NOT_KEPT).otherwise(f.col("topic")))
        .withColumn("time", f.col("until_us") / 1e6)
        .withColumn("start", interval_start(f.timestamp_micros("until_us"), options))
        .cache()
    )
    counts = notes.groupBy("topic", "kind", "start").agg(
        f.sum("records").alias("records"), f.sum("times").alias("times")
    )
    found = Misses(
        [
            MissCount(**with_time(row, "start"))
            for row in counts.orderBy("start", "topic", "kind").collect()
        ],
        count_readers(notes),
        longest_gaps(notes),
        float(options["warn_percent"]) / 100,
    )
    notes.unpersist()
    return found


def reader_name() -> Column:
    """The reader, by its most lasting name."""
    named = [f.concat(f.lit(f"{what} "), f.col(what)) for what in ("group", "queue", "durable")]
    return f.coalesce(*named, f.col("client"), f.col("peer"), f.lit("(not known)"))


def count_readers(notes: DataFrame) -> list[ReaderMisses]:
    """By reader and topic. Published to it: the records between the start of each of its
    connections and the end at its last miss."""
    connections = notes.groupBy("reader", "topic", "partition", "peer", "begin").agg(
        f.sum("records").alias("records"),
        f.sum("times").alias("times"),
        f.sum(f.when(f.col("kind") == CUT_OFF, f.col("times"))).alias("cut_off"),
        (f.max("end") - f.col("begin")).alias("reach"),
        f.max("time").alias("last"),
    )
    untold = f.count_if(f.col("reach").isNull() & (f.col("records") > 0)) > 0
    readers = connections.groupBy("reader", "topic").agg(
        f.sum("records").alias("records"),
        f.sum("times").alias("times"),
        f.coalesce(f.sum("cut_off"), f.lit(0)).alias("cut_off"),
        f.when(~untold, f.sum("reach")).alias("published"),
        f.max("last").alias("last"),
    )
    worst = readers.orderBy(f.desc("records"), f.desc("cut_off"), "reader", "topic")
    return [ReaderMisses(**with_time(row, "last")) for row in worst.limit(READERS_MAX).collect()]


def longest_gaps(notes: DataFrame) -> list[LongGap]:
    located = notes.where("records > 0 and kind <> 'more'")
    longest = located.select(*LongGap._fields).orderBy(f.desc("records"), "time").limit(GAPS_MAX)
    return [LongGap(**with_time(row, "time")) for row in longest.collect()]


# Dead letters, and records missing in the lake


def header(name: str) -> Column:
    """A dead letter's header as text."""
    found = f.filter("headers", lambda some: some["key"] == f"fanlog-dead-{name}")
    return f.try_element_at(found, f.lit(1))["value"].cast("string")


def count_letters(
    spark: SparkSession, options: dict[str, str], letter_topics: list[str]
) -> list[IntervalDeadLetters]:
    """Dead letters of each kind and interval. One whose key has a later record was replayed,
    deleted, or is dead again: the last record of a key decides."""
    source = spark.read.format("fanlog").options(
        url=options["url"], topics=",".join(letter_topics), columns=LETTER_COLUMNS
    )
    newest = Window.partitionBy("topic", "partition", "key").orderBy(f.desc("offset"))
    letters = source.load().withColumn("age", f.row_number().over(newest))
    waiting = (f.col("age") == 1) & f.col("value").isNotNull()
    counted = (
        letters.where("value is not null")
        .groupBy(
            header("topic").alias("source"),
            header("queue").alias("queue"),
            header("reason").alias("reason"),
            interval_start("timestamp", options).alias("start"),
        )
        .agg(f.count("*").alias("letters"), f.count_if(waiting).alias("waiting"))
        .orderBy("start", f.desc("letters"))
    )
    return [IntervalDeadLetters(**with_time(row, "start")) for row in counted.collect()]


def find_holes(spark: SparkSession, folder: Path) -> list[Hole]:
    """Records between the first and the last of a partition that the lake does not have."""
    return Lake(folder).query(spark, holes_among)


def holes_among(rows: DataFrame) -> list[Hole]:
    ends = rows.groupBy("topic", "partition").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("*").alias("there"),
    )
    missing = ends.withColumn("missing", f.expr("last - first + 1 - there")).where("missing > 0")
    return [Hole(**row.asDict()) for row in missing.orderBy("topic", "partition").collect()]


if __name__ == "__main__":
    drops(program_options(__file__, sys.argv[1:]))
