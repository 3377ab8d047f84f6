"""Edges with TLS: in front of a broker without it, and towards a bus that wants it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

import fanlog
from fanlog.config import EdgeOptions
from fanlog.config_security import TlsOptions
from fanlog.edge.node import EdgeNode
from fanlog.edge.upstreams import make_edge
from tests.servers import free_port, nats_server, redis_server
from tests.tls.papers import HOST, PATIENCE_SECONDS, Papers, config, serving

NO_TLS = TlsOptions()


@asynccontextmanager
async def _edge(upstream: str, tls: TlsOptions, **options: Any) -> AsyncIterator[EdgeNode]:
    node = make_edge(upstream, config(tls, edge=EdgeOptions(upstream=upstream, **options)))
    node.start()
    try:
        await node.connect()
        yield node
    finally:
        await node.stop()


async def _check_native(url: str, papers: Papers) -> None:
    async with fanlog.connect(url, tls_ca_file=papers.ca) as client:
        # The edge passes this on over a connection of its own.
        await client.publish("orders", b"x" * 200_000)
        async with client.subscribe("orders", start="earliest") as orders:
            assert len((await orders.next(PATIENCE_SECONDS)).value) == 200_000


async def test_an_edge_with_tls_in_front_of_a_broker_without(papers: Papers) -> None:
    async with (
        serving(NO_TLS) as served,
        _edge(f"fanlog://{HOST}:{served.native.port}", papers.options()) as edge,
    ):
        await _check_native(f"fanlogs://{HOST}:{edge.listen().port}", papers)


async def test_an_edge_of_a_broker_that_wants_certificates(papers: Papers) -> None:
    """The edge's own connection, and those that it makes for its clients."""
    wanted = papers.options(client_ca_file=papers.ca, client_certificates="required")
    async with (
        serving(wanted) as served,
        _edge(served.url, papers.options(), **papers.client("edge")) as edge,
    ):
        await _check_native(f"fanlogs://{HOST}:{edge.listen().port}", papers)


async def _check_web(edge: EdgeNode, papers: Papers) -> None:
    listener = await edge.listen_web()
    context = ssl.create_default_context(cafile=papers.ca)
    base = f"https://{HOST}:{listener.port}"
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(base, connector=connector) as http,
        http.ws_connect("/v1/ws") as talk,
    ):
        await talk.send_json({"id": 1, "op": "subscribe", "target": "chat"})
        while (await talk.receive_json()).get("id") != 1:
            pass
        async with http.post("/v1/topics/chat/messages", json={"text": "hello"}) as answer:
            assert answer.status < 300, await answer.text()
        while (frame := await talk.receive_json()).get("type") != "messages":
            pass
        assert "hello" in str(frame["messages"][0])


async def test_an_edge_of_redis_with_tls(papers: Papers, tmp_path: Path) -> None:
    certificate, key = map(str, papers.broker)
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key]
    tls += ["--tls-ca-cert-file", papers.ca, "--tls-auth-clients", "yes"]
    with redis_server(tmp_path, *tls):
        url = f"rediss://{HOST}:{port}"
        async with _edge(url, papers.options(), **papers.client("edge")) as edge:
            await _check_web(edge, papers)


async def test_an_edge_of_nats_with_tls(papers: Papers, tmp_path: Path) -> None:
    certificate, key = papers.broker
    text = f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{papers.ca}", '
    text += "verify: true }"
    with nats_server(tmp_path, text) as server:
        url = f"tls://{HOST}:{server.port}"
        async with _edge(url, papers.options(), **papers.client("edge")) as edge:
            await _check_web(edge, papers)
