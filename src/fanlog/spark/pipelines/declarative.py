"""Runs a project of Spark Declarative Pipelines: `python -m fanlog.spark.pipelines.declarative
SPEC STATE MASTER`.

It is what `spark-pipelines run` does, but for two things: Spark Connect, which the engine needs,
takes a free port instead of 15002, so that several pipelines run beside each other; and tables
stay known between runs, in a catalogue below the state's folder.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pyspark.pipelines import cli

from fanlog.spark.sessions import session

_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


def main(spec: str, state: str, master: str) -> int:
    # Spark takes both from nowhere else.
    environment = cast("dict[str, str]", os.environ)  # noqa: TID251
    if master.startswith("sc://"):
        return _run(spec, environment, master)
    environment[_TOKEN] = secrets.token_hex(16)
    server = session(master, **_server_settings(Path(state)))
    try:
        # Which port it took, only the Java side knows.
        java = cast("Any", server)._jvm
        service = getattr(java, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        return _run(spec, environment, f"sc://localhost:{port}")
    finally:
        server.stop()


def _run(spec: str, environment: Mapping[str, str], remote: str) -> int:
    """The engine's own program, in a process of its own: Spark wants one kind of session a
    process."""
    command = [sys.executable, cli.__file__, "run", "--spec", spec]
    told = {"SPARK_REMOTE": remote, "SPARK_CONNECT_MODE_ENABLED": "1"}
    return subprocess.run(command, env={**environment, **told}, check=False).returncode


def _server_settings(state: Path) -> dict[str, str]:
    catalogue = state / "catalogue"
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (state / "tables").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={catalogue};create=true"
        ),
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={state / 'derby.log'}",
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
