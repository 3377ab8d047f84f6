"""The two servers that one suite runs against: a real Redis, and Fanlog's Redis listener."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.listeners.redis.wire import Wire
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port, redis_server


@pytest.fixture(scope="package")
def fanlog_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A broker in memory whose Redis port this is."""
    port = free_port()
    with BrokerProcess(None, "--redis-port", str(port)):
        yield port


@pytest.fixture(scope="package")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.port


@pytest.fixture(params=["redis", "fanlog"])
def port(request: pytest.FixtureRequest) -> int:
    """Each of the two in turn: whoever asks for it claims that both answer alike."""
    return request.getfixturevalue(f"{request.param}_port")


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    with Wire(port) as opened:
        yield opened


@pytest.fixture
def other(port: int) -> Iterator[Wire]:
    with Wire(port) as opened:
        yield opened


@pytest.fixture
def broker(data: Path) -> Generator[BrokerProcess]:
    """A broker of the test's own, on disk, with both ports; `redis_port` is that of Redis."""
    port = free_port()
    with BrokerProcess(data, "--redis-port", str(port)) as process:
        process.redis_port = port
        yield process
