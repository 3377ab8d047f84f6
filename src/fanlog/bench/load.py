"""The load generator: one pipelining publisher, N counting subscribers, the same for every system.

Law: it never parses. Subscribers count bytes, and discard them inside the kernel (MSG_TRUNC) or
copy them out. The publisher keeps a fixed window of messages ahead of the slowest subscriber, so
that nothing is dropped. In the end every subscriber must have received every byte published.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fanlog.bench.systems import BenchError, on_core_ns
from fanlog.bench.wires.base import FanoutWire, connect

RECEIVE_BYTES_MAX = 4 << 20
BLOCK_BYTES_MIN = 256 << 10
DRAIN_TIMEOUT_S = 30.0
POLL_TIMEOUT_S = 0.2
EVENTS_MAX = 2048
# Bytes that may wait for subscribers inside a system: a thousand slow ones must not fill memory.
IN_FLIGHT_BYTES_MAX = 256 << 20
# Bytes that may wait for one of them: less than what any system keeps for a subscriber by default.
IN_FLIGHT_BYTES_EACH_MAX = 2 << 20


Receive: TypeAlias = Literal["discard", "copy"]


@dataclass(frozen=True, slots=True)
class FanoutCounts:
    """The verified result of one measured part of a fan-out."""

    published_per_s: float
    delivered_per_s: float
    # Nanoseconds on a core for one delivery, of each process that was watched.
    processes_ns: tuple[float, ...] = ()

    @property
    def system_ns(self) -> float:
        """Of all of them together; 0 if not measured."""
        return sum(self.processes_ns)


def window_units(wire: FanoutWire, subscribers: int, window_messages: int) -> int:
    """The window in units: as requested, or less if many subscribers share memory."""
    each_bytes = min(IN_FLIGHT_BYTES_MAX // subscribers, IN_FLIGHT_BYTES_EACH_MAX)
    return max(1, min(window_messages // wire.messages, each_bytes // wire.received_bytes))


class FanoutLoad:
    """A connected publisher and its subscribers."""

    connect: Callable[[int], socket.socket] = staticmethod(connect)

    def __init__(
        self,
        wire: FanoutWire,
        port: int,
        subscribers: int,
        window_messages: int,
        receive: Receive = "discard",
        *,
        reader_ports: Sequence[int] = (),
    ) -> None:
        """Subscribers connect to the same port, or to one of `reader_ports` each."""
        self._wire = wire
        self._receive_flags = socket.MSG_TRUNC if receive == "discard" else 0
        self._window = window_units(wire, subscribers, window_messages)
        self._readers = [self.connect(at) for at in reader_ports or [port] * subscribers]
        self._publisher = self.connect(port)
        wire.prepare(self._publisher, self._readers)
        unit = wire.unit()
        self._unit_bytes = len(unit)
        self._block = memoryview(unit * max(1, -(-BLOCK_BYTES_MIN // len(unit))))
        self._sent_bytes = 0
        self._received = {sock.fileno(): 0 for sock in self._readers}
        self._readers_by_number = {sock.fileno(): sock.recv_into for sock in self._readers}
        self._scratch = bytearray(RECEIVE_BYTES_MAX)
        self._epoll = self._register()

    def _register(self) -> select.epoll:
        epoll = select.epoll(len(self._readers) + 1)
        for sock in self._readers:
            sock.setblocking(False)
            epoll.register(sock, select.EPOLLIN)
        self._publisher.setblocking(False)
        edges = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
        epoll.register(self._publisher, edges)
        return epoll

    def close(self) -> None:
        """Close every socket."""
        self._epoll.close()
        for sock in [self._publisher, *self._readers]:
            sock.close()

    def received_bytes(self) -> int:
        """Bytes received by all subscribers together."""
        return sum(self._received.values())

    def published_units(self) -> int:
        """Units sent whole."""
        return self._sent_bytes // self._unit_bytes

    def pump(self, until_s: float) -> float:
        """Publishes and counts until this time of the monotonic clock. Returns the time of its
        end."""
        clock = time.perf_counter
        unit_bytes, out_bytes = self._unit_bytes, self._wire.received_bytes
        window_bytes = self._window * unit_bytes
        limit_bytes = 0
        while (now := clock()) < until_s:
            # Looks for the slowest subscriber only if the window seems half used up.
            if limit_bytes - self._sent_bytes < window_bytes // 2:
                slowest = min(self._received.values()) // out_bytes
                limit_bytes = (slowest + self._window) * unit_bytes
            self._send(limit_bytes)
            self._receive()
        return now

    def publish_one_ns(self, *, spin: bool = True) -> int:
        """Publish one unit to idle subscribers; nanoseconds until the last of them has it. Without
        `spin` it leaves its core to others while it waits."""
        due = self.received_bytes() + len(self._readers) * self._wire.received_bytes
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        started_ns = time.perf_counter_ns()
        self._send(self._sent_bytes + self._unit_bytes)
        while self.received_bytes() < due:
            # Spins, so that waking up does not count.
            self._receive(timeout_s=0 if spin else POLL_TIMEOUT_S)
            if time.perf_counter() > deadline:
                raise BenchError("a message did not reach every subscriber in time")
        return time.perf_counter_ns() - started_ns

    def drain(self) -> None:
        """Finishes the current unit, receives what is on its way, and checks every count."""
        whole = -(-self._sent_bytes // self._unit_bytes) * self._unit_bytes
        due = whole // self._unit_bytes * self._wire.received_bytes
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        while self._sent_bytes < whole or min(self._received.values()) < due:
            if time.perf_counter() > deadline:
                break
            self._send(whole)
            self._receive()
        for number, count in enumerate(self._received.values()):
            if count != due:
                raise BenchError(f"subscriber {number} received {count} bytes of {due}")

    def _send(self, limit_bytes: int) -> None:
        block_bytes = len(self._block)
        while self._sent_bytes < limit_bytes:
            start = self._sent_bytes % block_bytes
            end = min(block_bytes, start + limit_bytes - self._sent_bytes)
            try:
                sent = self._send_some(self._block[start:end])
            except BlockingIOError:
                return
            self._sent_bytes += sent
            if sent < end - start:
                return

    def _send_some(self, data: memoryview) -> int:
        return self._publisher.send(data)

    def _receive(self, timeout_s: float = POLL_TIMEOUT_S) -> None:
        received, readers, scratch = self._received, self._readers_by_number, self._scratch
        size, flags = len(scratch), self._receive_flags
        for number, _ in self._epoll.poll(timeout_s, EVENTS_MAX):
            if number in readers:
                count = readers[number](scratch, size, flags)
                if count == 0:
                    raise BenchError("the system closed a subscriber's connection")
                received[number] += count
            else:
                self._discard_replies()

    def _discard_replies(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while count := self._publisher.recv_into(
                self._scratch, len(self._scratch), socket.MSG_TRUNC
            ):
                if count < len(self._scratch):
                    return
            raise BenchError("the system closed the publisher's connection")


@contextlib.contextmanager
def connected(
    wire: FanoutWire,
    port: int,
    subscribers: int,
    window_messages: int,
    receive: Receive = "discard",
    *,
    kind: type[FanoutLoad] = FanoutLoad,
) -> Generator[FanoutLoad]:
    """A load whose sockets are closed at the end, whatever happens."""
    load = kind(wire, port, subscribers, window_messages, receive)
    try:
        yield load
    finally:
        load.close()


def measure_fanout(
    load: FanoutLoad,
    wire: FanoutWire,
    warmup_s: float,
    run_s: float,
    pids: Sequence[int] = (),
) -> FanoutCounts:
    """Warm up, count for a while, then drain and verify. `pids` are the system's processes."""
    began = load.pump(time.perf_counter() + warmup_s)
    published, received = load.published_units(), load.received_bytes()
    before_ns = [on_core_ns(pid) for pid in pids]
    ended = load.pump(began + run_s)
    used_ns = [on_core_ns(pid) - ns for pid, ns in zip(pids, before_ns, strict=True)]
    published = load.published_units() - published
    received = load.received_bytes() - received
    load.drain()
    took_s = ended - began
    delivered = received / wire.received_bytes * wire.messages
    return FanoutCounts(
        published_per_s=published * wire.messages / took_s,
        delivered_per_s=delivered / took_s,
        processes_ns=tuple(ns / delivered if delivered else 0.0 for ns in used_ns),
    )


def measure_latency(load: FanoutLoad, warmup_s: float, run_s: float, samples_max: int) -> list[int]:
    """Nanoseconds from publish to the last subscriber, one message in flight at a time, sorted."""
    until = time.perf_counter() + warmup_s
    while time.perf_counter() < until:
        load.publish_one_ns()
    until = time.perf_counter() + run_s
    samples: list[int] = []
    # At least one: a busy machine may not get to run in a short time.
    while not samples or (time.perf_counter() < until and len(samples) < samples_max):
        samples.append(load.publish_one_ns())
    load.drain()
    return sorted(samples)
