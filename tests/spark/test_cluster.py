"""On a standalone cluster of one master and two workers: a stream, and a task that two executors
have at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import fanlog
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port
from tests.spark.processes import PATIENCE_SECONDS, Driver, Program
from tests.spark.sessions import need_java
from tests.spark.test_kill import published
from tests.spark.test_source import fill

# Two addresses of this machine: Spark tries no task twice on one host.
HOSTS = ("127.0.0.1", "127.0.0.2")


def part_of_spark(name: str, folder: Path, host: str, *arguments: str) -> Program:
    """A master or a worker."""
    home = Path(pyspark.__file__).parent
    place = ("--host", host, "--webui-port", "0")
    command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *place, *arguments]
    return Program(
        folder,
        command,
        SPARK_HOME=str(home),
        SPARK_LOCAL_IP=host,
        SPARK_WORKER_DIR=str(folder),
        SPARK_DAEMON_MEMORY="256m",
    )


def wait_until_said(program: Program, words: str, times: int = 1) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while program.said().count(words) < times:
        assert program.alive, program.told("has ended")
        assert time.monotonic() < give_up_at, program.told(f"never said {words!r}")
        time.sleep(0.1)


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The master's address, when both workers are there."""
    port = str(free_port())
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        made = part_of_spark("master.Master", folder, HOSTS[0], "--port", port)
        master = stack.enter_context(made)
        wait_until_said(master, "Starting Spark master")
        for host in HOSTS:
            limits = ("--cores", "1", "--memory", "600m")
            stack.enter_context(part_of_spark("worker.Worker", folder, host, *limits, url))
        wait_until_said(master, "Registering worker", times=2)
        yield url


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_a_cluster_copies_and_speculates_exactly_once(
    broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    need_java()
    fill(client, "cluster.in", 5000, partitions=2)
    with cluster(tmp_path) as master:
        names = ("cluster.in", "cluster.out", str(tmp_path / "checkpoint"))
        with Driver(tmp_path, "on_cluster", master, broker.url, *names) as driver:
            driver.end_well()
    assert published(client, "cluster.out") == Counter(str(i) for i in range(5000))
    # The slow attempt, which never ends, had staged its rows as well; only the other one's count.
    assert published(client, "cluster.out.speculated") == Counter(str(i) for i in range(400))
