"""What is missing is told in a sentence that says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fanlog.spark
from fanlog.errors import ConfigError
from fanlog.spark.sessions import check_java


def test_a_machine_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"Spark needs Java 17 or newer.*openjdk-17-jre-headless"):
        check_java()
    with pytest.raises(ConfigError, match="Spark needs Java 17"):
        fanlog.spark.session()


def test_an_environment_without_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import fanlog, fanlog.spark, fanlog.cli, fanlog.bench\n"
        "try: fanlog.spark.register(None)\n"
        "except fanlog.FanlogError as fault: print(fault)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "This needs Spark: run pip install 'fanlog[spark]'.\n"
