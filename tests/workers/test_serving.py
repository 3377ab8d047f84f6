"""`fanlog serve --workers N`: clients of all kinds, spread over processes, with one broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis import asyncio as redis_asyncio

import fanlog
from tests.workers.stage import (
    FOLDER,
    PATIENCE_SECONDS,
    Served,
    clients,
    is_gone,
    served,
    until,
)

pytestmark = pytest.mark.timeout(400)

# With so many, the chance that one worker gets none is one in billions.
CLIENTS = 32


async def test_clients_of_all_kinds_share_topics_over_all_workers(tmp_path: Path) -> None:
    with served(tmp_path, "--memory") as broker:
        async with clients(broker.url, CLIENTS) as connected, aiohttp.ClientSession() as http:
            readers = [client.subscribe("news") for client in connected]
            for reader in readers:
                await reader.start()
            redis = redis_asyncio.Redis(port=broker.process.redis_port)
            channels = [redis.pubsub() for _ in range(4)]
            for channel in channels:
                await channel.subscribe("news")
                await channel.get_message(timeout=PATIENCE_SECONDS)
            pages = [await http.ws_connect(f"{broker.web}/v1/ws") for _ in range(4)]
            for page in pages:
                await page.send_json({"op": "subscribe", "id": 1, "target": "news"})
                while "ok" not in await page.receive_json(timeout=PATIENCE_SECONDS):
                    pass
            await connected[0].publish("news", "native")
            await redis.publish("news", "redis")
            async with http.post(f"{broker.web}/v1/topics/news/messages", data="web") as answer:
                assert answer.status == 200
            wanted = [b"native", b"redis", b"web"]
            for reader in readers:
                assert [(await reader.next(PATIENCE_SECONDS)).value for _ in wanted] == wanted
            for channel in channels:
                assert [await _data(channel) for _ in wanted] == wanted
            for page in pages:
                assert await _texts(page, len(wanted)) == ["native", "redis", "web"]
            await _all_workers_have_clients(broker)
            for channel in channels:
                await channel.aclose()
            await redis.aclose()
            for page in pages:
                await page.close()


async def _data(channel: Any) -> object:
    told = await channel.get_message(timeout=PATIENCE_SECONDS)
    return None if told is None else told["data"]


async def _texts(page: aiohttp.ClientWebSocketResponse, count: int) -> list[str]:
    """The next messages, of which one frame may have several."""
    found: list[str] = []
    while len(found) < count:
        told = await page.receive_json(timeout=PATIENCE_SECONDS)
        if told.get("type") == "messages":
            found += [message["text"] for message in told["messages"]]
    return found


async def _all_workers_have_clients(broker: Served) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await broker.metrics()
            if all(one["connections"] and one["delivered_messages"] for one in found["workers"]):
                break
            await asyncio.sleep(0.1)
    assert found["levels"]["connections"] >= CLIENTS
    native = next(one for one in found["listeners"] if one["name"] == "native")
    assert native["accepted"] >= CLIENTS


async def test_connections_of_all_workers_are_listed_and_closed_by_any(tmp_path: Path) -> None:
    with served(tmp_path, "--memory") as broker:
        async with clients(broker.url, 9, name="reader") as connected:
            for client in connected:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    found = [one async for one in client.connections.list()]
                assert [one.client for one in found] == ["reader"] * 9
                assert [one.id for one in found] == sorted({one.id for one in found})
            closed = await connected[0].connections.close(found[3].id, reason="enough")
            assert [one.id for one in closed] == [found[3].id]


async def test_the_dashboard_and_the_server_api_are_those_of_the_broker(tmp_path: Path) -> None:
    with served(tmp_path, "--memory") as broker:
        async with aiohttp.ClientSession() as http:
            for path in (
                "/dashboard/",
                "/v1/cluster",
                "/v1/overview",
                "/metrics",
                "/healthz/ready",
            ):
                # Each over a connection of its own.
                headers = {"Connection": "close"}
                async with http.get(broker.web + path, headers=headers) as answer:
                    assert answer.status == 200, path
            made = {"name": "orders", "partitions": 3}
            async with http.post(f"{broker.web}/v1/topics", json=made) as answer:
                assert answer.status == 201
            # Over the connection that the core has now.
            async with http.post(f"{broker.web}/v1/topics/orders/messages", data="x") as answer:
                assert answer.status == 200
            async with http.get(f"{broker.web}/nothing") as answer:
                assert answer.status == 404


def test_a_stop_drains_and_leaves_no_worker(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        workers = broker.workers()
        assert len(workers) == 2
        socket_file = tmp_path / FOLDER / "workers.sock"
        assert stat.S_IMODE(os.stat(socket_file).st_mode) == 0o600
        with fanlog.sync.connect(broker.url) as client:
            client.publish("orders", "x")
            assert broker.process.stop() == 0
        assert all(is_gone(pid) for pid in workers)
        assert not socket_file.exists()
        assert "Drained and stopped." in broker.log.read_text()
        assert "has ended" not in broker.log.read_text()


def test_a_killed_core_takes_its_workers_with_it_and_starts_again(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        with fanlog.sync.connect(broker.url) as client:
            client.create_topic("orders", durability="fsync")
            client.publish("orders", "x")
        workers = broker.workers()
        # One of them can't even answer.
        os.kill(workers[0], signal.SIGSTOP)
        broker.process.kill()
        os.kill(workers[0], signal.SIGCONT)
        until(lambda: all(is_gone(pid) for pid in workers))
        broker.process.start()
        with (
            fanlog.sync.connect(broker.url) as client,
            client.subscribe("orders", start="earliest") as orders,
        ):
            assert orders.next(PATIENCE_SECONDS).value == b"x"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_port_that_another_broker_has_is_an_error(tmp_path: Path, workers: str) -> None:
    """Also one that shares it between its workers."""
    with served(tmp_path, "--memory") as broker:
        command = ["serve", "--memory", "--workers", workers, "--port", str(broker.process.port)]
        second = subprocess.run(
            [sys.executable, "-m", "fanlog", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    assert second.returncode == 65
    assert "another program uses the port" in second.stderr


async def test_garbage_on_the_socket_of_the_workers_harms_nobody(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        path = str(tmp_path / FOLDER / "workers.sock")
        for said in (b"GET / HTTP/1.1\r\n\r\n" * 4, b"FLWK" + bytes(200), os.urandom(500)):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(PATIENCE_SECONDS)
                peer.connect(path)
                peer.sendall(said)
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(10) == b""
        async with clients(broker.url, 2) as connected:
            await connected[0].publish("orders", "x")


async def test_settings_that_change_reach_the_workers_and_those_that_start_later(
    tmp_path: Path,
) -> None:
    with served(tmp_path, "--memory") as broker:
        async with aiohttp.ClientSession() as http:
            change = {"values": {"telemetry.log_level": "debug"}, "temporary": True}
            async with http.patch(f"{broker.web}/v1/config", json=change) as answer:
                assert answer.status == 200, await answer.text()
        await _debug_line(broker)
        for pid in broker.workers():
            os.kill(pid, signal.SIGKILL)
        await broker.until_back(2)
        broker.log.write_text("")
        await _debug_line(broker)


async def _debug_line(broker: Served) -> None:
    """A line that only workers log, and only then."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "connected to the Redis port" not in broker.log.read_text():
            async with redis_asyncio.Redis(port=broker.process.redis_port) as redis:
                await redis.ping()
            await asyncio.sleep(0.1)
