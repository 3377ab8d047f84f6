"""The load generator against real servers and against a server that cheats."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from fanlog.bench.acked import measure_acked
from fanlog.bench.answered import answered_load, cpu_seconds, measure_answered
from fanlog.bench.load import Receive, connected, measure_fanout, measure_latency, window_units
from fanlog.bench.open_loop import open_loop
from fanlog.bench.systems import HOST, BenchError, SystemKind, SystemSettings, SystemSpec, started
from fanlog.bench.wires import acked_wire, fanout_wire, make_payload
from fanlog.bench.wires.redis import RedisFanout
from fanlog.model import DurabilityName
from tests.bench.moments import until_counted
from tests.bench.programs import need

WINDOW_MESSAGES = 512


@pytest.mark.parametrize(
    ("kind", "batch"), [("fanlog", 1), ("fanlog", 64), ("redis", 1), ("nats", 1)]
)
@pytest.mark.parametrize(("subscribers", "receive"), [(1, "copy"), (7, "discard")])
def test_every_subscriber_receives_every_byte(
    kind: SystemKind, batch: int, subscribers: int, receive: Receive
) -> None:
    with started(SystemSpec(need(kind)), None) as system:
        wire = fanout_wire(kind, 128, batch)
        with connected(wire, system.port, subscribers, WINDOW_MESSAGES, receive) as load:
            counts = measure_fanout(load, wire, 0.02, 0.1)
            assert load.published_units() > 0
            due = load.published_units() * wire.received_bytes * subscribers
            assert load.received_bytes() == due
    # No more than the window, and the unit that is being sent, was on its way at either end.
    on_the_way_per_s = subscribers * (WINDOW_MESSAGES + wire.messages) / 0.1
    assert counts.delivered_per_s == pytest.approx(
        subscribers * counts.published_per_s, abs=on_the_way_per_s
    )


@pytest.mark.parametrize("kind", ["fanlog", "redis", "nats"])
def test_latency_samples_are_sorted_and_positive(kind: SystemKind) -> None:
    with (
        started(SystemSpec(need(kind)), None) as system,
        connected(fanout_wire(kind, 16, 1), system.port, 3, 1) as load,
    ):
        samples = measure_latency(load, 0.01, 20.0, 50)
    assert len(samples) == 50
    assert samples == sorted(samples)
    assert samples[0] > 0


def acknowledged_per_s(
    spec: SystemSpec, window: int, batch: int, durability: DurabilityName, partitions: int
) -> float:
    """Of a system that was started for it."""

    def measure(seconds: float) -> float:
        with started(spec, None) as system:
            wire = acked_wire(spec.kind, 128, batch, durability, partitions)
            return measure_acked(wire, system.port, window, 0.02, seconds)

    return until_counted(measure, lambda rate: [rate])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("redis", "always"), ("redis", "never"), ("nats", "always"), ("nats", "default")],
)
@pytest.mark.parametrize("window", [1, 100])
def test_what_is_acknowledged_is_stored(
    kind: SystemKind, settings: SystemSettings, window: int
) -> None:
    assert acknowledged_per_s(SystemSpec(need(kind), settings), window, 1, "memory", 1) > 0


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
@pytest.mark.parametrize(("batch", "partitions"), [(1, 1), (16, 1), (16, 64)])
def test_what_fanlog_acknowledges_it_has_taken(
    durability: DurabilityName, batch: int, partitions: int
) -> None:
    assert acknowledged_per_s(SystemSpec("fanlog"), 100, batch, durability, partitions) > 0


def test_a_refused_batch_ends_the_run_with_its_reason() -> None:
    with started(SystemSpec("fanlog"), None) as system:
        wire = acked_wire("fanlog", 2 << 20, 1, "memory", 1)
        with pytest.raises(BenchError, match="Fanlog refused a batch"):
            measure_acked(wire, system.port, 1, 0.02, 0.1)


def test_a_system_that_loses_messages_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanlog.bench.load.DRAIN_TIMEOUT_S", 0.2)
    wire = SilentWire(b"x" * 16)
    with (
        forgetful_server() as port,
        connected(wire, port, 1, 64) as load,
        pytest.raises(BenchError, match="subscriber 0 received"),
    ):
        measure_fanout(load, wire, 0.1, 0.1)


def test_a_system_that_stands_still_makes_every_message_late_that_was_due() -> None:
    """At 1000 a second a pause of 300 ms concerns 300 messages, not the one in flight."""
    with pausing_server(0.3) as port, open_loop(SilentWire(b"x" * 16), port, 1) as loop:
        times = loop.run(1000, 1, 600)
    late = [took for took in times.took_ns if took > 50_000_000]
    assert len(late) >= 200
    assert max(times.took_ns) >= 250_000_000
    assert len(times.took_ns) == len(times.sent_ns) == 600


def test_a_message_that_never_arrives_ends_an_open_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanlog.bench.open_loop.DRAIN_TIMEOUT_S", 0.2)
    with (
        forgetful_server() as port,
        open_loop(SilentWire(b"x" * 16), port, 1) as loop,
        pytest.raises(BenchError, match="messages did not arrive in time"),
    ):
        loop.run(1000, 1, 50)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b":7\r\n", "answered with b':7"),
        (b":0\r\n:0\r\n", "answered with too much"),
        (b"", "closed a publisher's connection"),
    ],
)
def test_a_wrong_answer_ends_the_run_with_its_bytes(answer: bytes, reason: str) -> None:
    with (
        answering_server(answer) as (port, thread),
        answered_load(SilentWire(b"x" * 16), port, 2, 0, 1) as load,
        pytest.raises(BenchError, match=reason),
    ):
        measure_answered(load, os.getpid(), 1, 5.0, 5.0)
    thread.join()


def test_an_answer_in_parts_is_one_answer() -> None:
    def measure(seconds: float) -> float:
        with (
            answering_server(b":", b"0\r\n") as (port, thread),
            answered_load(SilentWire(b"x" * 16), port, 2, 0, 1) as load,
        ):
            counts = measure_answered(load, os.getpid(), 1, 0.05, seconds)
        thread.join()
        return counts.published_per_s

    assert until_counted(measure, lambda rate: [rate]) > 0


def test_a_process_has_used_the_processor() -> None:
    before = cpu_seconds(os.getpid())
    deadline = time.monotonic() + 20
    while cpu_seconds(os.getpid()) == before and time.monotonic() < deadline:
        sum(range(10000))
    assert cpu_seconds(os.getpid()) > before


def test_the_window_shrinks_where_many_subscribers_share_memory() -> None:
    wire = RedisFanout(make_payload(128))
    assert window_units(wire, 1, 8192) == 8192
    assert window_units(wire, 1000, 8192) < 2000
    assert window_units(wire, 10**9, 8192) == 1
    assert window_units(RedisFanout(make_payload(1 << 20)), 1, 8192) == 1


class SilentWire(RedisFanout):
    """Redis's bytes to a server that never greets."""

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        pass


@contextmanager
def pausing_server(pause_s: float) -> Iterator[int]:
    """Hands on what the second connection sends to the first, but stands still once, after the
    first bytes."""
    unit = len(SilentWire(b"x" * 16).unit())
    push = b"y" * SilentWire(b"x" * 16).received_bytes

    def serve() -> None:
        reader, publisher = (listener.accept()[0] for _ in range(2))
        rest, paused = 0, False
        while data := publisher.recv(65536):
            if not paused:
                paused = True
                time.sleep(pause_s)
            units, rest = divmod(rest + len(data), unit)
            reader.sendall(push * units)
        reader.close()
        publisher.close()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@contextmanager
def answering_server(*parts: bytes) -> Iterator[tuple[int, threading.Thread]]:
    """Answers whatever two connections send with these bytes, in so many parts; nothing is an
    end."""

    def answer(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while sock.recv(65536):
                for part in parts:
                    if not part:
                        return
                    sock.sendall(part)

    def serve() -> None:
        threads = [threading.Thread(target=answer, args=listener.accept()[:1]) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], thread


@contextmanager
def forgetful_server() -> Iterator[int]:
    """Takes everything that the second connection sends, and delivers nothing to the first."""
    taken: list[socket.socket] = []

    def serve() -> None:
        taken.extend(listener.accept()[0] for _ in range(2))
        while taken[1].recv(65536):
            pass

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()
    for sock in taken:
        sock.close()
