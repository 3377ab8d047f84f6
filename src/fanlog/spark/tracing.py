"""Traces in Spark. A row has the headers of its message, and they name its trace: as columns for a
query, and as a span for Python code that works on a row."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fanlog.client.tracing import maybe_tracer
from fanlog.format.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from pyspark.sql import Column, Row

_PARENT = "^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"


def header(name: str, headers: str = "headers") -> Column:
    """A header of the messages, as text; null where there is none.

    >>> frame.withColumn("traceparent", fanlog.spark.header("traceparent"))  # doctest: +SKIP
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - optional, and slow to import

    found = f.filter(f.col(headers), lambda entry: entry["key"] == name)
    return f.get(found, f.lit(0))["value"].cast("string")


def trace_id(headers: str = "headers") -> Column:
    """The trace of each message, as 32 hexadecimal digits; null where there is none.

    >>> frame.groupBy(fanlog.spark.trace_id().alias("trace")).count()  # doctest: +SKIP
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - optional, and slow to import

    found = f.regexp_extract(header(TRACEPARENT, headers), _PARENT, 1)
    return f.when(f.length(found) > 0, found)


@contextmanager
def processing(row: Row | Mapping[str, Any], job: str = "") -> Generator[None]:
    """Works on a row within a span of its message's trace: in `foreach`, `foreachPartition` or
    `mapInPandas`, where the program has set up OpenTelemetry. `job` is named in the span. Without
    OpenTelemetry it does nothing. The row needs the columns topic, partition, offset and headers.

    >>> def save(row):  # doctest: +SKIP
    ...     with fanlog.spark.processing(row, "billing"):
    ...         bill(row.value)
    >>> frame.foreach(save)  # doctest: +SKIP
    """
    tracer = maybe_tracer()
    if tracer is None:
        yield
    else:
        with tracer.processing(_RowMessage(row), job):
            yield


class _RowMessage:
    """A row, as far as a span needs it."""

    def __init__(self, row: Row | Mapping[str, Any]) -> None:
        self.topic: str = row["topic"]
        self.partition: int = row["partition"]
        self.offset: int = row["offset"]
        entries: Any = row["headers"]
        self.headers: dict[str, bytes] = {
            entry["key"]: bytes(entry["value"] or b"")
            for entry in (() if entries is None else entries)
        }
