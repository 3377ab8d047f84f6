"""The load generator against real servers and against a server that cheats."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from fanlog.bench.acked import measure_acked
from fanlog.bench.load import Receive, connected, measure_fanout, measure_latency, window_units
from fanlog.bench.systems import HOST, BenchError, Kind, Settings, SystemSpec, started
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
    kind: Kind, batch: int, subscribers: int, receive: Receive
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
def test_latency_samples_are_sorted_and_positive(kind: Kind) -> None:
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
def test_what_is_acknowledged_is_stored(kind: Kind, settings: Settings, window: int) -> None:
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
