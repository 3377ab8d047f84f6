"""Where Spark looks for data sources: a top-level package `pyspark_...` with a `DefaultSource`."""

from fanlog.spark.source import FanlogSource as DefaultSource

__all__ = ["DefaultSource"]
