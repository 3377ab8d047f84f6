"""A client of Spark Connect: `python over_connect.py SERVER URL FROM TO CHECKPOINT`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import fanlog.spark


def main(server: str, url: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
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
