"""Rows whose value is JSON that fits the schema go to the target; the others become dead letters
with the reason. `fanlog dead list` shows them and `fanlog dead replay` puts them back."""

from typing import cast

from pyspark import pipelines as dp
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import fanlog
from fanlog.errors import InvalidArgumentError
from fanlog.spark.pipelines import fault_in_short
from fanlog.spark.pipelines.clean_faults import fault

spark = SparkSession.active()


def option(name: str) -> str:
    return spark.conf.get(f"fanlog.{name}") or ""


URL = option("url")
HEADERS = "array<struct<key: string, value: binary>>"


def parse_schema(text: str) -> StructType:
    try:
        return cast("StructType", StructType.fromDDL(text))
    except PySparkException as error:
        raise InvalidArgumentError(
            f"The option 'schema' is no list of fields ({fault_in_short(error)}): write it as in "
            "'order_id STRING NOT NULL, quantity INT'."
        ) from None


SCHEMA = parse_schema(option("schema"))


def checked(side: str) -> DataFrame:
    """The topic's rows with `parsed`, and `reason` where a row is bad."""
    source = spark.readStream.format("fanlog").options(
        url=URL,
        topics=option("topic"),
        startingOffsets="earliest",
        maxRecordsPerTrigger=option("batch_records"),
        group=f"{option('group')}.{side}",
        failOnDataLoss=option("failOnDataLoss"),
    )
    rows = source.load().withColumn("parsed", f.from_json(f.col("value").cast("string"), SCHEMA))
    return rows.withColumn("reason", fault(f.col("value"), f.col("parsed"), SCHEMA))


dp.create_sink("good", "fanlog", {"url": URL, "topic": option("good")})


@dp.append_flow(target="good")
def pass_on() -> DataFrame:
    """Good rows: the fields of the schema, and nothing else that was in the value."""
    good = checked("good").where("reason is null")
    return good.select("key", f.to_json("parsed").alias("value"), "event_time", "headers")


# A topic that `fanlog dead` knows as one of dead letters; the sink would make a plain one.
with fanlog.sync.connect(URL) as client:
    client.create_topic(
        option("bad"), role="dead-letter", cleanup="compact", retention_seconds=0, exist_ok="any"
    )

dp.create_sink("bad", "fanlog", {"url": URL, "topic": option("bad")})


def header(name: str, value: Column) -> Column:
    return f.struct(f.lit(f"fanlog-dead-{name}").alias("key"), value.cast("binary").alias("value"))


@dp.append_flow(target="bad")
def dead_letters() -> DataFrame:
    """Bad rows as they came, with what a dead letter says beside it."""
    bad = checked("bad").where("reason is not null")
    key = f.concat_ws("/", "topic", "partition", "offset", f.lit("clean"))
    said = f.array(
        header("topic", f.col("topic")),
        header("partition", f.col("partition").cast("string")),
        header("offset", f.col("offset").cast("string")),
        header("queue", f.lit("clean")),
        header("reason", f.col("reason")),
        header("deliveries", f.lit("1")),
        header("time", f.date_format("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")),
    )
    own_key = f.when(f.col("key").isNotNull(), f.array(header("key", f.col("key"))))
    no_value = f.when(f.col("value").isNull(), f.array(header("null", f.lit("1"))))
    none = f.array().cast(HEADERS)
    return bad.select(
        key.alias("key"),
        f.coalesce("value", f.lit("").cast("binary")).alias("value"),
        "event_time",
        f.concat(
            f.coalesce("headers", none),
            said,
            f.coalesce(own_key, none),
            f.coalesce(no_value, none),
        ).alias("headers"),
    )
