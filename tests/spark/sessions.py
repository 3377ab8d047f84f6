"""Spark sessions for tests, and what they need of the machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Tests are short: compiling well takes longer than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def need_java() -> None:
    """Ends the test here where there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and Path(home, "bin/java").exists()):
        return
    reason = "Spark needs Java 17: Debian's package openjdk-17-jre-headless has it."
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def session(master: str, **settings: Any) -> SparkSession:
    """A session whose workers run this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("fanlog")
    for name, value in (SETTINGS | settings).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made
