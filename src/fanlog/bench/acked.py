"""The publisher that waits: one connection, a window of unacknowledged messages, counted replies.

Law: at no time are more messages unacknowledged than the window allows, and in the end the system
must say that it has taken exactly what it acknowledged.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import SETUP_TIMEOUT_S, AckedWire, connect

RECEIVE_BYTES_MAX = 1 << 20
BLOCK_BYTES_MIN = 256 << 10
DRAIN_TIMEOUT_S = 30.0
POLL_TIMEOUT_S = 0.2
SLICE_S = 0.05

# Prepares a block of units to be sent again. Takes the number of its first unit in the run.
Renumber = Callable[[memoryview, int], None]


@dataclass(slots=True)
class AckedLoad:
    """A publisher in the middle of its run."""

    wire: AckedWire
    sock: socket.socket
    epoll: select.epoll
    block: memoryview
    unit_bytes: int
    window_units: int
    renumber: Renumber | None = None
    # Whether it asks for its one answer again and again. Not where the system needs its core.
    spins: bool = True
    sent_bytes: int = 0
    acknowledged_units: int = 0

    def pump(self, until_s: float) -> float:
        """Publishes and counts until this time of the performance clock. Returns the time of its
        end."""
        while (now := time.perf_counter()) < until_s:
            self.send((self.acknowledged_units + self.window_units) * self.unit_bytes)
            self.receive()
        return now

    def drain(self) -> None:
        """Finishes the current unit and waits until everything is acknowledged."""
        units = -(-self.sent_bytes // self.unit_bytes)
        deadline = time.perf_counter() + DRAIN_TIMEOUT_S
        while self.acknowledged_units < units:
            if time.perf_counter() > deadline:
                raise BenchError(
                    f"{self.acknowledged_units} of {units} publishes were acknowledged in time"
                )
            self.send(units * self.unit_bytes)
            self.receive()

    def slice(self, slice_s: float) -> float:
        """Publishes for a moment, and waits until all is acknowledged. Returns the time taken."""
        began = time.perf_counter()
        self.pump(began + slice_s)
        self.drain()
        return time.perf_counter() - began

    def fill(self, units: int, timeout_s: float) -> int:
        """Publishes exactly this many units. Returns the number of messages, verified."""
        deadline = time.perf_counter() + timeout_s
        while self.acknowledged_units < units:
            if time.perf_counter() > deadline:
                raise BenchError(f"the log was not filled within {timeout_s:.0f} s")
            self.send(min(units, self.acknowledged_units + self.window_units) * self.unit_bytes)
            self.receive()
        self.verify()
        return units * self.wire.messages

    def verify(self) -> None:
        """Checks that the system has stored exactly what it acknowledged."""
        self.sock.settimeout(SETUP_TIMEOUT_S)
        verify_stored(self.wire, self.sock, self.acknowledged_units * self.wire.messages)

    def send(self, limit_bytes: int) -> None:
        """Send as much as the limit and the socket allow."""
        while self.sent_bytes < limit_bytes:
            start = self.sent_bytes % len(self.block)
            if self.renumber is not None and start == 0:
                self.renumber(self.block, self.sent_bytes // self.unit_bytes)
            end = min(len(self.block), start + limit_bytes - self.sent_bytes)
            try:
                self.sent_bytes += self.sock.send(self.block[start:end])
            except BlockingIOError:
                return

    def receive(self) -> None:
        """Wait for the socket, and count what it brings."""
        # With one unit in flight this spins: waking up would be most of what is measured.
        spins = self.spins and self.window_units == 1
        self.epoll.poll(0 if spins else POLL_TIMEOUT_S)
        try:
            received = self.sock.recv(RECEIVE_BYTES_MAX)
        except BlockingIOError:
            return
        if not received:
            raise BenchError("the system closed the publisher's connection")
        self.acknowledged_units += self.wire.acknowledged(received)


@contextlib.contextmanager
def acked_load(
    wire: AckedWire,
    port: int,
    window_messages: int,
    renumber: Renumber | None = None,
    *,
    spins: bool = True,
) -> Generator[AckedLoad]:
    """A publisher on a connection of its own. `renumber` is for a wire whose units must not be
    repeated as they are."""
    with connect(port) as sock, select.epoll() as epoll:
        wire.prepare(sock)
        cycle = wire.cycle()
        if len({len(unit) for unit in cycle}) != 1:
            raise BenchError("the units of a cycle differ in length")
        repeats = max(1, -(-BLOCK_BYTES_MIN // (len(cycle) * len(cycle[0]))))
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLIN)
        yield AckedLoad(
            wire=wire,
            sock=sock,
            epoll=epoll,
            block=memoryview(bytearray(b"".join(cycle) * repeats)),
            unit_bytes=len(cycle[0]),
            window_units=max(1, window_messages // wire.messages),
            renumber=renumber,
            spins=spins,
        )


def measure_acked(
    wire: AckedWire, port: int, window_messages: int, warmup_s: float, run_s: float
) -> float:
    """Acknowledged messages per second over one connection, verified against what is stored."""
    with acked_load(wire, port, window_messages) as load:
        began = load.pump(time.perf_counter() + warmup_s)
        before = load.acknowledged_units
        ended = load.pump(began + run_s)
        counted = load.acknowledged_units - before
        load.drain()
        load.verify()
        return counted * wire.messages / (ended - began)


def measure_in_turn(loads: Sequence[AckedLoad], warmup_s: float, run_s: float) -> list[float]:
    """The same for several publishers to one system, in slices so short that noise of the machine
    hits all alike. `run_s` is for each publisher."""
    for load in loads:
        load.slice(warmup_s / len(loads))
    took_s = [0.0] * len(loads)
    before = [load.acknowledged_units for load in loads]
    order = list(range(len(loads)))
    while min(took_s) < run_s:
        for number in order:
            took_s[number] += loads[number].slice(SLICE_S)
        # The order changes, so that no publisher always follows the same one.
        order.reverse()
    counted = [load.acknowledged_units for load in loads]
    for load in loads:
        load.verify()
    return [
        (after - units) * load.wire.messages / took
        for load, units, after, took in zip(loads, before, counted, took_s, strict=True)
    ]


def verify_stored(wire: AckedWire, sock: socket.socket, acknowledged: int) -> None:
    """What was acknowledged is what was taken."""
    stored = wire.stored(sock)
    if stored != acknowledged:
        raise BenchError(f"{acknowledged} messages were acknowledged, but {stored} were taken")
