"""The browser client against a real broker, through a network that breaks all the time."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.browser.blocking_proxy import blocking_proxy
from tests.browser.node import MODULE, PACKAGE, find_node
from tests.listeners.web.conftest import Serving, serving

__all__ = ["serving"]

MESSAGES = 1_500
CUTS = 75


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "client")
    shutil.copy(MODULE / "fanlog.js", tmp_path / "client")
    return tmp_path / "client"


@pytest.mark.parametrize("pace", ["fast", "slow"])
@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_reader_whose_connection_breaks_gets_every_message_once(
    transport: str, pace: str, serving: Serving, package: Path
) -> None:
    async with serving() as site, blocking_proxy(site.listener.port) as proxy:
        proxy.blocks = False
        arguments = [proxy.url, "news", str(MESSAGES), transport, *(["slow"] * (pace == "slow"))]
        reader = await asyncio.create_subprocess_exec(
            find_node(), "test/follow.mjs", *arguments, cwd=package, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert reader.stdout is not None
            assert await reader.stdout.readline() == b"ready\n"
            for i in range(MESSAGES):
                await site.broker.publish("news", str(i).encode())
                if i % (MESSAGES // CUTS) == 0:
                    proxy.cut()
                    await asyncio.sleep(0)
            report = json.loads(await reader.stdout.read())
        finally:
            if reader.returncode is None:
                reader.kill()
            await reader.wait()
        assert report["gaps"] == []
        assert [int(value) for value in report["values"]] == list(range(MESSAGES))
        assert report["opened"] > 1
        assert (report["paused"] > 0) == (pace == "slow")
