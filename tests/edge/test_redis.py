"""Edges of an existing Redis: the same offsets everywhere, recovery, and what applications publish
by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

import fanlog
from fanlog.client.aio import Client
from fanlog.config import ClientOptions, Config, EdgeOptions
from fanlog.edge.redis_bus import RedisBus, RedisEdge
from fanlog.errors import InvalidNameError, MessagesLostError, NotSupportedError
from fanlog.listeners.web.ports import MessageToPublish
from tests.edge.stage import PATIENCE_SECONDS, until
from tests.servers import Server, find_program, redis_server


class Stand:
    """An edge, its bus, and a reader's client of its core."""

    def __init__(self, node: RedisEdge, client: Client) -> None:
        self.node = node
        self.bus = node.make_bus()
        self.client = client
        assert isinstance(self.bus, RedisBus)

    async def publish(self, topic: str, *values: str, dedupe: str = "") -> list[int]:
        messages = [MessageToPublish(value.encode()) for value in values]
        published = await self.bus.publish(topic, messages, dedupe=dedupe)
        return [one.offset for one in published]


@asynccontextmanager
async def edge_of(url: str, **options: int | float) -> AsyncIterator[Stand]:
    config = Config(edge=EdgeOptions(**options))  # type: ignore[arg-type]
    node = RedisEdge(url, url, config)
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


async def test_messages_have_the_same_place_on_every_edge(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with edge_of(server.url) as one, edge_of(server.url) as other:
            async with (
                one.client.subscribe("room") as here,
                other.client.subscribe("room") as there,
            ):
                message = MessageToPublish(b"hello", b"k", {"h": b"v"})
                (published,) = await one.bus.publish("room", [message])
                a = await here.next(PATIENCE_SECONDS)
                b = await there.next(PATIENCE_SECONDS)
                assert a.batch.data == b.batch.data
                assert (a.value, a.key, a.headers["h"]) == (b"hello", b"k", b"v")
                position = here.positions[0]
                assert published.position == f"1.{position.epoch}.{position.number}"
                await asyncio.gather(
                    *(edge.publish("room", f"{i}") for i in range(50) for edge in (one, other))
                )
                first, second = await texts(here, 100), await texts(there, 100)
                assert first == second
            # History, from an edge that has forgotten nothing and one that never had it.
            async with edge_of(server.url) as third:
                async with third.client.subscribe("room", start="earliest") as late:
                    assert await texts(late, 101) == ["hello", *first]
                async with third.client.subscribe("room", start=99) as late:
                    assert await texts(late, 2) == first[98:]
                with pytest.raises(NotSupportedError):
                    await third.bus.request("room", MessageToPublish(b"?"), 1.0)


async def test_a_publish_that_is_repeated_is_stored_once(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with edge_of(server.url) as one, edge_of(server.url) as other:
            assert await one.publish("room", "a", "b", dedupe="x") == [0, 1]
            assert await other.publish("room", "a", "b", dedupe="x") == [0, 1]
            assert await other.publish("room", "c", dedupe="y") == [2]


async def test_channels_of_the_edges_are_nobody_elses(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with edge_of(server.url, linger_seconds=0.0) as one, edge_of(server.url) as other:
            heard: list[bytes] = []
            one.bus.on_signal("x", heard.append)
            async with one.client.subscribe("room") as here, one.client.subscribe(">"):
                # Whoever leaves one of these would take it from all others.
                for name in ("fanlog:live:room", "fanlog:signal:x"):
                    with pytest.raises(InvalidNameError):
                        await one.bus.follow(name, wildcard=False)
                await other.publish("room", "a")
                assert await texts(here, 1) == ["a"]
                other.bus.signal("x", b"1")
                await until(lambda: heard)
                other.bus.signal("x", b"2")
                await until(lambda: b"2" in heard)
                # Signals come once, also to one that follows everything.
                await other.publish("room", "b")
                assert await texts(here, 1) == ["b"]
                assert heard == [b"1", b"2"]


async def test_an_edge_stops_while_it_takes_a_message_in(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        asked = asyncio.Event()

        async def busy(*arguments: object) -> int:
            """The library may take a cancellation for itself when it comes with the answer."""
            asked.set()
            try:
                await asyncio.sleep(PATIENCE_SECONDS)
            except asyncio.CancelledError:
                return 1
            return 0

        async with edge_of(server.url) as one, one.client.subscribe("room"):
            one.node.upstream.line.redis.eval = busy
            redis = Redis.from_url(server.url)
            await redis.publish("room", "x")
            await redis.aclose()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asked.wait()


async def test_a_topic_that_redis_evicted_begins_anew(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        async with edge_of(server.url) as one, one.client.subscribe("room") as here:
            assert await one.publish("room", "a", "b") == [0, 1]
            assert await texts(here, 2) == ["a", "b"]
            await redis.delete("fanlog:topic:room")
            assert await one.publish("room", "c", dedupe="1:x") == [0]
            with pytest.raises(MessagesLostError):
                await here.next(PATIENCE_SECONDS)
            assert await texts(here, 1) == ["c"]
            # Another topic and id that are the same text together.
            assert await one.publish("room:1", "d", dedupe="x") == [0]
            assert await one.publish("room:1", "e", dedupe="y") == [1]
        await redis.aclose()


async def test_what_applications_publish_is_taken_in_once_by_all_edges(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        heard = redis.pubsub()
        await heard.subscribe("room")
        async with edge_of(server.url) as one, edge_of(server.url) as other:
            async with (
                one.client.subscribe("room") as here,
                one.client.subscribe("ro.*") as pattern,
                other.client.subscribe("room") as there,
                other.client.subscribe(">") as everything,
            ):
                for i in range(20):
                    await redis.publish("room", f"app {i % 3}")
                    if i % 4 == 0:
                        await one.publish("room", f"edge {i}")
                first = await texts(here, 25)
                assert await texts(there, 25) == first
                assert await texts(everything, 25) == first
                own = [text for text in first if text.startswith("app")]
                assert own == [f"app {i % 3}" for i in range(20)]
                assert [t for t in first if t.startswith("edge")] == [
                    f"edge {i}" for i in range(0, 20, 4)
                ]
                await redis.publish("ro.x", "by pattern")
                assert await texts(pattern, 1) == ["by pattern"]
            # They are kept like all others.
            async with (
                edge_of(server.url) as third,
                third.client.subscribe("room", start="earliest") as late,
            ):
                assert await texts(late, 25) == first
        # And a plain subscriber has heard each of them once.
        plain: list[str] = []
        while len(plain) < 25:
            message = await heard.get_message(
                ignore_subscribe_messages=True, timeout=PATIENCE_SECONDS
            )
            if message is not None:
                plain.append(message["data"].decode())
        assert sorted(plain) == sorted(first)
        await heard.aclose()
        await redis.aclose()


async def test_many_readers_are_one_subscription_at_redis(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        async with edge_of(server.url, linger_seconds=0.05) as edge:
            readers = [edge.client.subscribe("room") for _ in range(100)]
            await asyncio.gather(*(reader.start() for reader in readers))
            assert await redis.pubsub_numsub("room") == [(b"room", 1)]
            await edge.publish("room", "x")
            for reader in readers:
                assert await texts(reader, 1) == ["x"]
                await reader.close()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await redis.pubsub_numsub("room"))[0][1]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await redis.aclose()


async def test_readers_outlive_a_lost_connection(tmp_path: Path) -> None:
    states: list[bool] = []
    with redis_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        async with (
            edge_of(server.url) as one,
            edge_of(server.url) as other,
            one.client.subscribe("room") as here,
            other.client.subscribe("room") as there,
        ):
            one.node.on_state.append(states.append)
            await one.publish("room", "before")
            assert await texts(here, 1) == await texts(there, 1) == ["before"]
            # Cut off without a word: messages go by meanwhile.
            await redis.client_kill_filter(_type="pubsub")
            await other.publish("room", "meanwhile")
            assert await texts(here, 1) == ["meanwhile"]
            assert await texts(there, 1) == ["meanwhile"]
            await until(lambda: one.node.up and other.node.up and len(states) > 1)
            assert states[:2] == [False, True]
        await redis.aclose()


async def test_readers_outlive_a_killed_redis(tmp_path: Path) -> None:
    flags = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_server(tmp_path, *flags) as server:
        async with edge_of(server.url) as edge, edge.client.subscribe("room") as reader:
            await edge.publish("room", "a", "b")
            assert await texts(reader, 2) == ["a", "b"]
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not edge.node.up)
            assert edge.node.core.status().state == "degraded"
            with restarted(server, tmp_path, *flags):
                await until(lambda: edge.node.up)
                assert await edge.publish("room", "c") == [2]
                assert await texts(reader, 1) == ["c"]
                async with edge.client.subscribe("room", start="earliest") as late:
                    assert await texts(late, 3) == ["a", "b", "c"]


async def test_a_redis_that_lost_its_end_is_one_explicit_gap(tmp_path: Path) -> None:
    """It keeps nothing on disk: all is lost. What comes then has the same offsets."""
    with redis_server(tmp_path) as server:
        async with edge_of(server.url) as edge, edge.client.subscribe("room") as reader:
            await edge.publish("room", "a", "b")
            assert await texts(reader, 2) == ["a", "b"]
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not edge.node.up)
            with restarted(server, tmp_path):
                await until(lambda: edge.node.up)
                with pytest.raises(MessagesLostError) as lost:
                    await reader.next(PATIENCE_SECONDS)
                assert lost.value.reason == "reset"
                await edge.publish("room", "new", "newer", "newest")
                assert await texts(reader, 3) == ["new", "newer", "newest"]


@contextmanager
def restarted(server: Server, folder: Path, *flags: str) -> Iterator[None]:
    """The same Redis once more, at its port."""
    program = find_program("redis-server", "Debian's package redis-server has it")
    fixed = ["--bind", server.host, "--port", str(server.port), "--dir", str(folder)]
    command = [program, *fixed, "--save", "", "--appendonly", "no", *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


async def test_a_redis_that_was_emptied_is_one_explicit_gap(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        async with edge_of(server.url) as edge, edge.client.subscribe("room") as reader:
            await edge.publish("room", "a", "b", "c")
            assert await texts(reader, 3) == ["a", "b", "c"]
            await redis.flushall()
            await edge.publish("room", "new")
            with pytest.raises(MessagesLostError) as lost:
                await reader.next(PATIENCE_SECONDS)
            assert lost.value.reason == "reset"
            assert await texts(reader, 1) == ["new"]
        await redis.aclose()


async def test_what_redis_has_trimmed_is_a_gap_that_names_the_offsets(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--stream-node-max-entries", "10") as server:
        async with edge_of(server.url, history_messages=20) as edge:
            for start in range(0, 100, 10):
                await edge.publish("room", *(str(start + i) for i in range(10)))
            async with edge.client.subscribe("room", start=5) as reader:
                with pytest.raises(MessagesLostError) as lost:
                    await reader.next(PATIENCE_SECONDS)
                assert (lost.value.first, lost.value.reason) == (5, "retention")
                assert await texts(reader, 1) == [str(lost.value.next)]


async def test_signals_reach_all_edges(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with edge_of(server.url) as one, edge_of(server.url) as other:
            heard: list[tuple[int, bytes]] = []
            one.bus.on_signal("presence", lambda data: heard.append((1, data)))
            other.bus.on_signal("presence", lambda data: heard.append((2, data)))

            def both() -> bool:
                one.bus.signal("presence", b"x")
                return {(1, b"x"), (2, b"x")} <= set(heard)

            await until(both)


async def test_edges_that_come_and_go_take_each_message_in_once(tmp_path: Path) -> None:
    """Edges that have just begun to listen agree with those that have listened for long."""
    with redis_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        async with edge_of(server.url) as one, one.client.subscribe("room") as reader:
            for i in range(10):
                await redis.publish("room", f"{i}")
            assert await texts(reader, 10) == [str(i) for i in range(10)]

            async def publish() -> None:
                for i in range(10, 110):
                    await redis.publish("room", f"{i}")
                    await asyncio.sleep(0.002)

            publishing = asyncio.create_task(publish())
            while not publishing.done():
                async with (
                    edge_of(server.url, linger_seconds=0.0) as other,
                    other.client.subscribe("room"),
                    other.client.subscribe(">"),
                ):
                    await asyncio.sleep(0.01)
            await publishing
            assert await texts(reader, 100) == [str(i) for i in range(10, 110)]
            assert await one.publish("room", "last") == [110]
        await redis.aclose()
