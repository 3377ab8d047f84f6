"""Pings at a fixed rate from a process of their own: what other clients notice of a busy broker.

Law: a ping is due at a time that no answer moves. One that has to wait behind another is late
from the time it was due, so that a stall of a second counts as a second of late pings and not as
one.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Generator
from multiprocessing.connection import Connection

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import connect
from fanlog.bench.wires.fanlog import greet
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, frame

INTERVAL_S = 0.001
RECEIVE_BYTES = 1 << 16
# The benchmark gives up on an operation that stalls the broker for longer.
ANSWER_TIMEOUT_S = 60.0


class Pinger:
    """The process that pings one broker until it gets a stop message."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def take(self) -> list[float]:
        """The waits of all pings that were due since the last call, in seconds."""
        self._pipe.send("take")
        if not self._pipe.poll(ANSWER_TIMEOUT_S):
            raise BenchError(f"a ping was not answered within {ANSWER_TIMEOUT_S:.0f} s")
        try:
            return array("d", self._pipe.recv_bytes()).tolist()
        except EOFError:
            raise BenchError("the broker closed the connection that pings it") from None


@contextlib.contextmanager
def pinging(port: int, cores: frozenset[int] | None) -> Generator[Pinger]:
    """Ping a broker while the body runs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_ping, args=(port, theirs, cores), daemon=True)
    process.start()
    theirs.close()
    try:
        pinger = Pinger(ours)
        pinger.take()
        yield pinger
    finally:
        ours.close()
        process.join(ANSWER_TIMEOUT_S)


def _ping(port: int, pipe: Connection, cores: frozenset[int] | None) -> None:
    gc.disable()
    if cores is not None:
        os.sched_setaffinity(0, cores)
    with connect(port) as sock:
        greet(sock)
        sock.setblocking(False)
        with contextlib.suppress(EOFError, OSError):
            _Pings(sock, pipe).run()


class _Pings:
    """Pings in flight, by due time, and the waits of those that returned."""

    def __init__(self, sock: socket.socket, pipe: Connection) -> None:
        self._sock = sock
        self._pipe = pipe
        self._due: deque[float] = deque()
        self._waits = array("d")
        self._next_s = time.perf_counter()
        self._half_bytes = 0

    def run(self) -> None:
        """Runs until the other end of the pipe is gone."""
        while True:
            self._send()
            pause_s = max(0.0, self._next_s - time.perf_counter())
            readable, _, _ = select.select([self._sock, self._pipe], [], [], pause_s)
            if self._sock in readable:
                self._receive()
            if self._pipe in readable:
                self._pipe.recv()
                self._hand_over()

    def _hand_over(self) -> None:
        """Answers with the waits, when all pings that were due before have returned."""
        last_s = self._due[-1] if self._due else 0.0
        while self._due and self._due[0] <= last_s:
            select.select([self._sock], [], [], INTERVAL_S)
            self._receive()
        self._pipe.send_bytes(self._waits.tobytes())
        del self._waits[:]

    def _send(self) -> None:
        now_s = time.perf_counter()
        while self._next_s <= now_s:
            self._sock.send(frame(FrameKind.PING, request=1))
            self._due.append(self._next_s)
            self._next_s += INTERVAL_S

    def _receive(self) -> None:
        try:
            received = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not received:
            raise EOFError
        now_s = time.perf_counter()
        answers, self._half_bytes = divmod(self._half_bytes + len(received), FRAME_HEADER_BYTES)
        for _ in range(answers):
            self._waits.append(now_s - self._due.popleft())
