"""Presence and the server API belong to the bus: a broker with a web listener of its own and two
edges in front of it know the same people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

import fanlog
from fanlog.config import Config, ListenerOptions
from fanlog.edge.node import FanlogEdge
from fanlog.listeners.web.server import WebListener
from tests.edge.stage import until
from tests.listeners.web.two_processes import PATIENCE_SECONDS, QUICK, Peer, Watching


def config(port: int = 0, **web: Any) -> Config:
    options = msgspec.structs.replace(Config().web, port=0, **(QUICK | web))
    return Config(listener=ListenerOptions(port=port), web=options)


@asynccontextmanager
async def edge(url: str, **web: Any) -> AsyncIterator[WebListener]:
    node = FanlogEdge(url, config(**web))
    node.start()
    try:
        await node.connect()
        yield await node.listen_web()
    finally:
        await node.stop()


def agrees(listener: WebListener, users: list[str]) -> bool:
    found = listener.presence.snapshot("lobby").users
    return isinstance(found, list) and [user.user for user in found] == users


def count(listener: WebListener, topic: str) -> int:
    return listener.presence.snapshot(topic).count


async def test_edges_and_their_broker_know_the_same_people() -> None:
    async with fanlog.Broker(None, config()) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        own = await broker.listen_web()
        async with edge(url) as first, edge(url) as second:
            await until(lambda: own.presence.roster.processes == 3)
            watching = Watching()
            second.presence.watch("lobby", watching)
            first.presence.join("lobby", "c1", "ann", b'{"name":"Ann"}')
            own.presence.join("lobby", "c2", "bob")
            await until(lambda: all(count(site, "lobby") == 2 for site in (own, first, second)))
            await until(lambda: sum(len(event["joined"]) for event in watching.said) == 2)


async def test_a_native_client_reaches_the_connections_of_all_edges() -> None:
    async with fanlog.Broker(None, config()) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge(url) as first, edge(url) as second, fanlog.connect(url) as client:
            await until(lambda: first.presence.roster.processes == 2)
            await until(lambda: second.presence.roster.processes == 2)
            peers = [Peer("c1", "ann"), Peer("c2", "ann")]
            first.connections.add(peers[0])
            second.connections.add(peers[1])
            found = [one async for one in client.web.connections(timeout_seconds=PATIENCE_SECONDS)]
            assert [one.process for one in found] == [first.bus.process, second.bus.process]
            closed = await client.web.disconnect(
                "ann", reason="bye", timeout_seconds=PATIENCE_SECONDS
            )
            assert closed == 2
            assert [peer.closed for peer in peers] == [("bye", False)] * 2


async def test_presence_is_right_again_after_the_broker_was_away() -> None:
    """Nobody leaves if it is back in time; who comes and goes meanwhile is known afterwards."""
    slow = {"presence_grace_seconds": 0.2}
    async with fanlog.Broker(None, config()) as broker:
        port = broker.listen().port
        url = f"fanlog://127.0.0.1:{port}"

        async with edge(url, **slow) as first, edge(url, **slow) as second:
            watching = Watching()
            first.presence.watch("lobby", watching)
            first.presence.join("lobby", "c1", "ann")
            second.presence.join("lobby", "c2", "bob")
            await until(lambda: count(first, "lobby") == count(second, "lobby") == 2)
            await broker.stop()
            await until(lambda: not first.bus.up and not second.bus.up)
            second.presence.join("lobby", "c3", "cyd")
            second.presence.gone("c2")
            assert count(first, "lobby") == 2
            async with fanlog.Broker(None, config(port)) as again:
                again.listen()
                await until(lambda: first.bus.up and second.bus.up)
                for site in (first, second):
                    await until(partial(agrees, site, ["ann", "cyd"]))
            left = [user["user"] for event in watching.said for user in event["left"]]
            assert left == ["bob"]
