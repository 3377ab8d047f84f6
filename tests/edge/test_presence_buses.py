"""Presence and the server API over the buses of others: a real Redis and a real NATS between two
edges."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fanlog.edge.upstreams import make_edge
from fanlog.listeners.web.server import WebListener
from tests.edge.stage import until
from tests.edge.test_presence import config, count
from tests.listeners.web.test_websocket import talking
from tests.servers import Server, nats_server, redis_server

Start = Callable[[Path], AbstractContextManager[Server]]


@asynccontextmanager
async def edge(url: str) -> AsyncIterator[WebListener]:
    node = make_edge(url, config())
    node.start()
    try:
        await node.connect()
        yield await node.listen_web()
    finally:
        await node.stop()


def ws(listener: WebListener, user: str) -> str:
    return f"ws://127.0.0.1:{listener.port}/v1/ws?user={user}"


@pytest.mark.parametrize("start", [redis_server, nats_server], ids=["redis", "nats"])
async def test_two_edges_know_the_same_people_over_another_bus(
    start: Start, tmp_path: Path
) -> None:
    with start(tmp_path) as server:
        async with (
            edge(server.url) as first,
            edge(server.url) as second,
            talking(ws(first, "ann")) as ann,
            talking(ws(second, "bob")) as bob,
            aiohttp.ClientSession() as http,
        ):
            await until(lambda: first.presence.roster.processes == 2)
            await until(lambda: second.presence.roster.processes == 2)
            await ann.ask(op="subscribe", target="lobby", presence={"name": "Ann"})
            await bob.ask(op="subscribe", target="lobby", presence=True)
            await until(lambda: count(first, "lobby") == count(second, "lobby") == 2)
            event = await ann.next(lambda f: "bob" in str(f.get("joined")))
            assert event["joined"] == [{"user": "bob"}]

            async def ask(method: str, path: str, body: Any = None) -> Any:
                url = f"http://127.0.0.1:{first.port}{path}"
                async with http.request(method, url, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            got = await ask("GET", "/v1/connections")
            assert sorted(one["user"] for one in got["connections"]) == ["ann", "bob"]
            assert (await ask("GET", "/v1/presence/lobby"))["count"] == 2
            # Those that somebody follows: there is no list of all topics.
            got = await ask("POST", "/v1/broadcast", {"pattern": "*", "text": "hello"})
            assert [one["topic"] for one in got["published"]] == ["lobby"]
            for client in (ann, bob):
                frame = await client.told("messages")
                assert frame["messages"][0]["text"] == "hello"
            assert await ask("POST", "/v1/users/bob/disconnect") == {"disconnected": 1}
            event = await ann.next(lambda f: "bob" in str(f.get("left")))
            assert event["left"] == [{"user": "bob"}]
