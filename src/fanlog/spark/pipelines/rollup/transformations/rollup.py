"""Windows over topics: how many records, how many bytes, how fast, and how long they were on their
way (from when their publisher says that they happened until the broker had them)."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fanlog.spark.pipelines import topic_options

spark = SparkSession.active()


def option(name: str) -> str:
    return spark.conf.get(f"fanlog.{name}") or ""


URL = option("url")
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# In JSON a large double is 2.757E10, which people can't read. A decimal is written in full.
PLAIN = "decimal(20,3)"


@dp.table(comment="One row for each topic (and key) and window that is over.")
def windows() -> DataFrame:
    source = spark.readStream.format("fanlog").options(
        url=URL,
        startingOffsets="earliest",
        maxRecordsPerTrigger=option("batch_records"),
        group=option("group"),
        failOnDataLoss=option("failOnDataLoss"),
        columns="key,value,topic,timestamp,event_time",
        **topic_options(option("topics")),
    )
    key = f.col("key").cast("string") if option("keys") == "yes" else f.lit(None).cast("string")
    rows = source.load().withColumn("key", key).withWatermark("event_time", option("late"))
    latency = (f.unix_micros("timestamp") - f.unix_micros("event_time")) / 1000
    return (
        rows.groupBy("topic", "key", f.window("event_time", option("window")).alias("window"))
        .agg(
            f.count("*").alias("records"),
            f.sum(f.coalesce(f.octet_length("value"), f.lit(0))).alias("bytes"),
            f.percentile_approx(latency, list(PERCENTILES.values()), 1000).alias("latency"),
        )
        .withColumn("seconds", f.unix_seconds("window.end") - f.unix_seconds("window.start"))
        .select(
            "topic",
            "key",
            f.col("window.start").alias("start"),
            f.col("window.end").alias("end"),
            "records",
            "bytes",
            (f.col("records") / f.col("seconds")).cast(PLAIN).alias("records_per_second"),
            (f.col("bytes") / f.col("seconds")).cast(PLAIN).alias("bytes_per_second"),
            *(
                f.col("latency")[i].cast(PLAIN).alias(f"latency_ms_{name}")
                for i, name in enumerate(PERCENTILES)
            ),
        )
    )


# Spark does not sort streams; this sink does, what one task writes.
dp.create_sink("topic", "fanlog", {"url": URL, "topic": option("to"), "inTimeOrder": "true"})


@dp.append_flow(target="topic")
def publish() -> DataFrame:
    """The rows of the table as JSON, each under its topic (and key), at the end of its window."""
    rows = spark.readStream.table("windows")
    key = f.concat_ws("/", "topic", "key")
    messages = rows.select(
        key.alias("key"), f.to_json(f.struct("*")).alias("value"), f.col("end").alias("event_time")
    )
    return messages.coalesce(1)
