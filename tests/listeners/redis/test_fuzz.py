"""Broken, huge, dripping and random bytes on the Redis port: each costs only its own connection, a
bounded amount of memory, and nobody else's time."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.listeners.redis.wire import Wire, command, push
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

SEEDS = range(6)
ROUNDS = 150
ROUNDS_MAX = 20


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[BrokerProcess]:
    port = free_port()
    env = {"FANLOG_REDIS_REQUEST_BYTES_MAX": "8MiB", "FANLOG_REDIS_BULK_BYTES_MAX": "4MiB"}
    env |= {"FANLOG_REDIS_COMMAND_TIMEOUT_SECONDS": "2", "PATH": ""}
    with BrokerProcess(None, "--redis-port", str(port), env=env) as process:
        process.redis_port = port
        yield process


@pytest.fixture
def healthy(fuzzed: BrokerProcess) -> Iterator[None]:
    """Two clients who must not notice anything: they talk before, and after."""
    with Wire(fuzzed.redis_port) as reader, Wire(fuzzed.redis_port) as publisher:
        reader.tell("SUBSCRIBE", "well", wanted=push("subscribe", "well", 1))
        for part in ("before", "after"):
            if part == "after":
                yield
            began = time.monotonic()
            publisher.tell("PUBLISH", "well", part, wanted=b":1\r\n")
            reader.expect(push("message", "well", part))
            assert time.monotonic() - began < 60


def broken(source: random.Random) -> bytes:
    """Something that is almost a pipeline."""
    words = [b"PUBLISH", b"SUBSCRIBE", b"a", b"b", b"", b"PING", b"x" * 300, b"\r\n", b"*3\r\n"]
    good = b"".join(
        command(*source.choices(words, k=source.randint(1, 4)))
        for _ in range(source.randint(1, 20))
    )
    data = bytearray(good)
    for _ in range(source.randint(0, 6)):
        at = source.randrange(len(data) + 1)
        kind = source.randrange(5)
        if kind == 0:
            del data[at : at + source.randint(1, 20)]
        elif kind == 1:
            data[at:at] = source.choice(
                [
                    b"*-1\r\n",
                    b"$-1\r\n",
                    b"*999999\r\n",
                    b"$999999999\r\n",
                    b":1\r\n",
                    b"*1\r\n" * 9,
                ]
            )
        elif kind == 2:
            data[at:at] = source.randbytes(source.randint(1, 30))
        elif kind == 3 and at < len(data):
            data[at] = source.randrange(256)
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_broken_pipelines_hurt_nobody_else(fuzzed: BrokerProcess, healthy: None, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(ROUNDS):
        with Wire(fuzzed.redis_port) as wire:
            try:
                wire.send_raw(broken(source))
                if source.random() < 0.3:
                    wire.sock.settimeout(0.01)
                    wire.sock.recv(1000)
            except OSError:
                pass


def test_random_bytes_hurt_nobody_else(fuzzed: BrokerProcess, healthy: None) -> None:
    source = random.Random(7)
    for _ in range(100):
        with Wire(fuzzed.redis_port) as wire:
            try:
                wire.send_raw(source.randbytes(source.randint(1, 5000)))
            except OSError:
                continue


CLAIMS = [
    b"*1\r\n$1000000000\r\n",
    b"*1048577\r\n",
    b"*1000000\r\n" + b"$1\r\na\r\n" * 1000,
    b"*1\r\n" * 10_000,
    b"*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n*100000000\r\n" * 50,
    b"*2\r\n$4\r\nPING\r\n>100000000\r\n" * 50,
    b"MULTI\r\n" + command("ECHO", b"x" * 1000) * 20_000,
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: repr(claim[:40]))
def test_what_is_only_claimed_costs_no_memory(
    fuzzed: BrokerProcess, healthy: None, claim: bytes
) -> None:
    before = fuzzed.resident_bytes()
    with ExitStack() as stack:
        for _ in range(10):
            wire = stack.enter_context(Wire(fuzzed.redis_port))
            wire.sock.settimeout(0.5)
            try:
                wire.send_raw(claim)
                wire.sock.settimeout(0.1)
                wire.sock.recv(10)
            except OSError:
                continue
        # Whoever asks later is answered later: by then it has looked at all of it.
        stack.enter_context(Wire(fuzzed.redis_port)).tell("PING", wanted=b"+PONG\r\n")
        assert fuzzed.resident_bytes() - before < 10 * (12 << 20)


def test_memory_for_one_command_stays_within_its_limit(
    fuzzed: BrokerProcess, healthy: None
) -> None:
    before = fuzzed.resident_bytes()
    with Wire(fuzzed.redis_port) as wire:
        wire.send_raw(b"*100\r\n")
        said = b""
        try:
            for _ in range(100):
                wire.send_raw(b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n")
            said = wire.rest()
        except OSError:
            pass
        fault = b"-ERR Protocol error: request larger than redis.request_bytes_max\r\n"
        assert said in (b"", fault)
    assert fuzzed.resident_bytes() - before < 32 << 20


def test_a_peer_that_never_reads_its_replies_is_not_served_without_end(
    fuzzed: BrokerProcess, healthy: None
) -> None:
    before = fuzzed.resident_bytes()
    with Wire(fuzzed.redis_port) as wire:
        wire.sock.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 100 << 20:
                sent += wire.sock.send(b"COMMAND DOCS\r\n" * 5000)
        assert sent < 100 << 20
        assert fuzzed.resident_bytes() - before < 32 << 20


def test_a_dripping_peer_is_cut_off_in_time(fuzzed: BrokerProcess, healthy: None) -> None:
    with Wire(fuzzed.redis_port) as wire:
        data = command("PUBLISH", "a", "x" * 5000)
        began = time.monotonic()
        try:
            for byte in data:
                wire.send_raw(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - began > 40:
                    break
        except OSError:
            pass
        assert time.monotonic() - began < 40
        with suppress(ConnectionResetError):
            assert b"command_timeout_seconds" in wire.rest()


def test_many_that_come_and_go_in_the_middle_leave_nothing_behind(
    fuzzed: BrokerProcess, healthy: None
) -> None:
    def round_of(count: int) -> None:
        for _ in range(count):
            with Wire(fuzzed.redis_port) as wire:
                wire.send_raw(command("SUBSCRIBE", "x") + b"*3\r\n$7\r\nPUBLISH\r\n$100\r\nabc")
                # No faster than the broker lets them in: all at once they need more memory.
                wire.expect(push("subscribe", "x", 1))
        nobody_follows(fuzzed.redis_port, "x")

    round_of(200)
    before = fuzzed.resident_bytes()
    # Python clears up only now and then, so that some rounds may cost more. What is left behind
    # adds up with each.
    for rounds in range(1, ROUNDS_MAX + 1):
        round_of(1500)
        if fuzzed.resident_bytes() - before < rounds * (4 << 20):
            return
    raise AssertionError("memory grows with each connection that was there")


def nobody_follows(port: int, channel: str) -> None:
    """Waits until the last subscriber is gone."""
    with Wire(port) as wire:
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            wire.send("PUBSUB", "NUMSUB", channel)
            if wire.take(len(f"*2\r\n$1\r\n{channel}\r\n:0\r\n")).endswith(b":0\r\n"):
                return
            wire.quiet(0.05)
    raise AssertionError("subscribers that are gone are still counted")


def test_a_reset_connection_is_forgotten(fuzzed: BrokerProcess, healthy: None) -> None:
    for _ in range(50):
        wire = Wire(fuzzed.redis_port)
        wire.send("SUBSCRIBE", "y")
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wire.close()
