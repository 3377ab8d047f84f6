"""A Spark session that Fanlog works in, with a sentence where Spark or Java is missing. Its workers
run this Python, which has Fanlog: on this machine by way of `worker-python`, a faster start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fanlog.errors import ConfigError
from fanlog.spark.environment import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MISSING = "This needs Spark: run pip install 'fanlog[spark]'."
WORKER = Path(__file__).with_name("worker-python")


def worker_environment(
    master: str, environment: Mapping[str, str], *, java_runs: bool = False
) -> dict[str, str]:
    """Settings with the Python that Spark's workers run, unless the environment has it already. A
    Java that runs has the environment in which it was started."""
    if environment.get("PYSPARK_PYTHON", str(WORKER)) != str(WORKER):
        return {}
    # Elsewhere there is no such file, and another Spark's archives may not be what is installed.
    ours = master.startswith("local") and "SPARK_HOME" not in environment
    chosen = not java_runs or "FANLOG_WORKER_PYTHON" in environment
    if ours and chosen and os.access(WORKER, os.X_OK):
        return {"PYSPARK_PYTHON": str(WORKER), "FANLOG_WORKER_PYTHON": sys.executable}
    return {"PYSPARK_PYTHON": sys.executable}


def session(master: str = "local[*]", **settings: str) -> SparkSession:
    """A session whose workers run this Python, and so have Fanlog.

    >>> spark = fanlog.spark.session("local[2]", **{"spark.ui.enabled": "false"})  # doctest: +SKIP
    """
    check_java()
    try:
        # pyspark is optional, and slow to import.
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise ConfigError(SPARK_MISSING) from None
    # Spark takes a worker's Python from nowhere else.
    environment = cast("dict[str, str]", os.environ)  # noqa: TID251
    java_runs = getattr(SparkContext, "_gateway", None) is not None
    environment.update(worker_environment(master, environment, java_runs=java_runs))
    builder = SparkSession.builder.master(master).appName("fanlog")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
