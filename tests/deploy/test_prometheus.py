"""A real Prometheus scrapes a broker that asks for a login, with our configuration, and our alerts
fire. Only times are shortened, in copies of the files."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fanlog.config import Config, ListenerOptions
from fanlog.config_security import SecurityOptions
from fanlog.config_web import WebOptions
from fanlog.identity import Role, Rules
from fanlog.node import Node
from fanlog.security.directory import KeyEntry
from fanlog.security.keys import digest_of, make_key, maybe_parse
from tests.deploy.test_alerts import HINT, PROMETHEUS
from tests.servers import HOST, find_program, free_port

PATIENCE_SECONDS = 120.0
# Prometheus ends by itself after so long, if the test can't end it.
LIFE_SECONDS = 300


def add_key(node: Node, name: str, role: Role) -> str:
    text = make_key()
    parsed = maybe_parse(text)
    assert parsed is not None
    assert node.security is not None
    digest = digest_of(parsed.secret)
    node.security.directory.put(
        KeyEntry(name=name, id=parsed.id, digest=digest, rules=Rules(role=role))
    )
    return text


def shortened(folder: Path, target: str, key: str) -> Path:
    """Our files, with seconds in the place of minutes."""
    (folder / "fanlog.key").write_text(key)
    settings = (PROMETHEUS / "prometheus.yml").read_text()
    settings = settings.replace("/etc/prometheus/fanlog.key", str(folder / "fanlog.key"))
    settings = settings.replace("127.0.0.1:7422", target).replace("15s", "1s")
    path = folder / "prometheus.yml"
    path.write_text(settings)
    rules = (PROMETHEUS / "alerts.yml").read_text()
    rules = re.sub(r"for: \d+m", "for: 1s", rules)
    (folder / "alerts.yml").write_text(re.sub(r"\[\d+[mh]\]", "[20s]", rules))
    return path


@asynccontextmanager
async def prometheus(folder: Path, settings: Path) -> AsyncIterator[str]:
    program, port = find_program("prometheus", HINT), free_port()
    command = [
        *("timeout", str(LIFE_SECONDS)),
        program,
        f"--config.file={settings}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


async def until_firing(
    http: aiohttp.ClientSession, base: str, names: set[str], without: str = ""
) -> dict[str, Any]:
    """The alerts that fire, once these are among them, and one is not."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found: dict[str, Any] = {}
            try:
                async with http.get(f"{base}/api/v1/alerts") as answer:
                    alerts = (await answer.json())["data"]["alerts"]
                    found = {
                        one["labels"]["alertname"]: one
                        for one in alerts
                        if one["state"] == "firing"
                    }
            except (aiohttp.ClientError, KeyError):
                pass  # It has not started yet.
            if names <= set(found) and without not in found:
                return found
            await asyncio.sleep(0.25)


async def wrong_logins(url: str) -> None:
    """Somebody guesses keys, until the test has seen enough: from another address, which is locked
    out soon."""
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with aiohttp.ClientSession(connector=elsewhere) as http:
        while True:
            headers = {"Authorization": f"Bearer {make_key()}"}
            async with http.get(f"{url}/metrics", headers=headers) as answer:
                assert answer.status in (401, 429)
            await asyncio.sleep(0.1)


@pytest.mark.timeout(LIFE_SECONDS)
async def test_prometheus_scrapes_with_a_key_and_our_alerts_fire(tmp_path: Path) -> None:
    find_program("prometheus", HINT)
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        web=WebOptions(host=HOST, port=0),
        security=SecurityOptions(auth=True),
    )
    node = Node(tmp_path / "data", config)
    node.start()
    stopped = False
    try:
        listener = await node.listen_web()
        key = add_key(node, "prometheus", Role.OBSERVER)
        target = f"{HOST}:{listener.port}"
        settings = shortened(tmp_path, target, key)
        async with aiohttp.ClientSession() as http, prometheus(tmp_path, settings) as base:
            async with http.get(f"http://{target}/metrics") as answer:
                assert answer.status == 401
            guessing = asyncio.create_task(wrong_logins(f"http://{target}"))
            # A load balancer needs no login to see this.
            node.core.draining = True
            # A scrape that takes a second has failed: on a slow machine it is down for a moment.
            expected = {"FanlogAuthFailures", "FanlogNotReady"}
            fired = await until_firing(http, base, expected, without="FanlogDown")
            assert fired["FanlogAuthFailures"]["labels"]["listener"] == "web"
            guessing.cancel()
            async with http.get(
                f"{base}/api/v1/query", params={"query": "fanlog_build_info"}
            ) as answer:
                (known,) = (await answer.json())["data"]["result"]
            assert known["metric"]["job"] == "fanlog"
            await node.stop()
            stopped = True
            await until_firing(http, base, {"FanlogDown"})
    finally:
        if not stopped:
            await node.stop()
