"""A driver that copies a topic to another, and archives it, until it is killed:
`python flowing.py URL FROM TO CHECKPOINT ARCHIVE_OPTION=VALUE ...`."""

from __future__ import annotations

import os
import sys
import threading

from pyspark.sql import SparkSession

from fanlog.spark.pipelines import find, program_options
from tests.spark.pipelines.programs import load_program
from tests.spark.sessions import session

# Small batches, and a merge after every third, so that kills hit those as well.
BATCH_RECORDS = 500
ARCHIVE = {
    "every": "0 seconds",
    "batch_records": str(BATCH_RECORDS),
    "merge_files": "2",
    "merge_batches": "3",
}


def copy(spark: SparkSession, url: str, source: str, target: str, checkpoint: str) -> None:
    stream = spark.readStream.format("fanlog").options(
        url=url,
        topics=source,
        startingOffsets="earliest",
        maxRecordsPerTrigger=BATCH_RECORDS,
        minPartitions=2,
    )
    writer = stream.load().select("key", "value").writeStream.format("fanlog")
    writer.options(url=url, topic=target, checkpointLocation=checkpoint).start()


def archive(url: str, source: str, given: list[str]) -> None:
    program = find("archive").program
    told = {"url": url, "topics": source, "master": "local[2,4]"} | ARCHIVE
    options = [*(f"{name}={value}" for name, value in told.items()), *given]
    try:
        # The program finds the session that is there.
        load_program(program).archive(program_options(str(program), options))
    finally:
        os._exit(1)


def main(url: str, source: str, target: str, checkpoint: str, *given: str) -> None:
    spark = session("local[2,4]")
    copy(spark, url, source, target, checkpoint)
    threading.Thread(target=archive, args=(url, source, list(given)), daemon=True).start()
    # Whichever ends first ends the driver; whoever has started it starts it again.
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
