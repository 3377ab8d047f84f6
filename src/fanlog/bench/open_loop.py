"""The open loop: one publisher that sends at a fixed rate, whatever the system does, and N
subscribers.

Law: message number i is due at the start plus i divided by the rate, and its latency counts from
then until the last subscriber has its last byte. A system or a generator that stands still makes
every message late that was due meanwhile, so nothing is hidden (no coordinated omission).
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import FanoutWire, connect

RECEIVE_BYTES_MAX = 4 << 20
DRAIN_TIMEOUT_S = 30.0
EVENTS_MAX = 2048
NS = 1_000_000_000
NEVER_NS = 1 << 62
# The most messages in one send, when many are overdue.
SEND_UNITS_MAX = 1024


@dataclass(frozen=True, slots=True)
class OpenLoopTimes:
    """Nanoseconds, sorted: of each message until the last subscriber had it, and until it was
    sent, both since it was due; and the messages a second that arrived."""

    took_ns: list[int]
    sent_ns: list[int]
    arrived_per_s: float


class OpenLoop:
    """A publisher and its subscribers, connected and ready."""

    def __init__(self, wire: FanoutWire, port: int, subscribers: int) -> None:
        self._readers = [connect(port) for _ in range(subscribers)]
        self._publisher = connect(port)
        wire.prepare(self._publisher, self._readers)
        self._unit = wire.unit()
        self._unit_bytes = len(self._unit)
        self._block = memoryview(self._unit * SEND_UNITS_MAX)
        self._received_bytes = wire.received_bytes
        self._takes = {sock.fileno(): sock.recv_into for sock in self._readers}
        self._received = dict.fromkeys(self._takes, 0)
        self._scratch = bytearray(RECEIVE_BYTES_MAX)
        self._sent_bytes = 0
        self._epoll = select.epoll(subscribers + 1)
        for sock in [self._publisher, *self._readers]:
            sock.setblocking(False)
            self._epoll.register(sock, select.EPOLLIN)

    def close(self) -> None:
        """Close every socket."""
        self._epoll.close()
        for sock in [self._publisher, *self._readers]:
            sock.close()

    def run(self, rate: int, warmup: int, count: int) -> OpenLoopTimes:
        """Sends `warmup` and then `count` messages on schedule. Returns the times of the latter."""
        clock, poll, takes = time.perf_counter_ns, self._epoll.poll, self._takes
        received, each_bytes, scratch = self._received, self._received_bytes, self._scratch
        total = warmup + count
        # For each message: subscribers still waiting; and when it was due, sent and received.
        waiting = [len(self._readers)] * total
        start = clock()
        due = [start + number * NS // rate for number in range(total)]
        due.append(NEVER_NS)
        sent, arrived, done, next_due = [0] * total, [0] * total, 0, start
        deadline = due[total - 1] + int(DRAIN_TIMEOUT_S * NS)
        while done < total:
            if (now := clock()) >= next_due:
                next_due = self._send(due, sent, total)
            if now > deadline:
                raise BenchError(f"{total - done} of {total} messages did not arrive in time")
            for number, _ in poll(0, EVENTS_MAX):
                if number not in takes:
                    self._discard_answers()
                    continue
                had = received[number]
                more = takes[number](scratch)
                if not more:
                    raise BenchError("the system closed a subscriber's connection")
                received[number] = has = had + more
                now = clock()
                for unit in range(had // each_bytes, has // each_bytes):
                    waiting[unit] -= 1
                    if not waiting[unit]:
                        arrived[unit] = now
                        done += 1
                if now >= next_due:
                    # Receiving from many subscribers must not delay the next message.
                    next_due = self._send(due, sent, total)
        self._verify(total)
        measured = range(warmup, total)
        took_s = (arrived[-1] - due[warmup]) / NS
        return OpenLoopTimes(
            took_ns=sorted(arrived[number] - due[number] for number in measured),
            sent_ns=sorted(sent[number] - due[number] for number in measured),
            arrived_per_s=count / took_s,
        )

    def _send(self, due: Sequence[int], sent: list[int], total: int) -> int:
        """Sends all that is due. Returns when the next message is due."""
        first = self._sent_bytes // self._unit_bytes
        now, last = time.perf_counter_ns(), first
        while last < total and due[last] <= now and last - first < SEND_UNITS_MAX - 1:
            last += 1
        rest = self._sent_bytes % self._unit_bytes
        with contextlib.suppress(BlockingIOError):
            size = (last - first) * self._unit_bytes - rest
            self._sent_bytes += self._publisher.send(self._block[rest : rest + size])
        now, whole = time.perf_counter_ns(), self._sent_bytes // self._unit_bytes
        for number in range(first, whole):
            sent[number] = now
        # If the socket was full, the rest is overdue, and is retried at once.
        return due[whole]

    def _discard_answers(self) -> None:
        if not self._publisher.recv_into(self._scratch, RECEIVE_BYTES_MAX, socket.MSG_TRUNC):
            raise BenchError("the system closed the publisher's connection")

    def _verify(self, total: int) -> None:
        for count in self._received.values():
            if count != total * self._received_bytes:
                raise BenchError(
                    f"a subscriber received {count} bytes of {total * self._received_bytes}"
                )


@contextlib.contextmanager
def open_loop(wire: FanoutWire, port: int, subscribers: int) -> Generator[OpenLoop]:
    """An open loop whose sockets are closed at the end, whatever happens."""
    loop = OpenLoop(wire, port, subscribers)
    try:
        yield loop
    finally:
        loop.close()
