"""Steps: the CPU time of each call that a broker's event loop makes.

Law: a step is one callback of the loop, and its time is CPU time of the loop's thread, so that
neither the disk nor other programs count. The broker runs in a process of its own, on asyncio's
loop: uvloop does not let every call be measured. The garbage collector is off, because it would
count for whichever step it happens to interrupt.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Generator
from contextvars import Context
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fanlog.bench.environment import raise_open_files_limit
from fanlog.bench.systems import BenchError
from fanlog.config import BrokerOptions, Config, ListenerOptions, RedisOptions
from fanlog.node import Node

ANSWER_TIMEOUT_S = 60.0


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop that records the CPU time of its longest call."""

    def __init__(self) -> None:
        super().__init__()
        self._longest_ns = 0

    def take_longest_ms(self) -> float:
        """The longest call since the last request."""
        longest_ns, self._longest_ns = self._longest_ns, 0
        return longest_ns / 1e6

    def _timed(self, callback: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object) -> None:
            began_ns = time.thread_time_ns()
            try:
                callback(*args)
            finally:
                self._longest_ns = max(self._longest_ns, time.thread_time_ns() - began_ns)

        return run

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._timed(callback), *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._timed(callback), *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._timed(callback), *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        super().add_reader(fd, self._timed(callback), *args)

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        super().add_writer(fd, self._timed(callback), *args)


@dataclass(frozen=True, slots=True)
class SteppedBroker:
    """A broker whose steps are measured."""

    port: int
    # The port of the Redis listener, which `close_redis` closes.
    redis_port: int
    pipe: Connection

    def close_redis(self) -> None:
        """Closes the Redis listener, with all its connections."""
        self.pipe.send("close")
        _answer(self.pipe)

    def take_longest_ms(self) -> float:
        """Its longest step since the last call."""
        self.pipe.send("take")
        return float(_answer(self.pipe))


@contextlib.contextmanager
def stepped_broker(
    cores: frozenset[int] | None, parent: Path | None = None
) -> Generator[SteppedBroker]:
    """Run a broker in a fresh folder under `parent` until the body ends."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="fanlog-bench-", dir=parent) as folder:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, folder, cores), daemon=True)
        process.start()
        theirs.close()
        try:
            port, redis_port = _answer(ours)
            yield SteppedBroker(port, redis_port, ours)
        finally:
            ours.close()
            process.join(ANSWER_TIMEOUT_S)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(ANSWER_TIMEOUT_S):
        raise BenchError(f"the broker did not answer within {ANSWER_TIMEOUT_S:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise BenchError("the broker whose steps are measured has ended") from None


def _serve(pipe: Connection, folder: str, cores: frozenset[int] | None) -> None:
    gc.disable()
    raise_open_files_limit()
    if cores is not None:
        os.sched_setaffinity(0, cores)
    loop = SteppedLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serving(loop, pipe, folder))
    finally:
        loop.close()


async def _serving(loop: SteppedLoop, pipe: Connection, folder: str) -> None:
    """Runs until the other end of the pipe is gone."""
    options = BrokerOptions(group_grace_seconds=0)
    config = Config(listener=ListenerOptions(port=0), redis=RedisOptions(port=0), broker=options)
    node = Node(folder, config)
    node.start()
    ended = loop.create_future()
    closing: list[asyncio.Task[None]] = []

    def asked() -> None:
        try:
            wanted = pipe.recv()
        except EOFError:
            loop.remove_reader(pipe.fileno())
            ended.set_result(None)
        else:
            if wanted == "close":
                closing.append(loop.create_task(close()))
            else:
                pipe.send(loop.take_longest_ms())

    async def close() -> None:
        await redis.drain(loop.time())
        await redis.close()
        pipe.send(None)

    port, redis = node.listen().port, node.listen_redis()
    pipe.send((port, redis.port))
    loop.add_reader(pipe.fileno(), asked)
    await ended
    await node.stop()
