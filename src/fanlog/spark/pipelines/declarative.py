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
    # Spark takes both from nowhere else.
    environment = cast("dict[str, str]", os.environ)  # noqa: TID251
    if master.startswith("sc://"):
        # In place of this one, so that who stops it stops the engine's program, which then tells
        # the server: otherwise the flows would go on there.
        command = recorded(Path(state), Path(cli.__file__), *_given(spec))
        os.execve(sys.executable, command, _connected(environment, master))
    environment[_TOKEN] = secrets.token_hex(16)
    settings = dict(SERVER)
    if has_tables(Path(spec).parent):
        settings |= catalogue(Path(state))
    server = session(master, **settings)
    try:
        # Which port it took, only the Java side knows.
        java = cast("Any", server)._jvm
        service = getattr(java, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        # A process of its own: Spark wants one kind of session a process.
        remote = _connected(environment, f"sc://localhost:{port}")
        command = [sys.executable, cli.__file__, *_given(spec)]
        return subprocess.run(command, env=remote, check=False).returncode
    finally:
        server.stop()


def _given(spec: str) -> list[str]:
    """What the engine's own program is given."""
    return ["run", "--spec", spec]


def _connected(environment: Mapping[str, str], remote: str) -> dict[str, str]:
    return {**environment, "SPARK_REMOTE": remote, "SPARK_CONNECT_MODE_ENABLED": "1"}


def has_tables(project: Path) -> bool:
    """Whether a project makes tables, or at least speaks of any."""
    sources = [path for path in project.rglob("*") if path.suffix in (".py", ".sql")]
    return any(_TABLES.search(path.read_text()) for path in sources)


_TABLES = re.compile("table|materialized_view", re.IGNORECASE)


def catalogue(state: Path) -> dict[str, str]:
    """What keeps tables from one run to the next. It takes Spark some seconds longer to start."""
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
