"""The columns that Spark sees, the allowed queries on them, and the columns that a sink takes.

The headers are what Kafka's source has, `array<struct<key, value>>`: a job moves over as it is, a
name may stand twice, and it is the shape that the log keeps them in, so that nothing is rebuilt.
A map would be neither.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fanlog.errors import InvalidArgumentError
from fanlog.spark.options import WriteOptions

HEADERS_TYPE = ArrayType(
    StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), True)]),
    False,
)

SOURCE_SCHEMA = StructType(
    [
        StructField("key", BinaryType(), True),
        StructField("value", BinaryType(), True),
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("event_time", TimestampType(), False),
        StructField("headers", HEADERS_TYPE, True),
    ]
)
_SOURCE_TYPES = {field.name: field.dataType for field in SOURCE_SCHEMA.fields}
_SINK_WORDS = {
    "value": "binary or string",
    "key": "binary or string",
    "topic": "string",
    "partition": "int or long",
    "event_time": "timestamp",
    "headers": "array<struct<key string, value binary>>",
}
_BYTES = (BinaryType, StringType)
_SINK_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (StringType,),
    "partition": (IntegerType, LongType),
    "event_time": (TimestampType,),
    "headers": (ArrayType,),
}


def source_schema(columns: tuple[str, ...]) -> StructType:
    """All columns, or those that the option `columns` names."""
    if not columns:
        return SOURCE_SCHEMA
    for name in columns:
        _known(name, "The option `columns` names")
    return StructType([SOURCE_SCHEMA[name] for name in columns])


def check_source_schema(schema: StructType) -> None:
    """Checks that the user's schema has existing columns, with their types."""
    for field in schema.fields:
        _known(field.name, "The schema has")
        wanted = _SOURCE_TYPES[field.name]
        if field.dataType.simpleString() != wanted.simpleString():
            raise InvalidArgumentError(
                f"The schema has `{field.name}` as {field.dataType.simpleString()}, but it is "
                f"{wanted.simpleString()}: read it as that, and cast it afterwards."
            )


def _known(name: str, who: str) -> None:
    if name not in _SOURCE_TYPES:
        raise InvalidArgumentError(
            f"{who} a column `{name}`, but the columns of `fanlog` are "
            f"{', '.join(_SOURCE_TYPES)}. Parse what is inside `value` after reading it."
        )


def check_sink_schema(schema: StructType, options: WriteOptions) -> None:
    """Checks that rows of this schema can be written with these options."""
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidArgumentError(
            f"Rows need a column `value` (binary or string) to be written; these have "
            f"{', '.join(names) or 'none'}. Make one, for example with to_json(struct('*'))."
        )
    if "event_time" not in names and options.in_time_order:
        raise InvalidArgumentError(
            "The option `inTimeOrder` sorts rows by their column `event_time`, which these "
            "rows don't have: make one, or leave the option out."
        )
    if "topic" not in names and not options.topic:
        raise InvalidArgumentError(
            "There is no topic to write to: give the option `topic`, or rows with a column `topic`."
        )
    for field in schema.fields:
        wanted = _SINK_TYPES.get(field.name)
        if wanted is None:
            raise InvalidArgumentError(
                f"The sink does not know the column `{field.name}`: it takes "
                f"{', '.join(_SINK_TYPES)}. Drop it, or put it into `value` or `headers`."
            )
        if not isinstance(field.dataType, wanted) or not _fits(field.dataType):
            raise InvalidArgumentError(
                f"The column `{field.name}` is {field.dataType.simpleString()}, but must be "
                f"{_SINK_WORDS[field.name]}: cast it."
            )


def _fits(type: DataType) -> bool:
    """Whether what is inside an array is a header."""
    if not isinstance(type, ArrayType):
        return not isinstance(type, MapType)
    inside = type.elementType
    return (
        isinstance(inside, StructType)
        and inside.fieldNames() == ["key", "value"]
        and isinstance(inside["key"].dataType, StringType)
        and isinstance(inside["value"].dataType, BinaryType | StringType)
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types in which Spark takes these columns as Arrow."""
    return to_arrow_schema(schema, timezone="UTC")
