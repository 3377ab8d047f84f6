"""Recovery: clients that are cut at random moments and come back with their last position get
exactly what they missed, thousands of times, while messages are published."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

import fanlog
from tests.edge.edge_process import EdgeProcess
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.recovering import Cut, EventFollower, SocketFollower
from tests.scenarios.broker_process import BrokerProcess

SEED = 12
TARGET = "load.*"


async def publish(site: Site, topics: list[str], stop: asyncio.Event) -> int:
    """Publishes numbers to all topics until it is told to stop; how many to each partition."""
    number = 0
    while not stop.is_set():
        for topic in topics:
            for _ in range(4):
                await site.broker.send(topic, str(number).encode())
                number += 1
        await asyncio.sleep(0.002)
    await site.broker.flush()
    return number


@pytest.mark.parametrize("kind", ["json", "binary", "events"])
async def test_a_client_that_is_cut_again_and_again_misses_nothing(
    serving: Serving, kind: str
) -> None:
    # Together with those below, more than 3,000 cuts.
    cycles, clients = 100, 10
    chance = random.Random(f"{SEED}-{kind}")
    async with serving(accepts_per_second_max=0) as site:
        topics = ["load.a", "load.b"]
        await site.broker.create_topic("load.a", partitions=2)
        stop = asyncio.Event()
        publishing = asyncio.create_task(publish(site, topics, stop))
        followers = [
            (EventFollower if kind == "events" else SocketFollower)(
                TARGET, random.Random(chance.random()), binary=kind == "binary"
            )
            for _ in range(clients)
        ]

        async def follow(follower: SocketFollower | EventFollower) -> None:
            for _ in range(cycles):
                with contextlib.suppress(Cut):
                    await follower.run("127.0.0.1", site.listener.port)

        await asyncio.gather(*(follow(follower) for follower in followers))
        stop.set()
        await publishing
        ends = {
            (topic, p.partition): p.visible_end
            for topic in topics
            for p in (await site.broker.describe_topic(topic)).partitions
        }
        for follower in followers:
            follower.until = ends
            await follower.run("127.0.0.1", site.listener.port)
            assert follower.next == ends
            assert not follower.gaps
            assert follower.cycles >= cycles


async def keep_publishing(url: str, stop: asyncio.Event) -> list[int]:
    """Publishes to two topics through whatever happens to the broker; how many to each."""
    counts = [0, 0]
    async with fanlog.connect(url) as client:
        while not stop.is_set():
            for i in range(2):
                await client.send(f"load.{i}", str(counts[i]).encode())
                counts[i] += 1
            await asyncio.sleep(0.002)
        await client.flush()
    return counts


async def test_clients_move_between_processes_that_die(tmp_path: Path) -> None:
    """A broker and an edge: clients use either, the broker is killed and started again, and in the
    end the edge is killed too."""
    chance = random.Random(SEED)
    flags = ("--http-port", "0")
    with (
        BrokerProcess(tmp_path / "data", *flags, log=tmp_path / "broker.log") as broker,
        EdgeProcess(broker.url, tmp_path / "edge.log") as edge,
    ):
        await asyncio.to_thread(edge.wait)
        stop = asyncio.Event()
        publishing = asyncio.create_task(keep_publishing(broker.url, stop))
        followers: list[SocketFollower | EventFollower] = [
            SocketFollower(TARGET, random.Random(chance.random())),
            SocketFollower(TARGET, random.Random(chance.random()), binary=True),
            EventFollower(TARGET, random.Random(chance.random())),
            SocketFollower("load.0", random.Random(chance.random())),
        ]

        async def follow(follower: SocketFollower | EventFollower, cycles: int) -> None:
            for _ in range(cycles):
                port = follower.chance.choice((broker.http_port, edge.http_port))
                with contextlib.suppress(Cut):
                    await follower.run("127.0.0.1", port)

        for _ in range(2):
            await asyncio.gather(*(follow(follower, 10) for follower in followers))
            broker.kill()
            await asyncio.to_thread(broker.start)
        await asyncio.gather(*(follow(follower, 10) for follower in followers))
        edge.kill()
        stop.set()
        counts = await publishing
        for follower in followers:
            follower.until = {
                (f"load.{i}", 0): count
                for i, count in enumerate(counts)
                if follower.target in (TARGET, f"load.{i}")
            }
            await follower.run("127.0.0.1", broker.http_port)
            assert follower.next == follower.until
            assert not follower.gaps


async def test_retention_that_passed_by_is_one_explicit_gap(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("load.a")
        follower = SocketFollower(TARGET, random.Random(SEED))
        for i in range(10):
            await site.broker.publish("load.a", str(i).encode())
        follower.until = {("load.a", 0): 10}
        await follower.run("127.0.0.1", site.listener.port)
        for i in range(10, 30):
            await site.broker.publish("load.a", str(i).encode())
        await site.broker.delete_records("load.a", {0: 20})
        follower.until = {("load.a", 0): 30}
        await follower.run("127.0.0.1", site.listener.port)
        (gap,) = follower.gaps
        assert [gap[end].split(".")[0] for end in ("from", "to")] == ["10", "20"]
        assert gap["reason"] == "retention"
        assert follower.next == {("load.a", 0): 30}
