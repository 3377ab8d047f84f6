"""TLS on the web listener: HTTP, server-sent events and WebSocket, and readers that are slow."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

import fanlog
from tests.tls.papers import HOST, PATIENCE_SECONDS, Papers, Serving, serving


@asynccontextmanager
async def _site(papers: Papers) -> AsyncIterator[tuple[Serving, aiohttp.ClientSession]]:
    context = ssl.create_default_context(cafile=papers.ca)
    async with serving(papers.options(), web=True) as served:
        assert served.web is not None
        connector = aiohttp.TCPConnector(ssl=context)
        base = f"https://{HOST}:{served.web.port}"
        async with aiohttp.ClientSession(base, connector=connector) as http:
            yield served, http


async def test_requests_and_large_answers(papers: Papers) -> None:
    async with _site(papers) as (_, http):
        for n in range(40):
            body = json.dumps({"n": n, "text": "x" * 100_000})
            async with http.post("/v1/topics/orders/messages", data=body) as answer:
                assert answer.status in (200, 201, 202), await answer.text()
        url = "/v1/topics/orders/messages?start=earliest&limit=100"
        async with http.get(url) as answer:
            got = await answer.json()
        assert len(got["messages"]) > 1
        async with http.get("/fanlog.js") as answer:
            assert answer.status == 200
            assert len(await answer.read()) > 1000


async def test_a_websocket_and_events_get_messages(papers: Papers) -> None:
    async with (
        _site(papers) as (served, http),
        fanlog.connect(served.url, tls_ca_file=papers.ca) as client,
    ):
        await client.create_topic("chat")
        async with (
            http.ws_connect("/v1/ws") as talk,
            http.get("/v1/topics/chat/stream?start=earliest") as events,
        ):
            await talk.send_json({"id": 1, "op": "subscribe", "target": "chat"})
            while (await talk.receive_json()).get("id") != 1:
                pass
            await client.publish("chat", {"text": "hello"})
            while (frame := await talk.receive_json()).get("type") != "messages":
                pass
            assert frame["messages"][0]["json"] == {"text": "hello"}
            line = b""
            while b"hello" not in line:
                line = await events.content.readline()
            assert line.startswith(b"data:")


async def test_http_without_tls_is_told_to_use_https(papers: Papers) -> None:
    async with _site(papers) as (served, _):
        assert served.web is not None
        url = f"http://{HOST}:{served.web.port}/v1/topics"
        async with aiohttp.ClientSession() as plain, plain.get(url) as answer:
            assert answer.status == 400
            assert "https://" in await answer.text()


async def test_tls_1_2_is_refused(papers: Papers) -> None:
    old = ssl.create_default_context(cafile=papers.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with _site(papers) as (_, http):
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get("/v1/topics", ssl=old)


async def test_a_page_of_the_same_host_may_use_it(papers: Papers) -> None:
    async with _site(papers) as (served, http):
        assert served.web is not None
        same = {"Origin": f"https://{HOST}:{served.web.port}"}
        async with http.get("/v1/topics", headers=same) as answer:
            assert answer.status == 200
        async with http.get("/v1/topics", headers={"Origin": "https://evil.example"}) as answer:
            assert answer.status == 403


async def test_a_slow_reader_of_events_holds_no_queue(papers: Papers) -> None:
    context = ssl.create_default_context(cafile=papers.ca)
    reading = threading.Event()

    def read(port: int) -> int:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(PATIENCE_SECONDS)
        plain.connect((HOST, port))
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            path = b"/v1/topics/chat/stream?start=earliest"
            sock.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            reading.wait(PATIENCE_SECONDS)
            seen, rest = 0, b""
            while seen < 300:
                new = sock.recv(1 << 16)
                assert new, "the broker closed"
                data = rest + new
                seen += data.count(b'"last"')
                rest = data[-5:]
        return seen

    async with serving(papers.options(), web=True) as served:
        assert served.web is not None
        async with fanlog.connect(served.url, tls_ca_file=papers.ca) as client:
            await client.create_topic("chat", tail_bytes=1 << 26)
            reader = asyncio.create_task(asyncio.to_thread(read, served.web.port))
            while not served.web.streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for _ in range(300):
                await client.publish("chat", {"text": "x" * 30_000, "end": "last"})
            (stream,) = served.web.streams
            assert stream.blocked
            assert 0 < stream.kept_bytes < 2_000_000
            reading.set()
            assert await reader == 300
