"""A real edge is killed without a word: its people leave, unless they come back in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from tests.edge.edge_process import EdgeProcess
from tests.edge.stage import PATIENCE_SECONDS, until
from tests.edge.test_presence import config, count
from tests.listeners.web.test_websocket import talking
from tests.listeners.web.two_processes import Watching

# More at once is a time in which the process itself did not run.
STEP_SECONDS = 5.0


async def test_the_people_of_a_killed_edge_leave_unless_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANLOG_WEB_PRESENCE_HEARTBEAT_SECONDS", "0.2")
    settings = config(
        presence_heartbeat_seconds=STEP_SECONDS,
        presence_timeout_seconds=600.0,
        presence_grace_seconds=600.0,
    )
    ahead, loop = 0.0, asyncio.get_running_loop()
    async with fanlog.Broker(None, settings) as broker:
        await broker.create_topic("lobby")
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        own = await broker.listen_web()
        # Its clock goes by hand, so that bob is back in time on the slowest machine.
        own.presence._clock = lambda: loop.time() + ahead
        with EdgeProcess(url, tmp_path / "edge.log") as edge:
            await asyncio.to_thread(edge.wait)
            watching = Watching()
            own.presence.watch("lobby", watching)
            path = f"ws://127.0.0.1:{edge.http_port}/v1/ws?user="
            async with talking(path + "ann") as ann, talking(path + "bob") as bob:
                for client in (ann, bob):
                    await client.ask(op="subscribe", target="lobby", presence=True)
                await until(lambda: count(own, "lobby") == 2)
                await asyncio.to_thread(edge.kill)
            async with talking(f"ws://127.0.0.1:{own.port}/v1/ws?user=bob") as bob:
                await bob.ask(op="subscribe", target="lobby", presence=True)
                assert count(own, "lobby") == 2
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while count(own, "lobby") == 2:
                        ahead += STEP_SECONDS
                        own.presence.tick()
                        await asyncio.sleep(0)
                left = [user["user"] for event in watching.said for user in event["left"]]
                assert left == ["ann"]
                assert own.presence.roster.processes == 1
