"""One Spark and one broker for all tests here. Without Java they are skipped, saying why; with
CI=true they fail. Each test has a topic of its own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import fanlog
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.killing import Killed, kill_while_data_flows
from tests.spark.sessions import CONNECT, connect_url, need_java, session

TEST_SECONDS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark leaves sockets open and warns of other people's releases: not ours to mend. And a busy
    machine makes it very slow, which is no fault: whoever has no limit of its own gets a long one.
    """
    for item in items:
        if "tests/spark/" not in str(item.path):
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
        # Also for those that start a Spark of their own.
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("spark") / "data") as broker:
        yield broker


@pytest.fixture(scope="session")
def data_folder(broker: BrokerProcess) -> Path:
    """The folder of the broker of these tests."""
    assert broker.folder is not None
    return broker.folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    need_java()
    tables = tmp_path_factory.mktemp("tables").as_uri()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A task may fail thrice, as on a cluster; alone, Spark gives up with the first.
        made = session("local[2,4]", **CONNECT, **{"spark.sql.warehouse.dir": tables})
        yield made
        made.stop()


@pytest.fixture(scope="session")
def connect(spark: SparkSession) -> str:
    """The same Spark for clients of Spark Connect: its address, such as `sc://127.0.0.1:40000`."""
    return connect_url(spark)


@pytest.fixture(scope="session")
def killed(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """What ten kills have left of two streams, which share their drivers: starts take long."""
    need_java()
    return kill_while_data_flows(broker.url, tmp_path_factory.mktemp("killed"))


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fanlog.sync.Client]:
    with fanlog.sync.connect(broker.url) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name that no other test has."""
    return re.sub(r"\W+", "-", request.node.name)[-100:]


class Reading:
    """`reading(topics="a")`: a batch's rows of this broker."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self.url = url

    def __call__(self, **options: Any) -> DataFrame:
        return self._spark.read.format("fanlog").options(url=self.url, **options).load()

    def values(self, topic: str) -> list[str]:
        """All values of a topic, sorted."""
        rows = self(topics=topic, columns="value").collect()
        return sorted(bytes(row.value).decode() for row in rows)


@pytest.fixture
def reading(spark: SparkSession, broker: BrokerProcess) -> Reading:
    return Reading(spark, broker.url)
