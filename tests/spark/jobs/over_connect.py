"""A client of Spark Connect, and its server: `python over_connect.py URL FROM TO CHECKPOINT`."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import fanlog.spark


def main(url: str, source: str, target: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Makes Spark's server take a free port instead of its own.
    os.environ["SPARK_TESTING"] = "1"
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    fanlog.spark.register(spark)
    rows = spark.read.format("fanlog").option("url", url).load(source)
    print("read", rows.where("partition = 0").count(), rows.count())
    stream = spark.readStream.format("fanlog").options(url=url, startingOffsets="earliest")
    writer = stream.load(source).select("key", "value").writeStream.format("fanlog")
    writer = writer.options(url=url, topic=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
