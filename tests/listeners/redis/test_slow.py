"""Subscribers that do not keep up: nobody else notices, and what they miss is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanlog.sync
from tests.listeners.redis.wire import Wire, command, push
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

VALUE_BYTES = 10_000
MESSAGES = 4000
TAIL_BYTES = 1 << 20
WAIT_S = 100


def value(i: int) -> bytes:
    return b"%06d" % i + b"x" * (VALUE_BYTES - 6)


def publish_all(publisher: Wire, got: list[int]) -> bytes:
    """All messages, no more at once than the tail holds beyond what a quick reader has got; the
    replies."""
    replies = b""
    for start in range(0, MESSAGES, 100):
        deadline = time.monotonic() + WAIT_S
        while len(got) < start:
            assert time.monotonic() < deadline, f"only {len(got)} messages came"
            time.sleep(0.001)
        many = [command("PUBLISH", "busy", value(i)) for i in range(start, start + 100)]
        publisher.send_raw(b"".join(many))
        replies += publisher.take(4 * 100)
    return replies


def numbers(wire: Wire, channel: str, last: int, got: list[int] | None = None) -> list[int]:
    """The messages that come, up to the one with this number."""
    one = push("message", channel, value(0))
    at = one.index(b"000000")
    got = [] if got is None else got
    while not got or got[-1] != last:
        message = wire.take(len(one))
        got.append(int(message[at : at + 6]))
        assert message == push("message", channel, value(got[-1]))
    return got


def numbers_until_live(wire: Wire, port: int) -> list[int]:
    """What a reader gets that goes on reading, until it gets what is published just then."""
    done = threading.Event()

    def publish() -> None:
        with Wire(port) as publisher:
            while not done.wait(0.05):
                publisher.tell("PUBLISH", "busy", value(MESSAGES), wanted=b":2\r\n")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        return numbers(wire, "busy", MESSAGES)
    finally:
        done.set()
        thread.join(WAIT_S)


@pytest.fixture
def slow_broker(data: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    port = free_port()
    env = {"FANLOG_REDIS_CHANNEL_TAIL_BYTES": str(TAIL_BYTES), "PATH": ""}
    policy = getattr(request, "param", "skip")
    env["FANLOG_REDIS_SLOW_POLICY"] = policy
    process = BrokerProcess(data, "--redis-port", str(port), env=env)
    process.redis_port = port
    with process:
        yield process


def read_in_background(wire: Wire, channel: str) -> tuple[threading.Thread, list[int]]:
    got: list[int] = []

    def read() -> None:
        numbers(wire, channel, MESSAGES - 1, got)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, got


def test_a_slow_subscriber_skips_is_counted_and_stays_while_others_get_all(
    slow_broker: BrokerProcess,
) -> None:
    port = slow_broker.redis_port
    with Wire(port) as slow, Wire(port) as quick, Wire(port) as asker:
        for wire in (slow, quick):
            wire.tell("SUBSCRIBE", "busy", wanted=push("subscribe", "busy", 1))
        before = slow_broker.resident_bytes()
        thread, got = read_in_background(quick, "busy")
        with Wire(port) as publisher:
            assert publish_all(publisher, got) == b":2\r\n" * MESSAGES
        thread.join(WAIT_S)
        assert got == list(range(MESSAGES))
        # The kernel holds some of it; the broker no more than the tail and what was rendered.
        assert slow_broker.resident_bytes() - before < 30 << 20
        seen = numbers_until_live(slow, port)
        assert seen == sorted(set(seen))
        assert len(seen) < MESSAGES
        with fanlog.sync.connect(slow_broker.url) as client:
            counters = client.topics("busy")[0].counters
        assert counters.skips >= 1
        assert counters.skipped_records >= MESSAGES + 1 - len(seen)
        asker.send("INFO", "stats")
        size = int(asker.take_until(b"\r\n")[1:])
        stats = asker.take(size + 2)
        assert b"pubsub_skipped_messages:%d\r\n" % counters.skipped_records in stats
        slow.send("PING")
        live, pong = push("message", "busy", value(MESSAGES)), push("pong", "")
        while (begin := slow.take(len(pong))) == live[: len(pong)]:
            slow.expect(live[len(pong) :])
        assert begin == pong


@pytest.mark.parametrize("slow_broker", ["disconnect"], indirect=True)
def test_a_subscriber_may_be_cut_off_instead(slow_broker: BrokerProcess) -> None:
    port = slow_broker.redis_port
    with Wire(port) as slow, Wire(port) as quick:
        for wire in (slow, quick):
            wire.tell("SUBSCRIBE", "busy", wanted=push("subscribe", "busy", 1))
        thread, got = read_in_background(quick, "busy")
        with Wire(port) as publisher:
            publish_all(publisher, got)
            thread.join(WAIT_S)
            assert got == list(range(MESSAGES))
            deadline = time.monotonic() + WAIT_S
            publisher.send("PUBSUB", "NUMSUB", "busy")
            while publisher.take(18)[-3:] != b"1\r\n" and time.monotonic() < deadline:
                time.sleep(0.1)
                publisher.send("PUBSUB", "NUMSUB", "busy")
        with fanlog.sync.connect(slow_broker.url) as client:
            assert client.topics("busy")[0].counters.disconnects == 1


@pytest.mark.parametrize("slow_broker", ["catch-up"], indirect=True)
def test_a_subscriber_of_a_topic_on_disk_may_get_everything(slow_broker: BrokerProcess) -> None:
    port = slow_broker.redis_port
    with (
        fanlog.sync.connect(slow_broker.url) as client,
        Wire(port) as slow,
        Wire(port) as quick,
    ):
        client.create_topic("busy", tail_bytes=TAIL_BYTES)
        for wire in (slow, quick):
            wire.tell("SUBSCRIBE", "busy", wanted=push("subscribe", "busy", 1))
        thread, got = read_in_background(quick, "busy")
        with Wire(port) as publisher:
            assert publish_all(publisher, got) == b":2\r\n" * MESSAGES
        thread.join(WAIT_S)
        assert got == list(range(MESSAGES))
        assert numbers(slow, "busy", MESSAGES - 1) == list(range(MESSAGES))


def test_the_commands_of_a_subscriber_that_lags_are_answered_after_its_messages(
    slow_broker: BrokerProcess,
) -> None:
    port = slow_broker.redis_port
    with Wire(port) as slow, Wire(port) as publisher:
        slow.tell("SUBSCRIBE", "lag", wanted=push("subscribe", "lag", 1))
        count = 40
        data = b"y" * 200_000
        for _ in range(count):
            publisher.tell("PUBLISH", "lag", data, wanted=b":1\r\n")
        slow.send_raw(command("PING", "x") + command("UNSUBSCRIBE", "lag"))
        one = push("message", "lag", data)
        got = 0
        while (begin := slow.take(13)) == one[:13]:
            assert slow.take(len(one) - 13) == one[13:]
            got += 1
        assert begin + slow.take(len(push("pong", "x")) - 13) == push("pong", "x")
        slow.expect(push("unsubscribe", "lag", 0))
        assert 0 < got <= count
