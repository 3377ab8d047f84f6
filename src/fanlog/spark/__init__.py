"""Fanlog in Spark: the data source and sink `fanlog`. It needs `pip install 'fanlog[spark]'`.

    spark.read.format("fanlog").option("topics", "orders").load()

Spark finds the format by itself where the package is installed; `register` is for where it does
not look. Nothing here imports pyspark before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.errors import ConfigError
from fanlog.spark.sessions import SPARK_MISSING, session
from fanlog.spark.tracing import header, processing, trace_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["header", "processing", "register", "session", "trace_id"]


def register(spark: SparkSession) -> None:
    """Makes the format `fanlog` known to a session.

    >>> fanlog.spark.register(spark)  # doctest: +SKIP
    """
    try:
        # pyspark is optional, and slow to import.
        from fanlog.spark.source import FanlogSource  # noqa: PLC0415
    except ImportError:
        raise ConfigError(SPARK_MISSING) from None
    spark.dataSource.register(FanlogSource)
