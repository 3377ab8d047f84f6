"""Many publishers that wait: each connection sends one request, waits for its answer, then sends
the next. One generator for all systems, on epoll.

Law: a connection never has more than one request in flight. A request is one publish, or a fixed
pipeline of them. Every answer is checked, and in the end every subscriber must have every message.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import AnsweredWire, connect

RECEIVE_BYTES_MAX = 4 << 20
ANSWER_BYTES_MAX = 64 << 10
DRAIN_TIMEOUT_S = 30.0
EVENTS_MAX = 2048


@dataclass(frozen=True, slots=True)
class AnsweredCounts:
    """What one measured stretch came to, after it was verified.

    `cpu_us` is the processor time of the system's process for one message, user and kernel
    together. `busy` is that process's share of a core: well below 1, and the generator, not the
    system, was the limit.
    """

    published_per_s: float
    cpu_us: float
    busy: float


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, over all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class AnsweredLoad:
    """Connected publishers and subscribers."""

    def __init__(
        self, wire: AnsweredWire, port: int, connections: int, subscribers: int, pipeline: int
    ) -> None:
        self._wire = wire
        self._pipeline = pipeline
        self._publishers = [connect(port) for _ in range(connections)]
        self._subscribers = [connect(port) for _ in range(subscribers)]
        wire.prepare(self._publishers[0], self._subscribers)
        wire.join(self._publishers[1:])
        self._request = wire.request() * pipeline
        self._answer_bytes = wire.answer_bytes(subscribers) * pipeline
        fixed = wire.maybe_answer(subscribers)
        self._answer = None if fixed is None else fixed * pipeline
        # Missing bytes of answers that arrived in part, by connection.
        self._missing: dict[int, int] = {}
        self._received = {sock.fileno(): 0 for sock in self._subscribers}
        self._ways: dict[int, tuple[Callable[[int], bytes], Callable[[bytes], int]]] = {
            sock.fileno(): (sock.recv, sock.send) for sock in self._publishers
        }
        self._takes = {sock.fileno(): sock.recv_into for sock in self._subscribers}
        self._scratch = bytearray(RECEIVE_BYTES_MAX)
        self.answered = 0
        self._epoll = select.epoll(connections + subscribers)
        for sock in [*self._publishers, *self._subscribers]:
            sock.setblocking(False)
            self._epoll.register(sock, select.EPOLLIN)

    def close(self) -> None:
        """Close every socket."""
        self._epoll.close()
        for sock in [*self._publishers, *self._subscribers]:
            sock.close()

    def begin(self) -> None:
        """Let every connection send its first request."""
        for _, send in self._ways.values():
            send(self._request)

    def pump(self, until_s: float) -> float:
        """Sends the next request after each answer, until this time. Returns the time of its
        end."""
        poll, ways, request = self._epoll.poll, self._ways, self._request
        size, answer, clock = self._answer_bytes, self._answer, time.perf_counter
        answered = 0
        while (now := clock()) < until_s:
            # Spins, because waking up would count in the measurement.
            for number, _ in poll(0, EVENTS_MAX):
                if number not in ways:
                    self._take(number)
                    continue
                recv, send = ways[number]
                data = recv(ANSWER_BYTES_MAX)
                if len(data) != size and not self._completes(number, data):
                    continue
                if answer is not None and data != answer and len(data) == size:
                    raise BenchError(f"a publish was answered with {data[:100]!r}")
                answered += 1
                send(request)
        self.answered += answered
        return now

    def drain(self) -> None:
        """Wait for the answers that are due, and for every message at every subscriber."""
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        waiting = set(self._ways)
        total = (self.answered + len(waiting)) * self._pipeline
        due = total * self._wire.received_bytes
        while waiting or any(count < due for count in self._received.values()):
            if time.perf_counter() > deadline:
                raise BenchError(
                    f"{len(waiting)} publishes were not answered in time, or subscribers received "
                    f"{[*self._received.values()]} bytes of {due}"
                )
            for number, _ in self._epoll.poll(0.1, EVENTS_MAX):
                if number not in self._ways:
                    self._take(number)
                elif self._completes(number, self._ways[number][0](ANSWER_BYTES_MAX)):
                    waiting.discard(number)
        if any(count != due for count in self._received.values()):
            raise BenchError(f"subscribers received {[*self._received.values()]} bytes of {due}")

    def _completes(self, number: int, data: bytes) -> bool:
        """Whether these bytes end the connection's answer, which may come in parts."""
        if not data:
            raise BenchError("the system closed a publisher's connection")
        missing = self._missing.pop(number, self._answer_bytes) - len(data)
        if missing < 0:
            raise BenchError(f"a publish was answered with too much: {data[:100]!r}")
        if missing:
            self._missing[number] = missing
        return not missing

    def _take(self, number: int) -> None:
        count = self._takes[number](self._scratch)
        if not count:
            raise BenchError("the system closed a subscriber's connection")
        self._received[number] += count


@contextlib.contextmanager
def answered_load(
    wire: AnsweredWire, port: int, connections: int, subscribers: int, pipeline: int
) -> Generator[AnsweredLoad]:
    """A load. Its sockets are closed at the end in any case."""
    load = AnsweredLoad(wire, port, connections, subscribers, pipeline)
    try:
        yield load
    finally:
        load.close()


def measure_answered(
    load: AnsweredLoad, pid: int, pipeline: int, warmup_s: float, run_s: float
) -> AnsweredCounts:
    """Warm up, count for a while, then drain and verify."""
    load.begin()
    began = load.pump(time.perf_counter() + warmup_s)
    answered, cpu_s = load.answered, cpu_seconds(pid)
    ended = load.pump(began + run_s)
    messages = (load.answered - answered) * pipeline
    cpu_s = cpu_seconds(pid) - cpu_s
    load.drain()
    return AnsweredCounts(
        published_per_s=messages / (ended - began),
        cpu_us=cpu_s / max(messages, 1) * 1e6,
        busy=cpu_s / (ended - began),
    )
