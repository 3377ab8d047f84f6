"""Clients of a follower while another node becomes the primary."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import redis.asyncio

import fanlog
from fanlog.client.aio import Client
from fanlog.cluster.records import ClusterKeys
from fanlog.cluster.requests import request_key
from tests.cluster.three_nodes import PATIENCE_SECONDS, ThreeNodes, three_nodes, until


class EventReader:
    """Reads a topic's events at the web ports of these nodes. It connects again as a browser does,
    with the id of the last event."""

    def __init__(self, cluster: ThreeNodes, nodes: str, topic: str) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._topic = topic
        self.values: list[str] = []
        self.others: list[str] = []
        self.connections = 0
        self._last = ""

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                for node in self._nodes:
                    try:
                        await self._read(session, node)
                    except (aiohttp.ClientError, OSError):
                        await asyncio.sleep(0.05)

    async def _read(self, session: aiohttp.ClientSession, node: str) -> None:
        port = self._cluster.web_ports[node]
        url = f"http://127.0.0.1:{port}/v1/topics/{self._topic}/stream?start=earliest"
        headers = {"Last-Event-ID": self._last} if self._last else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with session.get(url, headers=headers, timeout=timeout) as answer:
            if answer.status != 200:
                await asyncio.sleep(0.05)
                return
            self.connections += 1
            event, id, data = "message", "", ""
            async for raw in answer.content:
                name, _, text = raw.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = text
                elif name == "id":
                    id = text
                elif name == "data":
                    data = text
                elif not name and data:
                    self._last = id or self._last
                    (self.values if event == "message" else self.others).append(data)
                    event, id, data = "message", "", ""


@asynccontextmanager
async def reading(cluster: ThreeNodes, nodes: str, topic: str) -> AsyncIterator[EventReader]:
    reader = EventReader(cluster, nodes, topic)
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def publish(client: Client, first: int, end: int) -> None:
    for number in range(first, end):
        await client.publish("t", json.dumps({"number": number}).encode())


def numbers(reader: EventReader) -> list[int]:
    """The numbers that were published, as far as they have come."""
    found = [re.search(r'"number": ?([0-9]+)', event) for event in reader.values]
    return [int(one[1]) for one in found if one is not None]


async def move(cluster: ThreeNodes, to: str) -> None:
    cluster.etcd.put(request_key(ClusterKeys("test"), "move", to), to.encode())
    await until(lambda: cluster.primary() == to)
    await cluster.whole()


async def test_readers_at_a_follower_stay_connected_while_another_node_becomes_the_primary(
    tmp_path: Path,
) -> None:
    async with three_nodes(tmp_path, front=True, every_listener=True) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        second, stays = (node for node in "abc" if node != first)
        listener = redis.asyncio.Redis(port=cluster.redis_ports[stays])
        subscribed = listener.pubsub(ignore_subscribe_messages=True)
        async with (
            await cluster.connect(stays) as client,
            reading(cluster, stays, "t") as reader,
        ):
            await client.create_topic("t", durability="os")
            await subscribed.subscribe("t")
            native = client.subscribe("t", start="earliest")
            async with native:
                await publish(client, 0, 20)
                await until(lambda: len(reader.values) == 20)
                before = reader.connections
                await move(cluster, second)
                await publish(client, 20, 40)
                await until(lambda: len(reader.values) == 40)
                assert numbers(reader) == list(range(40))
                # Nobody had to come again.
                assert reader.connections == before
                offsets = [(await native.next(PATIENCE_SECONDS)).offset for _ in range(40)]
                assert offsets == list(range(40))
                heard = 0
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while heard < 40:
                        heard += await subscribed.get_message(timeout=1.0) is not None
        await subscribed.aclose()
        await listener.aclose()


async def test_web_readers_of_all_nodes_miss_nothing_when_the_primary_is_lost(
    tmp_path: Path,
) -> None:
    async with three_nodes(tmp_path, front=True, every_listener=True) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        others = [node for node in "abc" if node != first]
        async with (
            await cluster.connect(first) as client,
            reading(cluster, first + others[0], "t") as moving,
            reading(cluster, others[0], "t") as one,
            reading(cluster, others[1], "t") as two,
        ):
            await client.create_topic("t", durability="os")
            await publish(client, 0, 20)
            await until(lambda: all(len(r.values) == 20 for r in (moving, one, two)))
            await cluster.nodes.pop(first).stop(hand_over=False)
            await until(cluster.primary)
            async with await cluster.connect(cluster.primary()) as there:
                await publish(there, 20, 40)
            await until(lambda: all(len(r.values) >= 40 for r in (moving, one, two)))
            for reader in (moving, one, two):
                assert numbers(reader) == list(range(40))
            follower = one if cluster.primary() == others[1] else two
            assert not [text for text in follower.others if "gap" in text]


class Publishing:
    """Publishes over HTTP and with Redis's PUBLISH at one node, one after the other."""

    def __init__(self, cluster: ThreeNodes, node: str) -> None:
        self._web = cluster.web_ports[node]
        self._redis = cluster.redis_ports[node]
        self._over = asyncio.Event()
        self.stored: list[str] = []
        self.errors: list[str] = []
        self._task = asyncio.create_task(self._run(f"p.{node}"))

    async def _run(self, topic: str) -> None:
        url = f"http://127.0.0.1:{self._web}/v1/topics/{topic}/messages"
        client = redis.asyncio.Redis(port=self._redis)
        number = 0
        async with aiohttp.ClientSession() as session:
            while not self._over.is_set():
                number += 1
                try:
                    async with session.post(url, data=f"web {number}") as answer:
                        assert answer.status == 200, await answer.text()
                    self.stored.append(f"web {number}")
                    await client.publish(topic, f"redis {number}")
                    self.stored.append(f"redis {number}")
                except (aiohttp.ClientError, OSError, redis.RedisError, AssertionError) as fault:
                    self.errors.append(repr(fault))
                await asyncio.sleep(0.01)
        await client.aclose()

    async def more(self, count: int) -> None:
        wanted = len(self.stored) + count
        await until(lambda: len(self.stored) >= wanted)

    async def finish(self) -> None:
        self._over.set()
        await self._task


async def test_publishes_at_a_follower_wait_for_the_next_primary(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, front=True, every_listener=True) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        others = [node for node in "abc" if node != first]
        for node in others:
            async with await cluster.connect(node):
                pass
        publishing = {node: Publishing(cluster, node) for node in others}
        for one in publishing.values():
            await one.more(10)
        await cluster.nodes.pop(first).stop(hand_over=False)
        await until(cluster.primary)
        for one in publishing.values():
            await one.more(10)
            await one.finish()
        (stayed,) = (node for node in others if node != cluster.primary())
        assert publishing[stayed].errors == []
        async with await cluster.connect(stayed) as client:
            for node, one in publishing.items():
                count = (await client.describe_topic(f"p.{node}")).records
                found = await _values(client, f"p.{node}", count)
                # The new primary's own clients were disconnected: they don't know of one publish.
                assert [value for value in found if value in set(one.stored)] == one.stored
                assert len(found) - len(one.stored) <= len(one.errors)


async def _values(client: Client, topic: str, count: int) -> list[str]:
    async with client.subscribe(topic, start="earliest") as reader:
        return [(await reader.next(PATIENCE_SECONDS)).text for _ in range(count)]


async def test_a_browser_at_a_follower_lands_at_the_primarys_dashboard(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, front=True, every_listener=True) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        second, follower = (node for node in "abc" if node != first)
        async with await cluster.connect(follower), aiohttp.ClientSession() as session:
            here = f"http://127.0.0.1:{cluster.web_ports[follower]}"

            async def lands(path: str) -> tuple[int, str]:
                accept = {"Accept": "text/html,application/xhtml+xml"}
                async with session.get(here + path, headers=accept) as answer:
                    return answer.status, str(answer.url)

            for primary in (first, second):
                if primary != first:
                    await move(cluster, primary)
                    async with await cluster.connect(follower):
                        pass
                there = f"http://127.0.0.1:{cluster.web_ports[primary]}"
                assert await lands("/") == (200, f"{there}/")
                assert await lands("/dashboard") == (200, f"{there}/dashboard/")
                assert await lands("/dashboard/") == (200, f"{there}/dashboard/")
                # What only a broker with the data can tell; and what any node answers itself.
                assert await lands("/v1/topic-list?limit=1") == (
                    200,
                    f"{there}/v1/topic-list?limit=1",
                )
                assert await lands("/v1/topics") == (200, f"{here}/v1/topics")
                assert await lands("/v1/status") == (200, f"{here}/v1/status")


async def test_a_reader_that_goes_to_another_node_after_a_move_gets_no_gap(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, front=True) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        here, to = (node for node in "abc" if node != first)
        async with await cluster.connect(first) as client:
            await client.create_topic("t", durability="os")
            await client.publish("t", b"0")
        addresses = ",".join(f"127.0.0.1:{cluster.ports[node]}" for node in (here, to))
        async with (
            fanlog.connect(f"fanlog://{addresses}", wait_seconds=PATIENCE_SECONDS) as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            assert (await reader.next(PATIENCE_SECONDS)).value == b"0"
            await move(cluster, to)
            # Of the next reign; the reader's connection has seen nothing of the move.
            for number in range(1, 10):
                async with await cluster.connect(to) as publisher:
                    await publisher.publish("t", str(number).encode())
                assert (await reader.next(PATIENCE_SECONDS)).value == str(number).encode()
            await cluster.stop(here)
            async with await cluster.connect(to) as publisher:
                await publisher.publish("t", b"10")
            assert (await reader.next(PATIENCE_SECONDS)).value == b"10"
