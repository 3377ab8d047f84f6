"""What the pipeline clean takes for good, and what it says of the rest."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from fanlog.spark.pipelines.clean_faults import NO_JSON, NO_OBJECT, NO_VALUE, NOT_ONE, fault

SCHEMA = (
    "id STRING NOT NULL, quantity INT, items ARRAY<STRUCT<sku: STRING NOT NULL, qty: INT>>, "
    "who STRUCT<name: STRING NOT NULL, born: STRUCT<year: INT>>, tags MAP<STRING, INT>, "
    "grid ARRAY<ARRAY<INT>>, `odd.'name` INT, "
    "any STRUCT<thing: VARIANT NOT NULL>"
)
ITEM = "struct<sku:string,qty:int>"
# Values, and what is wrong with each.
VALUES: dict[bytes | None, str | None] = {
    b'{"id": "a"}': None,
    b' {"id": "a", "quantity": null, "more": [1, {"x": "]}"}]}\n': None,
    b'{"id": "a", "items": [{"sku": "s", "qty": 1}, {"sku": "t"}, null]}': None,
    b'{"id": "a", "items": [], "tags": {}, "grid": [[], [1, null]], "odd.\'name": 3}': None,
    b'{"id": "a", "who": {"name": "n", "born": {"year": 1}}, "tags": {"x": 1, "y": null}}': None,
    None: NO_VALUE,
    b"": NO_JSON,
    b'{"id": "a"': NO_JSON,
    b'{"id": "\xff"}': NO_JSON,
    b'{"id": "a", "id": "b"}': NO_JSON,
    b'[{"id": "a"}]': NO_OBJECT,
    b'{"id": "a"} junk': NOT_ONE,
    b'{"id": "a"}{"id": "b"}': NOT_ONE,
    b'{"id": "a"}, {"id": "b"}': NOT_ONE,
    b'{"id": "a"}, null': NOT_ONE,
    b'{"id": "a"}]': NOT_ONE,
    b'{"id": "a"}} [': NOT_ONE,
    b'{"id": "a"}, "b": 1} junk': NOT_ONE,
    b'{"quantity": 1}': "`id` is missing",
    b'{"id": null}': "`id` is missing",
    b'{"id": "a", "quantity": "many"}': "`quantity` is no int",
    b'{"id": "a", "quantity": 3000000000}': "`quantity` is no int",
    b'{"id": "a", "odd.\'name": "x"}': "`odd.'name` is no int",
    b'{"id": "a", "items": [{"sku": "s", "qty": 1}, {"sku": "t", "qty": "x"}]}': (
        "`items[].qty` is no int"
    ),
    b'{"id": "a", "items": [{"qty": 1}]}': "`items[].sku` is missing",
    b'{"id": "a", "items": {"sku": "s"}}': f"`items` is no array<{ITEM}>",
    b'{"id": "a", "items": [1, {"sku": "s"}]}': f"`items` is no array<{ITEM}>",
    b'{"id": "a", "who": {}}': "`who.name` is missing",
    b'{"id": "a", "who": {"name": "n", "born": {"year": "x"}}}': "`who.born.year` is no int",
    b'{"id": "a", "who": {"name": "n", "born": 1}}': "`who.born` is no struct<year:int>",
    b'{"id": "a", "any": {"thing": [1]}}': None,
    b'{"id": "a", "any": {"thing": null}}': "`any.thing` is missing",
    b'{"id": "a", "tags": {"x": 1, "y": "z"}}': "`tags` is no map<string,int>",
    b'{"id": "a", "grid": [[1], ["x"]]}': "`grid` is no array<array<int>>",
}


@pytest.fixture(scope="module")
def said(spark: SparkSession) -> dict[bytes | None, str | None]:
    schema = cast("StructType", StructType.fromDDL(SCHEMA))
    rows = spark.createDataFrame([(value,) for value in VALUES], "value binary")
    rows = rows.withColumn("parsed", f.from_json(f.col("value").cast("string"), schema))
    found = rows.select("value", fault(f.col("value"), f.col("parsed"), schema).alias("said"))
    return {row.value: row.said for row in found.collect()}


@pytest.mark.parametrize("value", VALUES)
def test_good_is_one_object_that_fits_at_every_depth(
    said: dict[bytes | None, str | None], value: bytes | None
) -> None:
    assert said[value] == VALUES[value]
