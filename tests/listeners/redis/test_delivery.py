"""Who gets what, and in which order, over raw connections: alike from Redis and from Fanlog."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.listeners.redis.wire import Wire, command, push

_numbers = count()

PATTERNS = [
    *b"h?llo h*llo h[ae]llo h[^e]llo h[a-b]llo h[b-a]llo h\\*llo h[*]llo h\\[llo h[[]llo".split(),
    *b"h\\\\llo * ** ?* *o*l* h[ h[a [] [^] a[-]b a[+--]b \\ h\\ *\\ [\\]] ] h[^a-x]llo".split(),
    b"",
]


@pytest.fixture
def name() -> str:
    """A channel that no other test uses."""
    return f"ch{next(_numbers)}"


@pytest.fixture
def wires(port: int) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(port)) for _ in range(5)]


def subscribed(wire: Wire, *names: str) -> None:
    wire.send("SUBSCRIBE", *names)
    for i, name in enumerate(names, 1):
        wire.expect(push("subscribe", name, i))


def test_every_subscriber_gets_every_message_in_its_order(wires: list[Wire], name: str) -> None:
    publisher, *readers = wires
    for reader in readers:
        subscribed(reader, name)
    publisher.send_raw(b"".join(command("PUBLISH", name, f"m{i}") for i in range(1000)))
    publisher.expect(b":4\r\n" * 1000)
    for reader in readers:
        reader.expect(b"".join(push("message", name, f"m{i}") for i in range(1000)))


def test_publish_counts_each_channel_and_each_pattern(wires: list[Wire], name: str) -> None:
    publisher, first, second, third, _ = wires
    publisher.tell("PUBLISH", name, "0", wanted=b":0\r\n")
    subscribed(first, name)
    publisher.tell("PUBLISH", name, "1", wanted=b":1\r\n")
    second.tell("PSUBSCRIBE", f"{name}*", wanted=push("psubscribe", f"{name}*", 1))
    publisher.tell("PUBLISH", name, "2", wanted=b":2\r\n")
    second.expect(push("pmessage", f"{name}*", name, "2"))
    second.tell("PSUBSCRIBE", f"?{name[1:]}", wanted=push("psubscribe", f"?{name[1:]}", 2))
    publisher.tell("PUBLISH", name, "3", wanted=b":3\r\n")
    third.tell("PSUBSCRIBE", f"{name}*", wanted=push("psubscribe", f"{name}*", 1))
    publisher.tell("PUBLISH", name, "4", wanted=b":4\r\n")
    first.close()
    while True:
        publisher.send("PUBSUB", "NUMSUB", name)
        if publisher.take(len(f"*2\r\n${len(name)}\r\n{name}\r\n:0\r\n")).endswith(b":0\r\n"):
            break
    publisher.tell("PUBLISH", name, "5", wanted=b":3\r\n")


def test_messages_of_several_channels_keep_the_publishers_order(
    wires: list[Wire], name: str
) -> None:
    publisher, reader, *_ = wires
    names = [f"{name}.{i}" for i in range(3)]
    subscribed(reader, *names)
    order = [names[i * i % 3] for i in range(300)]
    publisher.send_raw(b"".join(command("PUBLISH", c, str(i)) for i, c in enumerate(order)))
    publisher.expect(b":1\r\n" * 300)
    reader.expect(b"".join(push("message", c, str(i)) for i, c in enumerate(order)))


def test_a_pattern_sees_all_channels_in_the_publishers_order(wires: list[Wire], name: str) -> None:
    publisher, reader, *_ = wires
    pattern = f"{name}:*"
    reader.tell("PSUBSCRIBE", pattern, wanted=push("psubscribe", pattern, 1))
    order = [f"{name}:{i % 7}" for i in range(200)]
    publisher.send_raw(b"".join(command("PUBLISH", c, str(i)) for i, c in enumerate(order)))
    publisher.expect(b":1\r\n" * 200)
    reader.expect(b"".join(push("pmessage", pattern, c, str(i)) for i, c in enumerate(order)))


def test_who_has_channel_and_pattern_gets_each_message_twice_one_after_the_other(
    wires: list[Wire], name: str
) -> None:
    publisher, reader, *_ = wires
    pattern = f"{name}*"
    reader.tell("PSUBSCRIBE", pattern, wanted=push("psubscribe", pattern, 1))
    reader.tell("SUBSCRIBE", name, wanted=push("subscribe", name, 2))
    publisher.send_raw(b"".join(command("PUBLISH", name, str(i)) for i in range(20)))
    publisher.expect(b":2\r\n" * 20)
    for i in range(20):
        reader.expect(push("message", name, str(i)) + push("pmessage", pattern, name, str(i)))


def test_what_was_published_before_a_subscription_is_not_seen(wires: list[Wire], name: str) -> None:
    publisher, *_ = wires
    publisher.send_raw(
        command("HELLO", "3")
        + command("PUBLISH", name, "before")
        + command("SUBSCRIBE", name)
        + command("PUBLISH", name, "after")
        + command("UNSUBSCRIBE", name)
        + command("PUBLISH", name, "late")
        + command("PING", "end")
    )
    answer = b""
    while not answer.endswith(b"$3\r\nend\r\n"):
        answer += publisher.take(1)
    wanted = (
        b":0\r\n"
        + push("subscribe", name, 1, mark=b">")
        + push("message", name, "after", mark=b">")
        + b":1\r\n"
        + push("unsubscribe", name, 0, mark=b">")
        + b":0\r\n$3\r\nend\r\n"
    )
    assert answer.endswith(b"*0\r\n" + wanted)


def test_replies_keep_the_order_of_a_mixed_pipeline(wires: list[Wire], name: str) -> None:
    publisher, reader, *_ = wires
    subscribed(reader, name)
    unit = (
        command("PING")
        + command("PUBLISH", name, "x")
        + command("PUBLISH", f"{name}.nobody", "x")
        + command("ECHO", "y")
        + command("PUBLISH", name)
    )
    publisher.send_raw(unit * 50)
    fault = b"-ERR wrong number of arguments for 'publish' command\r\n"
    publisher.expect((b"+PONG\r\n:1\r\n:0\r\n$1\r\ny\r\n" + fault) * 50)
    reader.expect(push("message", name, "x") * 50)


@pytest.mark.parametrize(
    "channel",
    [
        b"\x00\xff\xfe",
        b"news.*",
        b">",
        b"a\r\nb",
        b"%41",
        b"_fanlog.x",
        b"x" * 2000,
        "é".encode(),
    ],
    ids=repr,
)
def test_any_bytes_name_a_channel_and_fill_a_message(wires: list[Wire], channel: bytes) -> None:
    publisher, reader, matcher, shard, _ = wires
    reader.tell("SUBSCRIBE", channel, wanted=push("subscribe", channel, 1))
    matcher.tell("PSUBSCRIBE", "*", wanted=push("psubscribe", "*", 1))
    shard.tell("SSUBSCRIBE", channel, wanted=push("ssubscribe", channel, 1))
    value = bytes(range(256)) * 3
    publisher.tell("PUBLISH", channel, value, wanted=b":2\r\n")
    reader.expect(push("message", channel, value))
    matcher.expect(push("pmessage", "*", channel, value))
    publisher.tell("SPUBLISH", channel, b"s", wanted=b":1\r\n")
    shard.expect(push("smessage", channel, b"s"))
    publisher.tell("PUBLISH", channel, b"", wanted=b":2\r\n")
    reader.expect(push("message", channel, b""))
    matcher.expect(push("pmessage", "*", channel, b""))


def test_a_large_message_passes_whole(wires: list[Wire], name: str) -> None:
    publisher, reader, *_ = wires
    subscribed(reader, name)
    value = os.urandom(5_000_000)
    publisher.send("PUBLISH", name, value)
    reader.expect(push("message", name, value))
    publisher.expect(b":1\r\n")


def test_messages_of_all_lengths_come_as_they_were(wires: list[Wire], name: str) -> None:
    publisher, reader, *_ = wires
    subscribed(reader, name)
    values = [b"v" * (i * 37 % 2000) for i in range(400)]
    publisher.send_raw(b"".join(command("PUBLISH", name, value) for value in values))
    publisher.expect(b":1\r\n" * 400)
    reader.expect(b"".join(push("message", name, value) for value in values))


def test_resp2_and_resp3_readers_share_a_channel(wires: list[Wire], name: str) -> None:
    publisher, two, three, *_ = wires
    three.send("HELLO", "3")
    subscribed(two, name)
    three.send("SUBSCRIBE", name)
    answer = b""
    while not answer.endswith(push("subscribe", name, 1, mark=b">")):
        answer += three.take(1)
    publisher.send_raw(command("PUBLISH", name, "x") * 10)
    publisher.expect(b":2\r\n" * 10)
    two.expect(push("message", name, "x") * 10)
    three.expect(push("message", name, "x", mark=b">") * 10)


def test_commands_cut_anywhere_are_understood(wires: list[Wire], name: str) -> None:
    publisher, reader, *_ = wires
    subscribed(reader, name)
    data = command("PUBLISH", name, "hello") + command("PING") + b"PING\r\n"
    for byte in data:
        publisher.send_raw(bytes([byte]))
    publisher.expect(b":1\r\n+PONG\r\n+PONG\r\n")
    reader.expect(push("message", name, "hello"))


def test_a_killed_client_is_closed_and_no_longer_counted(wires: list[Wire], name: str) -> None:
    killer, victim, *_ = wires
    subscribed(victim, name)
    killer.tell("CLIENT", "KILL", "ADDR", victim.address, wanted=b":1\r\n")
    assert victim.rest() == b""
    killer.tell("PUBLISH", name, "x", wanted=b":0\r\n")


def test_a_client_may_kill_itself(wires: list[Wire]) -> None:
    victim = wires[0]
    victim.send("CLIENT", "KILL", victim.address)
    assert victim.rest() == b"+OK\r\n"


def test_clients_are_listed_with_what_they_follow(wires: list[Wire], name: str) -> None:
    asker, reader, *_ = wires
    reader.tell("CLIENT", "SETNAME", name, wanted=b"+OK\r\n")
    subscribed(reader, name, name + "2")
    asker.send("CLIENT", "LIST", "TYPE", "pubsub")
    size = int(asker.take(1) and _line(asker))
    lines = asker.take(size + 2).decode().splitlines()
    (mine,) = [line for line in lines if f" name={name} " in line]
    fields = dict(part.split("=", 1) for part in mine.split())
    assert fields["addr"] == reader.address
    assert (fields["sub"], fields["psub"], fields["flags"]) == ("2", "0", "P")
    assert (fields["cmd"], fields["resp"], fields["db"]) == ("subscribe", "2", "0")


def _line(wire: Wire) -> bytes:
    line = b""
    while not line.endswith(b"\r\n"):
        line += wire.take(1)
    return line


def test_globs_find_the_channels_that_redis_finds(
    port: int, wires: list[Wire], redis_port: int
) -> None:
    names = [*b"hello hallo hxllo hllo h*llo h[llo h\\llo a-b ]".split(), b""]
    with Wire(redis_port) as redis:
        for wire in (redis, wires[0]):
            wire.send("HELLO", "3")
            wire.send("SUBSCRIBE", *names)
            wire.send("PING", "followed")
            wire.take_until(b"$8\r\nfollowed\r\n")
        for pattern in PATTERNS:
            found: list[list[bytes]] = []
            for wire in (redis, wires[0]):
                wire.send("PUBSUB", "CHANNELS", pattern)
                size = int(_line(wire)[1:])
                words = [_word(wire) for _ in range(size)]
                found.append(sorted(word for word in words if word in names))
            assert found[0] == found[1], pattern


def _word(wire: Wire) -> bytes:
    size = int(_line(wire)[1:])
    return wire.take(size + 2)[:-2]
