"""Readers that are really slow, over real sockets: what they missed can be read by anybody, in the
topic `_fanlog.drops`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanlog.sync
from fanlog.client.core.handshake import hello
from fanlog.errors import InvalidNameError
from fanlog.format.batch import check_batch
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, message_frame
from fanlog.format.header import KIND_BATCH
from fanlog.format.messages import GapNotice, Subscribe, decode
from fanlog.model import SlowPolicy
from tests.listeners.redis.wire import Wire, push
from tests.scenarios.broker_process import BrokerProcess
from tests.scenarios.raw_reader import PATIENT, read_frame

DROPS = "_fanlog.drops"
VALUE = bytes(100_000)
MESSAGES = 300
TAIL_BYTES = 1 << 20

# A record of the topic, as it is.
Drop = dict[str, Any]


def slow_reader(port: int, topic: str) -> socket.socket:
    """A subscription with the policy `skip` on a socket that holds little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect(("127.0.0.1", port))
    sock.settimeout(60)
    wanted = Subscribe(target=topic, policy=SlowPolicy.SKIP, durable="wall")
    sock.sendall(hello("dashboard") + message_frame(FrameKind.SUBSCRIBE, wanted, request=1, aux=1))
    kinds = [read_frame(sock)[0] for _ in range(2)]
    assert kinds == [FrameKind.WELCOME, FrameKind.OK], kinds
    return sock


def gaps_until_the_end(sock: socket.socket) -> list[GapNotice]:
    """What the reader is told that goes on reading, until it is where the topic ends. One gap as a
    rule; where the system was slow to take bytes for it there may have been one before."""
    gaps: list[GapNotice] = []
    offset = 0
    while offset < MESSAGES:
        kind, frame = read_frame(sock)
        if kind == FrameKind.GAP:
            gaps.append(decode(GapNotice, memoryview(frame)[FRAME_HEADER_BYTES:]))
            offset = gaps[-1].next
        elif kind == KIND_BATCH:
            offset = check_batch(frame).next_offset
    return gaps


def drops_of(log: fanlog.sync.Subscription, records: dict[str, int]) -> dict[str, list[Drop]]:
    """What is written of each client, until it is so many records."""
    told: dict[str, list[Drop]] = {client: [] for client in records}
    while any(missed_in(told[client]) < records[client] for client in records):
        drop = json.loads(log.next(60).value or b"")
        told[drop["client"]].append(drop)
    return told


def missed_in(drops: list[Drop]) -> int:
    return sum(drop["records"] for drop in drops)


def publish(client: fanlog.sync.Client, topic: str) -> None:
    for _ in range(MESSAGES):
        client.send(topic, VALUE)
    client.flush()


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(data, "--redis-port", "0", env=os.environ | PATIENT) as process:
        yield process


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
            gaps = gaps_until_the_end(native)
            missed = sum(gap.next - gap.first for gap in gaps)

            def skipped() -> int:
                return client.describe_topic("busy").counters.skipped_records

            # A subscriber of Redis goes through the same fan-out, and is known by its address.
            message = push("message", "busy", VALUE)
            received = 0
            while received // len(message) + skipped() - missed < MESSAGES:
                received += len(redis.quiet(0.1))
            theirs_missed = skipped() - missed
            told = drops_of(log, {"dashboard": missed, "billboard": theirs_missed})
            mine, theirs = told["dashboard"], told["billboard"]
            for drop in mine:
                assert (drop["kind"], drop["topic"], drop["durable"]) == ("skipped", "busy", "wall")
                assert drop["begin"] == 0
                assert drop["peer"] == "{}:{}".format(*native.getsockname())
            assert (mine[0]["first"], mine[-1]["next"]) == (gaps[0].first, gaps[-1].next)
            assert missed_in(mine) == missed > 0
            for drop in theirs:
                assert (drop["kind"], drop["peer"]) == ("skipped", redis.address)
            assert missed_in(theirs) == theirs_missed > 0
        with pytest.raises(InvalidNameError):
            client.publish(DROPS, b"rubbish")
    said = [json.loads(line) for line in tail(broker.url)]
    assert len(said) == len(mine) + len(theirs)
    assert all(drop in said for drop in mine + theirs)


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
                await reader.next(30)
                reading = asyncio.create_task(reader.next(30))
                await gaps.get()
                reading.cancel()
    async with fanlog.Broker(data) as broker, broker.subscribe(DROPS, start="earliest") as log:
        times = 0
        while times < 2:
            drop = json.loads((await log.next(30)).value or b"")
            assert (drop["kind"], drop["client"]) == ("skipped", "dashboard")
            times += drop["times"]


def tail(url: str) -> list[str]:
    """`fanlog tail` as an operator uses it."""
    command = [sys.executable, "-m", "fanlog", "tail", DROPS, "--url", url]
    ended = subprocess.run(
        [*command, "--no-follow", "--values-only"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.splitlines()
