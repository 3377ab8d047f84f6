"""A `fanlog serve --workers N` in processes of its own, and a look at its workers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

import fanlog
from tests.scenarios.broker_process import BrokerProcess

PATIENCE_SECONDS = 100.0
FOLDER = "data"


class Served:
    """A running broker with workers."""

    def __init__(self, process: BrokerProcess, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.process.http_port}"

    def workers(self) -> list[int]:
        """The process ids of the workers that run."""
        return children(self.process.pid)

    def kill_worker(self, number: int) -> None:
        os.kill(self.workers()[number], signal.SIGKILL)

    async def metrics(self) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"{self.web}/v1/metrics") as answer:
            return await answer.json()

    async def until_back(self, restarts: int) -> None:
        """Waits until all workers listen, after so many restarts of one of them."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._are_back(restarts):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.1)

    async def _are_back(self, restarts: int) -> bool:
        try:
            found = (await self.metrics())["workers"]
        except aiohttp.ClientError:
            return False  # None of them listens, or the one that was asked is gone.
        return all(one["up"] for one in found) and restarts <= sum(one["restarts"] for one in found)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(child for child in found if _is_worker(child))


def _is_worker(pid: int) -> bool:
    try:
        return b"fanlog.cli.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def until(condition: Callable[[], object]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def served(
    tmp_path: Path, *flags: str, workers: int = 2, env: dict[str, str] | None = None
) -> Iterator[Served]:
    """A broker on free ports, with its data in a folder; `--memory` is one of the flags."""
    log = tmp_path / "log"
    folder = None if "--memory" in flags else tmp_path / FOLDER
    given = tuple(flag for flag in flags if flag != "--memory")
    ports = ("--redis-port", "0", "--http-port", "0")
    process = BrokerProcess(folder, "--workers", str(workers), *ports, *given, log=log, env=env)
    with process:
        yield Served(process, log)


@asynccontextmanager
async def clients(url: str, count: int, **options: Any) -> AsyncIterator[list[fanlog.Client]]:
    """Connected clients. The kernel gives each to one of the workers."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(fanlog.connect(url, backoff_max_seconds=0.2, **options))
            for _ in range(count)
        ]
