"""A worker that runs and does nothing: it is noticed, killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import fanlog
from fanlog.cli.workers import open_workers
from fanlog.config import Config, ListenerOptions
from fanlog.workers.core_node import CoreNode
from fanlog.workers.supervisor import Supervisor
from tests.workers.stage import PATIENCE_SECONDS

pytestmark = pytest.mark.timeout(300)


class StillClock:
    """Time for a core, which passes only when a test says so."""

    def __init__(self) -> None:
        self.now_us = 0

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)

    def monotonic_us(self) -> int:
        return self.now_us


@asynccontextmanager
async def core_with_workers(
    monkeypatch: pytest.MonkeyPatch, clock: StillClock | None = None
) -> AsyncIterator[tuple[CoreNode, Supervisor]]:
    """A core in this process, and two workers in processes of their own."""
    config = Config(workers=2, listener=ListenerOptions(port=0))
    node = CoreNode(None, config)
    if clock is not None:
        monkeypatch.setattr(node, "monotonic_us", clock.monotonic_us)
    node.start()
    node.listen()
    supervisor = None
    try:
        supervisor = await open_workers(node, config, log_json=False)
        assert supervisor is not None
        yield node, supervisor
    finally:
        if supervisor is not None:
            await supervisor.stop(1.0)
        await node.stop()


async def until_problems(node: CoreNode, *expected: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while node.core.status().problems != expected:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.02)


async def test_a_stopped_worker_is_a_problem_then_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StillClock()
    async with core_with_workers(monkeypatch, clock) as (node, supervisor):
        first, second = (one.pid for one in supervisor.metrics())
        os.kill(second, signal.SIGSTOP)
        clock.advance(7)
        # The other one reports, and is fine.
        await until_problems(node, "worker 2 has not answered for 7 s")
        assert node.core.status().state == "degraded"
        assert [one.up for one in supervisor.metrics()] == [True, False]
        clock.advance(6)
        await until_problems(node, "worker 2 has not answered for 13 s")
        clock.advance(3)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while supervisor.metrics()[1].restarts == 0:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        await until_problems(node)
        one, other = supervisor.metrics()
        assert (one.pid, one.restarts) == (first, 0)
        assert other.pid not in (second, 0)
        assert other.up
        assert f"Worker 2 (process {second}) has not answered for 16 s: it is killed." in (
            caplog.text
        )
        port = node.listeners[0].port
        async with fanlog.connect(f"fanlog://127.0.0.1:{port}") as client:
            await client.publish("orders", "x")


async def test_a_worker_that_answers_in_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StillClock()
    async with core_with_workers(monkeypatch, clock) as (node, supervisor):
        pids = [one.pid for one in supervisor.metrics()]
        os.kill(pids[0], signal.SIGSTOP)
        clock.advance(14)
        await until_problems(node, "worker 1 has not answered for 14 s")
        os.kill(pids[0], signal.SIGCONT)
        await until_problems(node)
        assert [one.pid for one in supervisor.metrics()] == pids


async def test_time_in_which_the_core_stood_still_is_nobodys_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with core_with_workers(monkeypatch) as (node, supervisor):
        pids = [one.pid for one in supervisor.metrics()]
        seconds, nanoseconds = time.monotonic, time.monotonic_ns
        with monkeypatch.context() as jump:
            jump.setattr(time, "monotonic", lambda: seconds() + 60)
            jump.setattr(time, "monotonic_ns", lambda: nanoseconds() + 60_000_000_000)
            assert node.core.status().problems == ()
            # Its clocks and its look at the workers have run.
            await asyncio.sleep(1.5)
            assert node.core.status().problems == ()
            assert [(one.pid, one.restarts) for one in supervisor.metrics()] == [
                (pid, 0) for pid in pids
            ]
