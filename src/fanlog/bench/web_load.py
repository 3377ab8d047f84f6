"""The load generator of the web: one pipelining publisher, N counting subscribers.

Law: a frame may hold any number of messages, so that bytes alone do not tell how many there were.
The messages of the first subscriber are counted by the mark in each; the others are sent the same
bytes, and only those are counted. In the end everyone must have received as many bytes as the
first, and the first every message published.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from bisect import bisect_right
from collections.abc import Generator

from fanlog.bench.load import (
    BLOCK_BYTES_MIN,
    DRAIN_TIMEOUT_S,
    EVENTS_MAX,
    IN_FLIGHT_BYTES_EACH_MAX,
    IN_FLIGHT_BYTES_MAX,
    POLL_TIMEOUT_S,
    RECEIVE_BYTES_MAX,
    FanoutCounts,
    Receive,
)
from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import SETUP_TIMEOUT_S, connect
from fanlog.bench.wires.web import WebWire

# How many counts of the first subscriber are kept, to compare others with.
_STEPS_MAX = 10_000


class _Marks:
    """Counts marks in a stream that is read in pieces."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""
        self.count = 0
        self.last = b""

    def take(self, data: bytes) -> None:
        data = self._rest + data
        self.count += data.count(self._mark)
        # A mark may be cut in two; a whole one is not counted twice.
        self._rest = data[-(len(self._mark) - 1) :]
        self.last = data[-8:]


class WebLoad:
    """A connected publisher and its subscribers."""

    def __init__(
        self,
        wire: WebWire,
        ports: tuple[int, int],
        subscribers: int,
        window_messages: int,
        receive: Receive = "copy",
    ) -> None:
        """`ports` are where to publish, and where to subscribe."""
        self._wire = wire
        each_bytes = min(IN_FLIGHT_BYTES_MAX // subscribers, IN_FLIGHT_BYTES_EACH_MAX)
        window = min(window_messages // wire.messages, each_bytes // wire.received_bytes)
        self._window = max(1, window)
        self._flags = socket.MSG_TRUNC if receive == "discard" else 0
        self._publisher = connect(ports[0])
        self._readers = [connect(ports[1]) for _ in range(subscribers)]
        wire.prepare(self._publisher, self._readers)
        unit = wire.unit()
        self._unit_bytes = len(unit)
        self._publisher.sendall(unit)
        for sock in self._readers:
            self._read_first(sock)
        self._block = memoryview(unit * max(1, -(-BLOCK_BYTES_MIN // len(unit))))
        self._sent_bytes = 0
        self._first = self._readers[0].fileno()
        self._marks = _Marks(wire.mark)
        self._steps: tuple[list[int], list[int]] = ([0], [0])
        self._received = {sock.fileno(): 0 for sock in self._readers}
        self._by_number = {sock.fileno(): sock.recv_into for sock in self._readers}
        self._scratch = bytearray(RECEIVE_BYTES_MAX)
        self._view = memoryview(self._scratch)
        self._epoll = self._register()

    def _read_first(self, sock: socket.socket) -> None:
        """Sends one whole unit before the measurement."""
        sock.settimeout(SETUP_TIMEOUT_S)
        data = b""
        while data.count(self._wire.mark) < self._wire.messages or not data.endswith(
            (self._wire.end, self._wire.end + b"\r\n")
        ):
            got = sock.recv(1 << 20)
            if not got:
                raise BenchError("the system closed a subscriber's connection")
            data += got

    def _register(self) -> select.epoll:
        epoll = select.epoll(len(self._readers) + 1)
        for sock in self._readers:
            sock.setblocking(False)
            epoll.register(sock, select.EPOLLIN)
        self._publisher.setblocking(False)
        epoll.register(self._publisher, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        return epoll

    def close(self) -> None:
        """Close every socket."""
        self._epoll.close()
        for sock in [self._publisher, *self._readers]:
            sock.close()

    def published(self) -> int:
        """Messages sent whole."""
        return self._sent_bytes // self._unit_bytes * self._wire.messages

    def delivered(self) -> float:
        """Messages received by all subscribers together."""
        first_bytes = self._received[self._first]
        if not first_bytes:
            return 0.0
        return sum(self._received.values()) * self._marks.count / first_bytes

    def pump(self, until_s: float) -> float:
        """Publish and count until this time of the monotonic clock; the time it then was."""
        clock = time.perf_counter
        window_bytes = self._window * self._unit_bytes
        limit_bytes = 0
        while (now := clock()) < until_s:
            # Looks for the slowest subscriber only if the window seems half used up.
            if limit_bytes - self._sent_bytes < window_bytes // 2:
                slowest = self._slowest() // self._wire.messages
                limit_bytes = (slowest + self._window) * self._unit_bytes
            self._send(limit_bytes)
            self._receive()
        return now

    def _slowest(self) -> int:
        """Messages that all subscribers have."""
        least = min(self._received.values())
        reached, counts = self._steps
        if least >= reached[-1]:
            return counts[-1]
        return counts[max(0, bisect_right(reached, least) - 1)]

    def publish_one_ns(self) -> int:
        """Publish one unit to idle subscribers; nanoseconds until the last of them has it."""
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        count, first = self._marks.count, self._received[self._first]
        others = dict(self._received)
        started_ns = time.perf_counter_ns()
        self._send(self._sent_bytes + self._unit_bytes)
        while True:
            # Spins, so that waking up does not count.
            self._receive(timeout_s=0)
            if self._marks.count > count and self._marks.last.endswith(self._wire.end):
                size = self._received[self._first] - first
                if all(now - others[number] >= size for number, now in self._received.items()):
                    return time.perf_counter_ns() - started_ns
            if time.perf_counter() > deadline:
                raise BenchError("a message did not reach every subscriber in time")

    def drain(self) -> None:
        """Finish the unit being sent, take in what is still on its way, and check every count."""
        whole = -(-self._sent_bytes // self._unit_bytes) * self._unit_bytes
        due = whole // self._unit_bytes * self._wire.messages
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        while self._sent_bytes < whole or not self._all_there(due):
            if time.perf_counter() > deadline:
                break
            self._send(whole)
            self._receive()
        if self._marks.count != due:
            raise BenchError(f"a subscriber received {self._marks.count} messages of {due}")
        first_bytes = self._received[self._first]
        for number, count in enumerate(self._received.values()):
            if count != first_bytes:
                raise BenchError(f"subscriber {number} received {count} bytes of {first_bytes}")

    def _all_there(self, due: int) -> bool:
        counts = set(self._received.values())
        ended = self._marks.last.endswith(self._wire.end) or not due
        return self._marks.count >= due and len(counts) == 1 and ended

    def _send(self, limit_bytes: int) -> None:
        block_bytes = len(self._block)
        while self._sent_bytes < limit_bytes:
            start = self._sent_bytes % block_bytes
            end = min(block_bytes, start + limit_bytes - self._sent_bytes)
            try:
                sent = self._publisher.send(self._block[start:end])
            except BlockingIOError:
                return
            self._sent_bytes += sent
            if sent < end - start:
                return

    def _receive(self, timeout_s: float = POLL_TIMEOUT_S) -> None:
        received, readers, scratch = self._received, self._by_number, self._scratch
        size, flags, first = len(scratch), self._flags, self._first
        for number, _ in self._epoll.poll(timeout_s, EVENTS_MAX):
            if number not in readers:
                self._discard_replies()
                continue
            count = readers[number](scratch, size, 0 if number == first else flags)
            if count == 0:
                raise BenchError("the system closed a subscriber's connection")
            received[number] += count
            if number == first:
                self._count(bytes(self._view[:count]))

    def _count(self, data: bytes) -> None:
        self._marks.take(data)
        reached, counts = self._steps
        reached.append(self._received[self._first])
        counts.append(self._marks.count)
        if len(reached) > _STEPS_MAX:
            del reached[: _STEPS_MAX // 2]
            del counts[: _STEPS_MAX // 2]

    def _discard_replies(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._publisher.recv_into(self._scratch, len(self._scratch), socket.MSG_TRUNC):
                pass
            raise BenchError("the system closed the publisher's connection")


@contextlib.contextmanager
def web_connected(
    wire: WebWire,
    ports: tuple[int, int],
    subscribers: int,
    window_messages: int,
    receive: Receive = "copy",
) -> Generator[WebLoad]:
    """A load. Its sockets are closed at the end in any case."""
    load = WebLoad(wire, ports, subscribers, window_messages, receive)
    try:
        yield load
    finally:
        load.close()


def measure_web_fanout(load: WebLoad, warmup_s: float, run_s: float) -> FanoutCounts:
    """Warm up, count for a while, then drain and verify."""
    began = load.pump(time.perf_counter() + warmup_s)
    published, delivered = load.published(), load.delivered()
    ended = load.pump(began + run_s)
    published, delivered = load.published() - published, load.delivered() - delivered
    load.drain()
    took_s = ended - began
    return FanoutCounts(published_per_s=published / took_s, delivered_per_s=delivered / took_s)


def measure_web_latency(
    load: WebLoad, warmup_s: float, run_s: float, samples_max: int
) -> list[int]:
    """Nanoseconds from publish to the last subscriber, one message in flight at a time, sorted."""
    until = time.perf_counter() + warmup_s
    while time.perf_counter() < until:
        load.publish_one_ns()
    until = time.perf_counter() + run_s
    samples: list[int] = []
    while time.perf_counter() < until and len(samples) < samples_max:
        samples.append(load.publish_one_ns())
    load.drain()
    return sorted(samples)
