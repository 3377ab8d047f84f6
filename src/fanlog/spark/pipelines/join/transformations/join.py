"""Pairs of records of two topics that have the same key, the second within a time of the first.
The example is orders and their payments: both have the order's id as their key."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


def option(name: str) -> str:
    return spark.conf.get(f"fanlog.{name}") or ""


URL = option("url")
COLUMNS = ("key", "value", "event_time")


def records(side: str) -> DataFrame:
    """A topic's records. The watermark lets Spark forget those whose time for a pair is over."""
    source = spark.readStream.format("fanlog").options(
        url=URL,
        topics=option(side),
        startingOffsets="earliest",
        maxRecordsPerTrigger=option("batch_records"),
        group=option("group"),
        failOnDataLoss=option("failOnDataLoss"),
        columns=",".join(COLUMNS),
    )
    keyed = source.load().where("key is not null")
    rows = keyed.select(*(f.col(name).alias(f"{side}_{name}") for name in COLUMNS))
    return rows.withWatermark(f"{side}_event_time", option("late"))


dp.create_sink("pairs", "fanlog", {"url": URL, "topic": option("to")})


@dp.append_flow(target="pairs")
def pair() -> DataFrame:
    joined = records("left").join(
        records("right"),
        f.expr(
            "left_key = right_key and right_event_time >= left_event_time "
            f"and right_event_time <= left_event_time + interval {option('within')}"
        ),
    )
    apart = f.unix_micros("right_event_time") - f.unix_micros("left_event_time")
    both = f.struct(
        f.col("left_key").cast("string").alias("key"),
        (apart / 1_000_000).alias("seconds_apart"),
        f.try_parse_json(f.col("left_value").cast("string")).alias(option("left")),
        f.try_parse_json(f.col("right_value").cast("string")).alias(option("right")),
    )
    return joined.select(
        f.col("left_key").alias("key"),
        f.to_json(both).alias("value"),
        f.col("right_event_time").alias("event_time"),
    )
