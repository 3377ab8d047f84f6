"""Connections of all listeners, as operators see and close them, and the snapshot of metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.config import Config, ListenerOptions, RedisOptions
from fanlog.config_web import WebOptions
from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import ConnectionsRequest
from fanlog.listeners.operator_requests import list_connections
from fanlog.model import ConnectionInfo

HOST = "127.0.0.1"
PATIENCE_SECONDS = 100.0


class Ports:
    def __init__(self, broker: fanlog.Broker, native: int, redis: int, web: int) -> None:
        self.broker, self.native, self.redis, self.web = broker, native, redis, web

    @property
    def url(self) -> str:
        return f"fanlog://{HOST}:{self.native}"


@asynccontextmanager
async def all_listeners(**listener: int) -> AsyncIterator[Ports]:
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0, **listener),
        redis=RedisOptions(host=HOST, port=0),
        web=WebOptions(host=HOST, port=0),
    )
    async with fanlog.Broker(config=config) as broker:
        native, redis = broker.listen(), broker.listen_redis()
        web = await broker.listen_web()
        yield Ports(broker, native.port, redis.port, web.port)


async def listed(client: fanlog.Client, **wanted: Any) -> dict[str, ConnectionInfo]:
    return {one.id: one async for one in client.connections.list(**wanted)}


@asynccontextmanager
async def redis_reader(ports: Ports, channel: str) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(HOST, ports.redis)
    writer.write(b"CLIENT SETNAME dashboard\r\nSUBSCRIBE %b\r\n" % channel.encode())
    await reader.readuntil(b":1\r\n")
    try:
        yield reader
    finally:
        writer.close()


async def test_connections_of_all_listeners_are_listed() -> None:
    async with (
        all_listeners() as ports,
        fanlog.connect(ports.url, name="shop") as client,
        client.subscribe("orders.>"),
        redis_reader(ports, "orders"),
        aiohttp.ClientSession() as http,
        http.ws_connect(f"ws://{HOST}:{ports.web}/v1/ws?user=ann"),
    ):
        found = list((await listed(client)).values())
        by_transport = {one.transport: one for one in found}
        assert set(by_transport) == {"native", "redis", "websocket"}
        native, redis = by_transport["native"], by_transport["redis"]
        websocket = by_transport["websocket"]
        assert native.id == f"native@{native.address}"
        assert (native.client, native.subscriptions) == ("shop", ["orders.>"])
        assert (redis.client, redis.subscriptions) == ("dashboard", ["orders"])
        assert (websocket.user, websocket.listener) == ("ann", "web")
        assert [one.id for one in found] == sorted(one.id for one in found)
        assert all(one.since_us > 0 for one in found)
        assert set(await listed(client, user="ann")) == {websocket.id}
        assert set(await listed(client, listener="redis")) == {redis.id}
        assert set(await listed(client, address=native.address)) == {native.id}
        assert len(await listed(client, address=HOST)) == 3
        assert not await listed(client, address="10.0.0.1")
        # The same over REST, on all processes.
        async with http.get(f"http://{HOST}:{ports.web}/v1/connections") as answer:
            told = await answer.json()
        shown = {one["id"]: one for one in told["connections"]}
        assert {native.id, redis.id, websocket.id} <= set(shown)
        assert shown[redis.id]["client"] == "dashboard"
        path = f"http://{HOST}:{ports.web}/v1/connections?listener=native"
        async with http.get(path) as answer:
            assert [one["id"] for one in (await answer.json())["connections"]] == [native.id]


async def test_a_page_is_as_long_as_asked_for_and_nothing_is_listed_twice() -> None:
    async with all_listeners() as ports:
        clients = [await fanlog.connect(ports.url) for _ in range(5)]
        core = ports.broker._node.core if ports.broker._node is not None else None
        assert core is not None
        seen: list[str] = []
        after = ""
        while True:
            page = await list_connections(core, ConnectionsRequest(after=after, limit=2))
            assert page.total == 5
            seen += [one.id for one in page.connections]
            after = page.next
            if not after:
                break
        assert len(seen) == len(set(seen)) == 5
        for client in clients:
            await client.close()


async def test_an_operator_closes_connections_of_each_listener() -> None:
    async with (
        all_listeners() as ports,
        fanlog.connect(ports.url) as operator,
        redis_reader(ports, "orders") as redis,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"ws://{HOST}:{ports.web}/v1/ws?user=mallory") as websocket,
    ):
        closed = await operator.connections.close(user="mallory", reason="banned")
        assert [one.user for one in closed] == ["mallory"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for message in websocket:
                assert message.type is aiohttp.WSMsgType.TEXT
        assert websocket.close_code is not None
        (known,) = await listed(operator, listener="redis")
        assert len(await operator.connections.close(known)) == 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            told = await redis.read()
        assert b"An operator closed this connection" in told
        assert not await operator.connections.close(known)


async def test_a_closed_native_client_is_told_why_and_comes_back() -> None:
    async with all_listeners() as ports, fanlog.connect(ports.url) as operator:
        lost: list[str] = []
        async with fanlog.connect(ports.url, name="worker") as client:
            client.on_lost = lambda error: lost.append(str(error))
            known = next(one for one in (await listed(operator)).values() if one.client == "worker")
            await operator.connections.close(known.id, reason="maintenance")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    found = [o for o in (await listed(operator)).values() if o.client == "worker"]
                    if lost and found and found[0].id != known.id:
                        break
                    await asyncio.sleep(0.01)
        assert "maintenance" in lost[0]


async def test_nobody_closes_everything_by_mistake() -> None:
    async with all_listeners() as ports, fanlog.connect(ports.url) as client:
        with pytest.raises(InvalidArgumentError, match="Say which connections"):
            await client.connections.close()
        with pytest.raises(InvalidArgumentError, match="reason"):
            await client.connections.close(user="u", reason="x" * 501)


async def test_a_reader_that_takes_nothing_is_seen_to_be_behind() -> None:
    async with all_listeners() as ports, fanlog.connect(ports.url) as client:
        await client.create_topic("orders", tail_bytes=64 * 1024 * 1024)
        async with redis_reader(ports, "orders"):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    for _ in range(50):
                        await client.publish("orders", "x" * 100_000)
                    (redis,) = (await listed(client, listener="redis")).values()
                    if redis.behind_messages:
                        break
            assert redis.behind_bytes > 100_000
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (snapshot := await client.metrics()).readers:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert snapshot.readers[0].connection == redis.id
            assert snapshot.levels.readers_behind == 1


async def test_a_client_gets_the_snapshot_that_prometheus_gets() -> None:
    async with all_listeners() as ports, fanlog.connect(ports.url) as client:
        await client.publish("orders", "x")
        snapshot = await client.metrics()
        assert {one.name: one.connections for one in snapshot.listeners} == {
            "native": 1,
            "redis": 0,
            "web": 0,
        }
        # As plain values: it survives a trip in any encoding.
        assert msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot)) == snapshot


def test_plain_code_asks_the_same() -> None:
    free = Config(listener=ListenerOptions(port=0))
    with fanlog.sync.Broker(config=free) as broker:
        listener = broker.listen()
        with fanlog.sync.connect(f"fanlog://{HOST}:{listener.port}", name="plain") as client:
            assert [one.client for one in client.connections.list()] == ["plain"]
            assert client.metrics().levels.connections >= 1
            assert client.connections.close(user="nobody") == ()
