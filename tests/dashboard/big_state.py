"""A big broker, made as quickly as clients can: topics, groups without members, dead letters of
jobs that were rejected, and connections that do nothing.

Law: everything is made through the broker's own API, so that it is what such a broker would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp

import fanlog
from fanlog.bench.environment import raise_open_files_limit
from fanlog.bench.wires.base import connect
from fanlog.bench.wires.fanlog import ask, greet
from fanlog.client.aio import Client
from fanlog.format.frames import FrameKind
from fanlog.format.messages import Subscribe, Subscribed

OPEN_FILES = 20_000
AT_A_TIME = 500
CONNECTING_PROCESSES = 2
REASONS = 7
JOBS = "jobs.mail"
QUEUE = "mailers"
DEAD = f"dead.{JOBS}"
ROOM = "room.0"
SETTINGS = """\
[listener]
port = 0
idle_timeout_seconds = 86400
[redis]
port = -1
[web]
port = 0
ping_seconds = 3600
[telemetry]
slow_loop_ms = 20
"""

# What is being made, how many are made, and of how many.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How big it is."""

    topics: int = 100_000
    groups: int = 15_000
    connections: int = 10_000
    dead_letters: int = 500_000
    rooms: int = 100


@dataclass(frozen=True)
class BigBroker:
    """A `fanlog serve` in a process of its own. Its log is in `log`."""

    process: subprocess.Popen[str]
    url: str
    site: str
    log: Path


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[BigBroker]:
    raise_open_files_limit(OPEN_FILES)
    config, log = folder / "fanlog.toml", folder / "broker.log"
    config.write_text(SETTINGS)
    with log.open("w") as err:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fanlog",
                "serve",
                "--config",
                config,
                "--data",
                folder / "data",
            ],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        assert process.stdout is not None
        lines = "".join(process.stdout.readline() for _ in range(7))
        urls = re.findall(r"fanlog://\S+", lines), re.findall(r"http://[^/]+", lines)
        assert all(urls), f"the broker did not start: {log.read_text()}"
        yield BigBroker(process, urls[0][0], urls[1][0], log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def topic_name(number: int) -> str:
    """As people name them: a service, a region and an event."""
    return f"shop.{number % 97}.region-{number % 13}.event-{number}"


async def fill(client: Client, size: Size, progress: Progress) -> None:
    """Topics, groups and dead letters."""
    await _each(size.topics, lambda n: client.create_topic(topic_name(n)), "topics", progress)
    for number in range(100):
        await client.publish_many(topic_name(number), [b'{"n": %d}' % n for n in range(200)])
    await _each(
        size.groups,
        lambda n: client.groups.reset(f"group-{n}", "earliest", topic_name(n % 100)),
        "groups",
        progress,
    )
    await _dead_letters(client, size.dead_letters, progress)


async def _each(
    count: int, make: Callable[[int], Awaitable[object]], what: str, progress: Progress
) -> None:
    numbers = iter(range(count))
    done = 0

    async def worker() -> None:
        nonlocal done
        for number in numbers:
            await make(number)
            done += 1
            if done % 100 == 0:
                progress(what, done, count)

    await asyncio.gather(*(worker() for _ in range(min(count, AT_A_TIME))))
    progress(what, count, count)


async def _dead_letters(client: Client, count: int, progress: Progress) -> None:
    """Jobs that a worker rejects, many at a time."""
    await client.create_topic(JOBS)
    for first in range(0, count, 1000):
        several = range(first, min(count, first + 1000))
        await client.publish_many(JOBS, [b'{"mail": %d}' % number for number in several])
    done = 0
    async with client.work(JOBS, queue=QUEUE, prefetch=1000) as worker:
        while done < count:
            batch = await worker.next_batch()
            await batch.reject(f"SMTP error {550 + batch.first // 1000 % REASONS}")
            done += batch.next - batch.first
            progress("dead letters", done, count)


@contextlib.contextmanager
def connected(broker: BigBroker, count: int, progress: Progress) -> Generator[None]:
    """So many connections from a few processes, each with a subscription."""
    context = multiprocessing.get_context("spawn")
    port = int(broker.url.rpartition(":")[2])
    share = -(-count // CONNECTING_PROCESSES)
    members = []
    try:
        for first in range(0, count, share):
            ours, theirs = context.Pipe()
            given = (theirs, port, first, min(share, count - first))
            process = context.Process(target=_connect, args=given, daemon=True)
            process.start()
            theirs.close()
            members.append((process, ours))
        waiting, done = [ours for _, ours in members], 0
        while done < count:
            for ours in multiprocessing.connection.wait(waiting):
                assert isinstance(ours, Connection)
                done += ours.recv()
            progress("connections", done, count)
        yield
    finally:
        for process, ours in members:
            ours.close()
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()


def _connect(parent: Connection, port: int, first: int, count: int) -> None:
    """Connects, says so, and stays until the parent is gone."""
    raise_open_files_limit(OPEN_FILES)
    sockets: list[socket.socket] = []
    for number in range(first, first + count):
        sock = connect(port)
        greet(sock)
        wanted = Subscribe(target=topic_name(number % 100))
        ask(sock, FrameKind.SUBSCRIBE, wanted, Subscribed)
        sockets.append(sock)
        if len(sockets) % 100 == 0:
            parent.send(100)
    parent.send(len(sockets) % 100)
    with contextlib.suppress(EOFError, OSError):
        parent.recv()


@contextlib.asynccontextmanager
async def in_rooms(broker: BigBroker, rooms: int) -> AsyncIterator[None]:
    """Some browsers in rooms."""
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
        for number in range(rooms):
            entered = http.ws_connect(f"{broker.site}/v1/ws")
            ws = await stack.enter_async_context(entered)
            await ws.send_json(
                {
                    "op": "subscribe",
                    "target": f"room.{number // 2}",
                    "presence": {"name": f"{number}"},
                }
            )
        yield


async def wait_until_quiet(site: str) -> None:
    """A broker that has just been filled still compacts and writes."""
    async with aiohttp.ClientSession(site) as http:
        for _ in range(5):
            async with http.get("/v1/health") as answer:
                await answer.read()
            await asyncio.sleep(1)


async def connect_client(broker: BigBroker) -> Client:
    return await fanlog.connect(broker.url, delivery_timeout_seconds=600)
