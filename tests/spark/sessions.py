"""Spark sessions for tests, and what they need of the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers import QUICK_JAVA
from tests.spark.processes import PATIENCE_SECONDS, WORKERS

# Without it Spark refuses the option `pushFilters`.
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    PUSHDOWN_SETTING: "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Makes a session a server of Spark Connect as well, on a free port.
CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
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
    os.environ.update(WORKERS)
    builder = SparkSession.builder.master(master).appName("fanlog")
    for name, value in (SETTINGS | settings).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def connect_url(spark: SparkSession) -> str:
    """Where a session that was made with `CONNECT` is found by others; only Java knows the port."""
    java = cast("Any", spark)._jvm
    service = getattr(java, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


def wait_for_end(query: StreamingQuery) -> None:
    """Waits for a stream that ends by itself, and raises what it ends with; no longer than that."""
    try:
        ended = query.awaitTermination(int(PATIENCE_SECONDS))
        seen = f"{query.status}, {query.lastProgress}"
    finally:
        query.stop()
    assert ended, f"the stream has not ended in {PATIENCE_SECONDS:.0f} s: {seen}"
