"""The broker under systemd: a real socket in the place of systemd's."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fanlog.cli.service_manager import ServiceManager
from tests.cli.conftest import PATIENCE_SECONDS, Serving


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_SECONDS)
        yield listening


def heard(systemd: socket.socket) -> dict[str, str]:
    lines = systemd.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_systemd_hears_when_the_broker_is_ready_that_it_lives_and_that_it_stops(
    serve: Callable[..., Serving], systemd: socket.socket
) -> None:
    address = systemd.getsockname()
    serving = serve("--memory", NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
    assert heard(systemd) == {"STATUS": "Recovering the data"}
    ready = heard(systemd)
    assert ready["READY"] == "1"
    assert serving.url in ready["STATUS"]
    assert [heard(systemd) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    assert serving.stop().code == 0
    while (last := heard(systemd)) == {"WATCHDOG": "1"}:
        pass
    assert last["STOPPING"] == "1"


async def test_a_manager_that_is_gone_or_lies_stops_nothing(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    for variables in (
        {},
        {"NOTIFY_SOCKET": str(tmp_path / "nobody")},
        {"NOTIFY_SOCKET": "@nobody-listens-here", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "x" * 300},
    ):
        manager = ServiceManager(variables)
        manager.starting()
        manager.ready("well")
        manager.reloading()
        manager.stopping()
    assert asyncio.all_tasks() == before


async def test_an_address_without_a_file_works(systemd: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0fanlog-test-{os.getpid()}")
        abstract.settimeout(PATIENCE_SECONDS)
        manager = ServiceManager({"NOTIFY_SOCKET": f"@fanlog-test-{os.getpid()}"})
        manager.ready("well")
        assert heard(abstract)["READY"] == "1"


async def test_a_watchdog_of_another_process_is_not_ours(systemd: socket.socket) -> None:
    before = asyncio.all_tasks()
    variables = {
        "NOTIFY_SOCKET": systemd.getsockname(),
        "WATCHDOG_USEC": "1000",
        "WATCHDOG_PID": "1",
    }
    ServiceManager(variables).ready("well")
    assert asyncio.all_tasks() == before
