"""FANLOG_URL, as a Spark program in a container has it: no option names the broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fanlog
from tests.cli.conftest import environment
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.sessions import need_java

PROGRAM = """
import fanlog.spark

spark = fanlog.spark.session("local[1]", **{"spark.ui.enabled": "false"})
rows = spark.range(3).selectExpr("cast(id as string) value")
rows.write.format("fanlog").mode("append").save("by-environment")
stream = spark.readStream.format("fanlog").option("startingOffsets", "earliest")
copied = stream.load("by-environment").select("value").writeStream.format("fanlog")
copied = copied.option("topic", "copied").option("checkpointLocation", "checkpoint")
copied.trigger(availableNow=True).start().awaitTermination()
print("read", spark.read.format("fanlog").load("copied").count())
"""


@pytest.mark.long
def test_a_program_without_a_word_about_the_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    need_java()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment(FANLOG_URL=broker.url),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "read 3" in done.stdout, done.stderr
    with fanlog.sync.connect(broker.url) as client:
        assert {"by-environment", "copied"} <= {info.name for info in client.topics()}
