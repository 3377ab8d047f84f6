"""The two servers that one suite runs against: a real Redis, and Fanlog's Redis listener."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fanlog.sync
from fanlog.config import Config, ListenerOptions, RedisOptions
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


class BothPorts(NamedTuple):
    """Where a broker listens."""

    url: str
    redis_port: int


@pytest.fixture
def broker(data: Path) -> Iterator[BothPorts]:
    """A broker of the test's own, on disk, with both ports. It is in a thread: that starts at
    once."""
    config = Config(listener=ListenerOptions(port=0), redis=RedisOptions(port=0))
    with fanlog.sync.Broker(data, config) as made:
        url = f"fanlog://127.0.0.1:{made.listen().port}"
        yield BothPorts(url, made.listen_redis().port)
