"""A driver that copies a topic to another until it is killed:
`python copying.py URL FROM TO CHECKPOINT`."""

from __future__ import annotations

import sys

from tests.spark.sessions import session


def main(url: str, source: str, target: str, checkpoint: str) -> None:
    spark = session("local[2,4]")
    stream = spark.readStream.format("fanlog").options(
        url=url,
        topics=source,
        startingOffsets="earliest",
        maxRecordsPerTrigger=500,
        minPartitions=2,
    )
    rows = stream.load().select("key", "value")
    writer = rows.writeStream.format("fanlog").options(
        url=url, topic=target, checkpointLocation=checkpoint
    )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
