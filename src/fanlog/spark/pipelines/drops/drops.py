"""A report on what did not arrive: `python drops.py report=/tmp/report`.

Three questions: what did slow readers miss, which jobs and rows were given up and why, and who is
behind. The broker knows the first and the last; the dead letters are read and counted by Spark.
"""

import sys
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

import fanlog.spark
from fanlog.spark.lake import SETTINGS, Lake
from fanlog.spark.pipelines import program_options
from fanlog.spark.pipelines.drops_page import Facts, Hole, LetterCount, write_report

LETTER_COLUMNS = "key,value,topic,partition,offset,timestamp,headers"


def drops(options: dict[str, str]) -> None:
    with fanlog.sync.connect(options["url"]) as client:
        topics = client.topics()
        groups = client.groups.list(">")
    spark = fanlog.spark.session(options["master"], **SETTINGS)
    graves = [info.name for info in topics if info.settings.role == "dead-letter" and info.records]
    letters = count_letters(spark, options, graves) if graves else []
    holes = find_holes(spark, Path(options["lake"])) if options["lake"] else []
    facts = Facts(topics, groups, letters, holes)
    write_report(Path(options["report"]), facts, reasons_max=int(options["reasons"]))


def header(name: str) -> Column:
    """A dead letter's header as text."""
    found = f.filter("headers", lambda some: some["key"] == f"fanlog-dead-{name}")
    return f.try_element_at(found, f.lit(1))["value"].cast("string")


def count_letters(
    spark: SparkSession, options: dict[str, str], graves: list[str]
) -> list[LetterCount]:
    """How many letters there are of each kind and interval. One whose key has a later record is
    put back, deleted, or dead again: the last record of a key decides."""
    source = spark.read.format("fanlog").options(
        url=options["url"], topics=",".join(graves), columns=LETTER_COLUMNS
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
            f.window("timestamp", options["interval"])["start"].alias("start"),
        )
        .agg(f.count("*").alias("letters"), f.count_if(waiting).alias("waiting"))
        .orderBy("start", f.desc("letters"))
    )
    return [LetterCount(**row.asDict()) for row in counted.collect()]


def find_holes(spark: SparkSession, folder: Path) -> list[Hole]:
    """Records between the first and the last of a partition that the lake does not have."""
    rows: DataFrame = Lake(folder).read(spark)
    ends = rows.groupBy("topic", "partition").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("*").alias("there"),
    )
    missing = ends.withColumn("missing", f.expr("last - first + 1 - there")).where("missing > 0")
    return [Hole(**row.asDict()) for row in missing.orderBy("topic", "partition").collect()]


if __name__ == "__main__":
    drops(program_options(__file__, sys.argv[1:]))
