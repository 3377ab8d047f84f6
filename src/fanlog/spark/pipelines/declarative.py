"""Runs a project of Spark Declarative Pipelines: `python -m fanlog.spark.pipelines.declarative
SPEC STATE MASTER`.

It is what `spark-pipelines run` does, but for two things: Spark Connect, which the engine needs,
takes a free port instead of 15002, so that several pipelines run beside each other; and tables, if
there are any, stay known between runs, in a catalogue below the state's folder.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pyspark.pipelines import cli

from fanlog.spark.pipelines.ended import recorded
from fanlog.spark.sessions import session

_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(spec: str, state: str, master: str) -> int:
    # Spark reads both only from here.
    environment = cast("dict[str, str]", os.environ)  # noqa: TID251
    if master.startswith("sc://"):
        # It replaces this process, so that a stop reaches the engine's program, which tells the
        # server. Otherwise the flows would keep running there.
        command = recorded(Path(state), Path(cli.__file__), *_given(spec))
        os.execve(sys.executable, command, _connected(environment, master))
    environment[_TOKEN] = secrets.token_hex(16)
    settings = dict(SERVER)
    if has_tables(Path(spec).parent):
        settings |= catalogue(Path(state))
    server = session(master, **settings)
    try:
        # Only the Java side knows the port.
        java = cast("Any", server)._jvm
        service = getattr(java, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        # A process of its own, because Spark allows one kind of session in a process.
        remote = _connected(environment, f"sc://localhost:{port}")
        command = [sys.executable, cli.__file__, *_given(spec)]
        return subprocess.run(command, env=remote, check=False).returncode
    finally:
        server.stop()


def _given(spec: str) -> list[str]:
    """The arguments of the engine's program."""
    return ["run", "--spec", spec]


def _connected(environment: Mapping[str, str], remote: str) -> dict[str, str]:
    return {**environment, "SPARK_REMOTE": remote, "SPARK_CONNECT_MODE_ENABLED": "1"}


def has_tables(project: Path) -> bool:
    """Whether a project makes tables, or mentions any."""
    sources = [path for path in project.rglob("*") if path.suffix in (".py", ".sql")]
    return any(_TABLES.search(path.read_text()) for path in sources)


_TABLES = re.compile("table|materialized_view", re.IGNORECASE)


def catalogue(state: Path) -> dict[str, str]:
    """Settings that keep tables between runs. Spark needs some seconds more to start."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"file://{state / 'tables'}",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={state / 'catalogue'};create=true"
        ),
        # Quoted: there may be a space in it.
        "spark.driver.extraJavaOptions": f'"-Dderby.stream.error.file={state / "derby.log"}"',
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
