"""Readers that are really slow, over real sockets: what they missed can be read by anybody, in the
topic `_fanlog.drops`."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanlog.sync
from fanlog.client.core import hello
from fanlog.errors import InvalidNameError
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, message_frame
from fanlog.format.messages import GapNotice, Subscribe, decode
from fanlog.model import SlowPolicy
from tests.listeners.redis.wire import Wire, push
from tests.scenarios.broker_process import BrokerProcess
from tests.scenarios.raw_reader import read_frame
from tests.servers import free_port

DROPS = "_fanlog.drops"
VALUE = bytes(100_000)
MESSAGES = 300
TAIL_BYTES = 1 << 20


def slow_reader(port: int, topic: str) -> socket.socket:
    """A subscription with the policy `skip` on a socket that holds little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect(("127.0.0.1", port))
    sock.settimeout(30)
    wanted = Subscribe(target=topic, policy=SlowPolicy.SKIP, durable="wall")
    sock.sendall(hello("dashboard") + message_frame(FrameKind.SUBSCRIBE, wanted, request=1, aux=1))
    kinds = [read_frame(sock)[0] for _ in range(2)]
    assert kinds == [FrameKind.WELCOME, FrameKind.OK], kinds
    return sock


def first_gap(sock: socket.socket) -> GapNotice:
    """What the reader is told that goes on reading."""
    while True:
        kind, frame = read_frame(sock)
        if kind == FrameKind.GAP:
            return decode(GapNotice, memoryview(frame)[FRAME_HEADER_BYTES:])


def publish(client: fanlog.sync.Client, topic: str) -> None:
    for _ in range(MESSAGES):
        client.send(topic, VALUE)
    client.flush()


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    port = free_port()
    process = BrokerProcess(data, "--redis-port", str(port))
    process.redis_port = port
    with process:
        yield process


@pytest.mark.timeout(60)
def test_what_slow_readers_missed_is_in_a_topic_that_anybody_can_read(
    broker: BrokerProcess,
) -> None:
    with fanlog.sync.connect(broker.url) as client:
        client.create_topic("busy", durability="memory", tail_bytes=TAIL_BYTES)
        with (
            client.subscribe(DROPS, start="latest") as log,
            slow_reader(broker.port, "busy") as native,
            Wire(broker.redis_port) as redis,
        ):
            redis.tell("CLIENT", "SETNAME", "billboard", wanted=b"+OK\r\n")
            redis.tell("SUBSCRIBE", "busy", wanted=push("subscribe", "busy", 1))
            publish(client, "busy")
            gap = first_gap(native)
            mine = json.loads(log.next(20).value or b"")
            assert (mine["kind"], mine["topic"], mine["durable"]) == ("skipped", "busy", "wall")
            assert (mine["first"], mine["next"], mine["begin"]) == (gap.first, gap.next, 0)
            assert mine["records"] == gap.next - gap.first > 0
            assert mine["client"] == "dashboard"
            assert mine["peer"] == "{}:{}".format(*native.getsockname())
            # A subscriber of Redis goes through the same fan-out, and is known by its address.
            while redis.quiet(0.2):
                pass
            theirs = json.loads(log.next(20).value or b"")
            assert (theirs["kind"], theirs["peer"]) == ("skipped", redis.address)
            assert theirs["client"] == "billboard"
        with pytest.raises(InvalidNameError):
            client.publish(DROPS, b"rubbish")
        counters = client.describe_topic("busy").counters
    assert counters.skipped_records == mine["records"] + theirs["records"]
    said = tail(broker.url)
    assert [json.loads(line)["kind"] for line in said] == ["skipped", "skipped"]


@pytest.mark.timeout(60)
async def test_what_was_missed_last_is_written_when_the_broker_stops(data: Path) -> None:
    gaps: asyncio.Queue[fanlog.Gap] = asyncio.Queue()
    async with fanlog.Broker(data, name="dashboard") as broker:
        await broker.create_topic("busy", durability="memory", tail_bytes=TAIL_BYTES)
        async with broker.subscribe(
            "busy", policy="skip", window_bytes=4096, on_gap=gaps.put_nowait
        ) as reader:
            # Both within a second: what comes of the second one waits for its turn.
            for _ in range(2):
                for _ in range(30):
                    await broker.publish("busy", VALUE)
                await reader.next(10)
                reading = asyncio.create_task(reader.next(10))
                await gaps.get()
                reading.cancel()
    async with fanlog.Broker(data) as broker, broker.subscribe(DROPS, start="earliest") as log:
        times = 0
        while times < 2:
            drop = json.loads((await log.next(10)).value or b"")
            assert (drop["kind"], drop["client"]) == ("skipped", "dashboard")
            times += drop["times"]


def tail(url: str) -> list[str]:
    """`fanlog tail` as an operator uses it."""
    command = [sys.executable, "-m", "fanlog", "tail", DROPS, "--url", url]
    ended = subprocess.run(
        [*command, "--no-follow", "--values-only"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return ended.stdout.splitlines()
