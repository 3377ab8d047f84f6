"""A driver on a cluster: `python on_cluster.py MASTER URL FROM TO CHECKPOINT`. It copies a topic to
another as a stream, then writes rows whose last task is tried by two executors at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from tests.spark.sessions import session

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}
# Longer than anybody waits: without a second attempt there is no end.
SLOW_SECONDS = 3600.0


def slow_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of the last task is still busy, behind its rows, when the second ends."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 3 and context.attemptNumber() == 0:
        time.sleep(SLOW_SECONDS)


def main(master: str, url: str, source: str, target: str, checkpoint: str) -> None:
    spark = session(master, **SPECULATION)
    stream = spark.readStream.format("fanlog").options(
        url=url, topics=source, startingOffsets="earliest", maxRecordsPerTrigger=2000
    )
    writer = stream.load().select("key", "value").writeStream.format("fanlog")
    writer = writer.options(url=url, topic=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()

    rows = spark.range(0, 400, 1, 4).selectExpr("cast(id as string) value")
    slow = rows.mapInArrow(slow_at_first, "value string").write.format("fanlog").mode("append")
    slow.options(url=url, topic=f"{target}.speculated").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
