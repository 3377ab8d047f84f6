"""A Spark session that Fanlog works in, with a sentence where Spark or Java is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fanlog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MISSING = (
    "Spark needs Java 17 or newer, and there is none: install it (on Debian and Ubuntu: sudo "
    "apt-get install openjdk-17-jre-headless), or say with JAVA_HOME where it is."
)
SPARK_MISSING = "This needs Spark: run pip install 'fanlog[spark]'."
# Where it is off, which is Spark's default, Spark says so to who asks for `pushFilters`.
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


def check_java() -> None:
    """That there is a Java for Spark to run on."""
    home = os.environ.get("JAVA_HOME")  # noqa: TID251 - where Spark looks for it
    if not shutil.which("java") and not (home and Path(home, "bin/java").exists()):
        raise ConfigError(JAVA_MISSING)


def session(master: str = "local[*]", **settings: str) -> SparkSession:
    """A session whose workers run this Python, and so have Fanlog.

    >>> spark = fanlog.spark.session("local[2]", **{"spark.ui.enabled": "false"})  # doctest: +SKIP
    """
    check_java()
    try:
        # pyspark is optional, and slow to import.
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise ConfigError(SPARK_MISSING) from None
    # Spark takes a worker's Python from nowhere else.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # noqa: TID251
    builder = SparkSession.builder.master(master).appName("fanlog")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
