"""Browsers' connections on edges: two edges of each bus, positions that one hands out and the other
takes, and an upstream that goes and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanlog.config import Config, EdgeOptions
from fanlog.config_web import WebOptions
from fanlog.edge.node import EdgeNode, FanlogEdge
from fanlog.edge.upstreams import make_edge
from tests.client.proxy import proxy_to
from tests.edge.stage import PATIENCE_SECONDS, broker_at, until
from tests.listeners.web.wire import RawSocket, raw
from tests.servers import nats_server, redis_server

BUSES = ["fanlog", "redis", "nats"]


@asynccontextmanager
async def bus_of(kind: str, folder: Path) -> AsyncIterator[str]:
    """A bus of this kind; its address."""
    with ExitStack() as stack:
        if kind == "redis":
            yield stack.enter_context(redis_server(folder)).url
        elif kind == "nats":
            server = stack.enter_context(nats_server(folder, "jetstream: enabled"))
            yield f"{server.url}?jetstream=true"
        else:
            async with broker_at() as broker:
                yield f"fanlog://127.0.0.1:{broker.listen().port}"


@asynccontextmanager
async def web_edge(url: str) -> AsyncIterator[tuple[EdgeNode, int]]:
    """An edge with a web listener; its port."""
    config = Config(edge=EdgeOptions(linger_seconds=0.2), web=WebOptions(port=0))
    node = make_edge(url, config)
    node.start()
    try:
        await node.connect()
        yield node, (await node.listen_web()).port
    finally:
        await node.stop()


async def messages(socket: RawSocket, count: int) -> tuple[list[str], str]:
    """The texts of so many messages, and the position behind them."""
    got: list[str] = []
    position = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(got) < count:
            frame: Any = await socket.told("messages")
            got += [message["text"] for message in frame["messages"]]
            position = frame["position"]
    return got, position


@pytest.mark.parametrize("kind", BUSES)
async def test_two_edges_are_one_room_and_a_position_is_good_on_both(
    kind: str, tmp_path: Path
) -> None:
    async with (
        bus_of(kind, tmp_path) as url,
        web_edge(url) as (_, one),
        web_edge(url) as (_, other),
        raw(one) as ann,
        raw(other) as ben,
    ):
        welcome = await ann.told("welcome")
        assert (welcome["bus"], welcome["up"]) == (kind, True)
        await ben.ask(op="subscribe", target="chat.>")
        begun = (await ann.ask(op="subscribe", target="chat.a"))["ok"]
        answer = await ben.ask(op="publish", topic="chat.a", text="hello")
        assert answer["ok"]["published"][0]["topic"] == "chat.a"
        for i in range(5):
            await ann.ask(op="publish", topic="chat.a", text=f"{i}")
        first = ["hello", *(str(i) for i in range(5))]
        # What came before an answer was dropped there: read it again from a position.
        async with raw(other) as again:
            positions = begun["positions"] or {"chat.a/0": "0.0.0"}
            await ask_quietly(again, op="subscribe", target="chat.a", positions=positions)
            got, position = await messages(again, 6)
            assert got == first
        await ask_quietly(ben, op="publish", topic="chat.a", text="while away")
        async with raw(one) as back:
            await ask_quietly(
                back, op="subscribe", target="chat.a", positions={"chat.a/0": position}
            )
            got, _ = await messages(back, 1)
            assert got == ["while away"]


async def ask_quietly(socket: RawSocket, **operation: Any) -> None:
    """Sends an operation. What comes is read later."""
    socket.say(**operation)


@pytest.mark.parametrize("kind", BUSES)
async def test_a_browser_is_handed_over_under_load_without_a_miss(
    kind: str, tmp_path: Path
) -> None:
    async with (
        bus_of(kind, tmp_path) as url,
        web_edge(url) as (node, one),
        web_edge(url) as (_, other),
        raw(one) as publisher,
    ):
        done = asyncio.Event()
        sent = 0

        async def publish() -> None:
            nonlocal sent
            while not done.is_set():
                answer = await publisher.ask(op="publish", topic="load", text=str(sent))
                assert "ok" in answer, answer
                sent += 1

        async with raw(one) as first:
            begun = (await first.ask(op="subscribe", target="load", start="live"))["ok"]
            positions = begun["positions"]
        publishing = asyncio.create_task(publish())
        seen: list[str] = []
        for turn in range(40):
            async with raw((one, other)[turn % 2]) as socket:
                socket.say(op="subscribe", target="load", positions=positions)
                got, position = await messages(socket, 1)
                seen += got
                positions = {"load/0": position}
        done.set()
        await publishing
        assert seen == [str(i) for i in range(len(seen))]
        assert len(seen) >= 40
        assert node.up


async def test_browsers_stay_are_told_and_recover_when_upstream_goes_and_comes_back() -> None:
    async with broker_at() as broker:
        await broker.create_topic("room")
        async with (
            proxy_to(broker.listen().port) as proxy,
            web_edge(f"fanlog://127.0.0.1:{proxy.port}") as (node, port),
            raw(port) as ann,
        ):
            await ann.ask(op="subscribe", target="room")
            proxy.refusing = True
            proxy.cut()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await ann.told("upstream"))["up"] is False
            await broker.publish("room", "meanwhile")
            proxy.refusing = False
            seen: list[str] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while "up" not in seen or "meanwhile" not in seen:
                    frame = await ann.told()
                    if frame.get("type") == "upstream":
                        assert frame["up"] is True
                        seen.append("up")
                    elif frame.get("type") == "messages":
                        seen += [message["text"] for message in frame["messages"]]
            assert sorted(seen) == ["meanwhile", "up"]
            assert node.up


@pytest.mark.parametrize("kind", BUSES)
async def test_what_needs_a_fanlog_broker_says_so(kind: str, tmp_path: Path) -> None:
    async with bus_of(kind, tmp_path) as url, web_edge(url) as (node, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        status = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
        assert status["bus"] == kind
        assert node.speaks_fanlog == (kind == "fanlog")
        writer.close()
        await until(lambda: node.up)


async def test_browsers_that_leave_while_upstream_is_away_leave_nothing() -> None:
    async with (
        broker_at() as broker,
        proxy_to(broker.listen().port) as proxy,
        web_edge(f"fanlog://127.0.0.1:{proxy.port}") as (node, port),
    ):
        assert isinstance(node, FanlogEdge)
        upstream = node.upstream
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not node.up)
        followed = upstream.subscriptions
        for i in range(3):
            async with raw(port, "/v1/ws") as client:
                client.say(op="subscribe", target=f"t.{i}")
                await until(lambda: upstream.subscriptions > followed)
            # What they waited for ends a while after them, though it never came.
            await until(lambda: upstream.subscriptions == followed)
