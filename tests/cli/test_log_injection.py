"""Names from clients can't forge log lines: breaks, escapes and very long names, on all three
ports."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable
from urllib.parse import quote

import pytest

import fanlog
from fanlog.errors import FanlogError
from fanlog.format.frames import MAGIC, FrameKind, message_frame
from fanlog.format.messages import Hello, NamedTopic
from tests.cli.conftest import Serving

Serve = Callable[..., Serving]
# What ends a line, or moves a cursor, for some program.
BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x1b[2J\x9b31m\u202e"
FORGED = "2026-01-01 00:00:00.000 INFO    fanlog: forged"
EVIL = "".join(f"{c}{FORGED}" for c in BREAKS)
HUGE = "h" * 100_000
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ +fanlog[.\w]*: ")


def port_of(broker: Serving, scheme: str) -> int:
    found = next(
        re.search(rf"{scheme}://127\.0\.0\.1:(\d+)", line)
        for line in broker.banner
        if f"{scheme}://" in line
    )
    assert found is not None
    return int(found[1])


def attack_native(broker: Serving) -> None:
    with socket.create_connection(("127.0.0.1", port_of(broker, "fanlog")), 30) as sock:
        # A client of ours would refuse such a name by itself.
        hello = Hello((1,), f"{EVIL}{HUGE}")
        sock.sendall(message_frame(FrameKind.HELLO, hello, request=1, aux=MAGIC))
        sock.recv(65536)
        wanted = NamedTopic(f"{EVIL}{HUGE}")
        sock.sendall(message_frame(FrameKind.DESCRIBE_TOPIC, wanted, request=2))
        sock.recv(65536)
    with fanlog.sync.connect(broker.url, name=EVIL[:200]) as client:
        for attempt in (
            lambda: client.publish(EVIL, "x"),
            lambda: client.create_topic(HUGE),
            lambda: client.groups.describe(EVIL[:200]),
            lambda: client.consume("t", group=EVIL[:200], member=EVIL[:200]).close(),
            lambda: client.connections.close(user="nobody", reason=EVIL[:400]),
        ):
            with contextlib.suppress(FanlogError):
                attempt()


def attack_redis(broker: Serving) -> None:
    evil = EVIL.encode()
    with socket.create_connection(("127.0.0.1", port_of(broker, "redis")), 30) as sock:
        for words in (
            (b"SUBSCRIBE", evil),
            (b"PSUBSCRIBE", evil + b"*"),
            (b"CLIENT", b"SETNAME", evil),
            (b"HELLO", b"3", b"SETNAME", evil),
            (b"AUTH", evil, evil),
            (evil, evil),
            (b"UNSUBSCRIBE", evil),
            (b"SUBSCRIBE", HUGE.encode()),
        ):
            parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            sock.sendall(b"*%d\r\n%b" % (len(words), parts))
            sock.recv(65536)


def attack_web(broker: Serving) -> None:
    evil = quote(EVIL)
    for head in (
        f"GET /v1/topics/{evil} HTTP/1.1",
        f"POST /v1/topics/{evil}/messages HTTP/1.1",
        f"GET /v1/stream?topic={evil}&user={evil} HTTP/1.1",
        f"DELETE /v1/connections/{evil} HTTP/1.1",
        f"GET /{'h' * 4000} HTTP/1.1",
        "GET /\x1b[2J\x85 HTTP/1.1",
    ):
        with socket.create_connection(("127.0.0.1", port_of(broker, "http")), 30) as sock:
            request = f"{head}\r\nHost: a\r\nFanlog-User: {evil}\r\nConnection: close\r\n\r\n"
            sock.sendall(request.encode("latin-1", errors="replace"))
            sock.recv(65536)


@pytest.mark.parametrize("as_json", [False, True])
def test_no_name_forges_a_line(serve: Serve, as_json: bool) -> None:
    flags = ("--log-json",) if as_json else ()
    broker = serve("--memory", "--log-level", "debug", *flags)
    attack_native(broker)
    attack_redis(broker)
    attack_web(broker)
    said = broker.stop().err
    # As a collector cuts it that knows every end of a line there is.
    lines = said.splitlines()
    assert lines == said.removesuffix("\n").split("\n")
    assert not [line for line in lines if line.startswith(FORGED)]
    assert [c for c in sorted(set(said)) if not c.isprintable()] == ["\n"]
    assert max(map(len, lines)) < 30_000
    if not as_json:
        assert [line for line in lines if not LINE.match(line)] == []
        return
    events = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "message"} <= set(event) for event in events)
    known = [event for event in events if event.get("connection")]
    assert {event["connection"].partition("@")[0] for event in known} >= {"native", "redis"}
    assert all("user" in event for event in known)
