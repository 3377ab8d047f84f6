"""`fanlog serve --log-level debug`: what an operator reads there, one event a line."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable

import pytest

import fanlog
from tests.cli.conftest import Serving

Serve = Callable[..., Serving]
SECRET = "correct-horse"
PAYLOAD = "nobody-reads-this-in-a-log"


def play(broker: Serving) -> None:
    """One of everything."""
    with fanlog.sync.connect(broker.url, name="billing\n\x1b[31mforged line") as client:
        client.create_topic("orders", partitions=2, durability="memory")
        for key in ("a", "b", "c"):
            client.publish("orders", PAYLOAD, key=key)
        with client.subscribe("orders", start="earliest") as orders:
            orders.next(timeout_seconds=30)
        with client.consume("orders", group="readers", reset="earliest") as member:
            member.next(timeout_seconds=30)
        with client.work("orders", queue="workers", reset="earliest") as worker:
            worker.next(timeout_seconds=30).ack()
        client.delete_topic("orders")


def speak_redis(broker: Serving) -> None:
    line = next(line for line in broker.banner if "redis://" in line)
    found = re.search(r"redis://127\.0\.0\.1:(\d+)", line)
    assert found is not None
    with socket.create_connection(("127.0.0.1", int(found[1])), 30) as sock:
        for command in (
            b"AUTH wrong",
            b"AUTH " + SECRET.encode(),
            b"CLIENT SETNAME web",
            b"HELLO 3",
            b"SUBSCRIBE news",
            b"PUBLISH news " + PAYLOAD.encode(),
            b"UNSUBSCRIBE news",
        ):
            sock.sendall(command + b"\r\n")
            sock.recv(4096)


EVENTS = {
    "a connection": r"127\.0\.0\.1:\d+: connected to the native port \d+",
    "a hello": r"hello from client billing",
    "a new topic": r"topic orders created: number \d+, 2 partitions, durability memory",
    "an opened topic": r"topic orders opened",
    "publishes": r"publish: \d messages to topic orders, ends 0:\d, 1:\d",
    "a subscription": r"subscription \d+ to orders from earliest",
    "its end": r"subscription \d+ to orders ended",
    "a member": r"group readers: member .+ joined",
    "a rebalance": r"group readers: rebalanced, partitions by member: .+ 2",
    "a member that leaves": r"group readers: member .+ left",
    "a worker": r"works on orders in queue workers, prefetch \d+",
    "outcomes": r"queue workers: worker .+ settles, 1 outcomes",
    "a deleted topic": r"topic orders deleted",
    "a disconnection": r"disconnected: the client said goodbye; \d+ bytes received, \d+ sent",
    "a Redis connection": r"connected to the Redis port",
    "a wrong password": r": a wrong password",
    "a Redis client's name": r": is client web",
    "a Redis hello": r"hello from client web, RESP3",
    "a Redis subscription": r": subscribe news",
    "its end there": r": unsubscribe news",
    "a Redis publish": r"publish: 1 messages to topic news",
    "a Redis disconnection": r"disconnected: the client closed",
}


@pytest.mark.parametrize("as_json", [False, True])
def test_every_event_is_one_line_without_payloads_or_secrets(serve: Serve, as_json: bool) -> None:
    flags = ("--log-json",) if as_json else ()
    broker = serve("--memory", "--log-level", "debug", *flags, FANLOG_REDIS_PASSWORD=SECRET)
    play(broker)
    speak_redis(broker)
    said = broker.stop().err
    lines = said.splitlines()
    if as_json:
        messages = [json.loads(line)["message"] for line in lines]
    else:
        assert all(re.match(r"\d{4}-\d\d-\d\d \S+ \w+ +fanlog", line) for line in lines), said
        messages = lines
    missing = [
        event
        for event, words in EVENTS.items()
        if not any(re.search(words, message, re.DOTALL) for message in messages)
    ]
    assert not missing, said
    # Ten times a second it says what has come: on a slow machine that is not all at once.
    published = re.findall(r"publish: (\d) messages to topic orders", said)
    assert sum(map(int, published)) == 3, said
    assert PAYLOAD not in said
    assert SECRET not in said
    assert "\x1b" not in said, "no terminal obeys what a client calls itself"
    assert not [line for line in lines if line.startswith("forged line")]


def test_a_broker_that_is_not_asked_says_nothing_of_it(serve: Serve) -> None:
    broker = serve("--memory")
    play(broker)
    said = broker.stop().err
    assert "orders" not in said
