"""An edge counts by itself: metrics, connections and readiness are its own."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

import fanlog
from fanlog.config import Config, EdgeOptions, ListenerOptions
from fanlog.config_web import WebOptions
from fanlog.edge.node import FanlogEdge
from fanlog.release import VERSION
from tests.edge.stage import PATIENCE_SECONDS, broker_at, edge_of, until


async def test_an_edge_shows_what_it_delivers_and_its_own_connections() -> None:
    async with (
        broker_at() as broker,
        edge_of(f"fanlog://127.0.0.1:{broker.listen().port}") as edge,
        fanlog.connect(edge.url, name="reader") as client,
    ):
        async with client.subscribe("orders") as orders:
            await broker.publish("orders", "x")
            await orders.next(timeout_seconds=PATIENCE_SECONDS)
            connected = [one.client async for one in client.connections.list()]
            snapshot = await client.metrics()
        assert connected == ["reader"]
        assert (snapshot.role, snapshot.release) == ("edge", VERSION)
        assert snapshot.upstream.startswith("fanlog://")
        assert snapshot.totals.delivered_messages >= 1
        assert [(one.name, one.connections) for one in snapshot.listeners] == [("native", 1)]
        above = await broker.metrics()
        assert above.role == "broker"
        assert above.totals.published_messages >= 1


async def test_an_edge_without_its_upstream_is_not_ready() -> None:
    config = Config(
        listener=ListenerOptions(port=0, drain_seconds=0.0),
        web=msgspec.structs.replace(WebOptions(), port=0),
        edge=EdgeOptions(),
    )
    async with broker_at() as broker:
        node = FanlogEdge(f"fanlog://127.0.0.1:{broker.listen().port}", config)
        node.start()
        await node.connect()
        listener = await node.listen_web()
    # The broker is gone.
    try:
        await until(lambda: not node.up)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
            async with http.get("/healthz/ready") as answer:
                assert answer.status == 503
                assert (await answer.json())["reasons"] == ["The upstream is away."]
            async with http.get("/healthz/live") as answer:
                assert answer.status == 200
            async with http.get("/metrics") as answer:
                text = await answer.text()
        assert "fanlog_ready 0.0" in text
        assert 'role="edge"' in text
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await node.stop()
