"""Topics into a lake: `python archive.py topics=orders lake=/data/lake every="10 seconds"`."""

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import fanlog.spark
from fanlog.spark.lake import SETTINGS, Lake, keep_plan, query_id
from fanlog.spark.pipelines import program_options, topic_options


def archive(options: dict[str, str]) -> None:
    spark = fanlog.spark.session(options["master"], **SETTINGS)
    lake = Lake(Path(options["lake"]))
    checkpoint = Path(options["state"]) / "checkpoint"
    merge_batches = int(options["merge_batches"])

    def merge() -> None:
        files_min = int(options["merge_files"])
        if files_min:
            lake.compact(spark, files_min=max(2, files_min), bytes_max=int(options["merge_bytes"]))

    def add(rows: DataFrame, batch: int) -> None:
        lake.claim(query_id(checkpoint))
        keep_plan(checkpoint, batch)
        lake.add(rows, batch)
        if (batch + 1) % merge_batches == 0:
            merge()

    source = spark.readStream.format("fanlog").options(
        url=options["url"],
        startingOffsets="earliest",
        group=options["group"],
        failOnDataLoss=options["failOnDataLoss"],
        maxRecordsPerTrigger=options["batch_records"],
        **topic_options(options["topics"]),
    )
    # By time of the event: a range of time is then a range of folders.
    rows = source.load().withColumn("date", f.to_date("event_time"))
    writer = rows.writeStream.foreachBatch(add).option("checkpointLocation", str(checkpoint))
    if options["every"] == "now":
        writer.trigger(availableNow=True).start().awaitTermination()
        # Without any record, no stream has claimed the lake yet.
        lake.claim(query_id(checkpoint))
        merge()
        lake.release()
    else:
        writer.trigger(processingTime=options["every"]).start().awaitTermination()


if __name__ == "__main__":
    archive(program_options(__file__, sys.argv[1:]))
