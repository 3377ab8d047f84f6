"""The chat example, as it stands, against a real Redis and against Fanlog."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port, redis_server

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat.py"
WAIT_S = 60.0


@pytest.fixture(params=["redis", "fanlog"])
def redis_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "redis":
            port = stack.enter_context(redis_server(tmp_path)).port
        else:
            port = stack.enter_context(BrokerProcess(None, "--redis-port", "0")).redis_port
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def application(redis_url: str) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, str(EXAMPLE), "--redis", redis_url, "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(WAIT_S)


def joined(port: int, room: str) -> ClientConnection:
    """A place in a room, once the application has started."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return connect(f"ws://127.0.0.1:{port}/rooms/{room}")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def wait_for_members(port: int, room: str, count: int) -> None:
    """Until the server knows of so many. Who has joined has asked it, and not heard its answer."""
    deadline = time.monotonic() + WAIT_S
    while (found := members(port, room)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def members(port: int, room: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/rooms/{room}/count") as answer:
        return int(answer.read())


def test_everybody_in_a_room_sees_everybody_over_all_processes(redis_url: str) -> None:
    with (
        application(redis_url) as first,
        application(redis_url) as second,
        joined(first, "tea") as alice,
        joined(second, "tea") as bob,
        joined(second, "coffee") as carol,
    ):
        wait_for_members(first, "tea", 2)
        wait_for_members(first, "coffee", 1)
        for i in range(20):
            (alice, bob)[i % 2].send(f"hello {i}")
            assert alice.recv(WAIT_S) == f"hello {i}"
            assert bob.recv(WAIT_S) == f"hello {i}"
        carol.send("anybody?")
        assert carol.recv(WAIT_S) == "anybody?"
        assert members(first, "tea") == 2
