"""Runs the workers of a core: starts them, starts those again that die, passes settings on, and
drains them before the core. Adds up what they report."""

from __future__ import annotations

import asyncio
import heapq
import logging
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

import msgspec

from fanlog.config import Config
from fanlog.errors import ConfigError, RequestTimeoutError
from fanlog.format.messages import ConnectionPage, ConnectionsRequest
from fanlog.telemetry.snapshot import ListenerMetrics, WorkerMetrics
from fanlog.workers.channel import (
    Apply,
    AskConnections,
    Begin,
    Drain,
    FoundConnections,
    ListenerCounts,
    Opened,
    StartFailed,
    ToWorker,
    WorkerChannel,
    WorkerReport,
    open_channel,
)

logger = logging.getLogger("fanlog.workers")

# The wait before a worker is started again. It doubles with each early end.
_BACKOFF_SECONDS = 0.2
_BACKOFF_MAX_SECONDS = 10.0
# A worker that ran for so long had a good start.
_GOOD_SECONDS = 10.0
# To import everything, on a busy machine.
_START_SECONDS_MAX = 120.0
# What a worker needs beyond `listener.drain_seconds` to end.
_END_SECONDS = 5.0
_ANSWER_SECONDS = 10.0


_NO_CONNECTIONS = ConnectionPage(connections=(), total=0)


class WorkerState:
    """One of the workers: its process, and what it has reported. `number` counts from 1."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.channel: WorkerChannel | None = None
        self.is_open = False
        self.restarts = 0
        self.report = WorkerReport()
        # Of its processes before this one.
        self._before: dict[str, ListenerCounts] = {}
        self._delivered_messages = 0
        self._delivered_bytes = 0

    def ended(self) -> None:
        """Its process is gone: counters go on, levels are 0."""
        report, self.report = self.report, WorkerReport()
        self.process = self.channel = None
        self.is_open = False
        self._delivered_messages += report.delivered_messages
        self._delivered_bytes += report.delivered_bytes
        for name in report.listeners:
            self._before[name] = msgspec.structs.replace(
                _sum(self._before.get(name), report.listeners[name]), connections=0
            )

    def listener(self, name: str) -> ListenerCounts:
        return _sum(self._before.get(name), self.report.listeners.get(name))

    @property
    def delivered_messages(self) -> int:
        return self._delivered_messages + self.report.delivered_messages

    @property
    def delivered_bytes(self) -> int:
        return self._delivered_bytes + self.report.delivered_bytes

    @property
    def connections(self) -> int:
        return sum(counts.connections for counts in self.report.listeners.values())

    def metrics(self) -> WorkerMetrics:
        return WorkerMetrics(
            number=self.number,
            pid=0 if self.process is None else self.process.pid,
            up=self.is_open,
            restarts=self.restarts,
            connections=self.connections,
            subscriptions=self.report.subscriptions,
            delivered_messages=self.delivered_messages,
            delivered_bytes=self.delivered_bytes,
            cpu_seconds=self.report.cpu_seconds,
            resident_bytes=self.report.resident_bytes,
        )


def _sum(one: ListenerCounts | None, other: ListenerCounts | None) -> ListenerCounts:
    if one is None or other is None:
        return one or other or ListenerCounts()
    return ListenerCounts(
        one.connections + other.connections,
        one.accepted + other.accepted,
        one.refused + other.refused,
        one.auth_failures + other.auth_failures,
    )


class Supervisor:
    """`command` starts a worker; the number of its end of the channel is added. `begin` tells the
    worker of a number what it is."""

    def __init__(self, count: int, command: Sequence[str], begin: Callable[[int], Begin]) -> None:
        self._command = command
        self._begin = begin
        self._workers = [WorkerState(number) for number in range(1, count + 1)]
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._asked: dict[int, asyncio.Future[ConnectionPage]] = {}
        self._asked_last = 0
        # The first start of each: its error, or None.
        self._opened: dict[int, asyncio.Future[None]] = {}

    async def start(self) -> None:
        """Returns when all workers listen. Raises ConfigError if one of them can't."""
        loop = asyncio.get_running_loop()
        self._opened = {worker.number: loop.create_future() for worker in self._workers}
        self._tasks = [loop.create_task(self._keep(worker)) for worker in self._workers]
        try:
            async with asyncio.timeout(_START_SECONDS_MAX):
                await asyncio.gather(*self._opened.values())
        except TimeoutError:
            raise ConfigError(
                f"The workers did not start within {_START_SECONDS_MAX:.0f} s. Try fewer of them."
            ) from None

    # One worker

    async def _keep(self, worker: WorkerState) -> None:
        """Runs a worker, again and again."""
        backoff_seconds = _BACKOFF_SECONDS
        while not self._stopping:
            began = time.monotonic()
            try:
                code = await self._run(worker)
            except OSError as fault:
                code = str(fault)
            except Exception:
                logger.exception("running worker %d failed", worker.number)
                code = "a fault of ours"
            if self._stopping:
                return
            if time.monotonic() - began > _GOOD_SECONDS:
                backoff_seconds = _BACKOFF_SECONDS
            logger.warning(
                "Worker %d has ended (%s): it starts again in %.1f s.",
                worker.number,
                code,
                backoff_seconds,
            )
            worker.restarts += 1
            await asyncio.sleep(backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, _BACKOFF_MAX_SECONDS)

    async def _run(self, worker: WorkerState) -> str:
        """Runs a worker once; how it ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = worker.process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            ours.close()
            raise
        channel = worker.channel = await open_channel(ours)
        channel.send(self._begin(worker.number))
        try:
            await self._listen(worker, channel)
            async with asyncio.timeout(_END_SECONDS):
                return _how(await process.wait())
        except TimeoutError:
            return "it hung"
        finally:
            channel.close()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            worker.ended()

    async def _listen(self, worker: WorkerState, channel: WorkerChannel) -> None:
        opened = self._opened[worker.number]
        while (message := await channel.next_from_worker()) is not None:
            match message:
                case WorkerReport():
                    worker.report = message
                case FoundConnections():
                    asked = self._asked.get(message.id)
                    if asked is not None and not asked.done():
                        asked.set_result(message.page)
                case Opened():
                    worker.is_open = True
                    if not opened.done():
                        opened.set_result(None)
                    else:
                        logger.info("Worker %d is back.", worker.number)
                case StartFailed():
                    if not opened.done():
                        opened.set_exception(ConfigError(message.reason))
                    else:
                        logger.error("Worker %d can't start: %s", worker.number, message.reason)

    # All of them

    def apply(self, config: Config) -> None:
        """Settings have changed. A worker that is started later begins with them."""
        self._tell(Apply(config))

    def _tell(self, message: ToWorker) -> None:
        for worker in self._workers:
            if worker.channel is not None:
                worker.channel.send(message)

    async def stop(self, drain_seconds: float) -> None:
        """Drains the workers, and waits until they have ended. Those that take too long are
        killed."""
        self._stopping = True
        self._tell(Drain())
        if not self._tasks:
            return
        sleeping = [
            task
            for task, worker in zip(self._tasks, self._workers, strict=True)
            if worker.process is None
        ]
        for task in sleeping:
            task.cancel()
        _, left = await asyncio.wait(self._tasks, timeout=drain_seconds + _END_SECONDS)
        for task in left:
            # It kills its process.
            task.cancel()
        if left:
            logger.warning("%d workers did not end in time, and were killed.", len(left))
            await asyncio.wait(left)
        for future in self._opened.values():
            if future.done() and not future.cancelled():
                future.exception()

    # What they say

    @property
    def connections(self) -> int:
        """Clients of all workers."""
        return sum(worker.connections for worker in self._workers)

    @property
    def subscriptions(self) -> int:
        return sum(worker.report.subscriptions for worker in self._workers)

    @property
    def delivered_messages(self) -> int:
        return sum(worker.delivered_messages for worker in self._workers)

    @property
    def delivered_bytes(self) -> int:
        return sum(worker.delivered_bytes for worker in self._workers)

    def problems(self) -> list[str]:
        return [
            f"worker {worker.number} is not running: it is being started again"
            for worker in self._workers
            if not worker.is_open and not self._stopping
        ]

    def metrics(self) -> tuple[WorkerMetrics, ...]:
        return tuple(worker.metrics() for worker in self._workers)

    def listener(self, name: str) -> ListenerMetrics:
        """A listener of all workers together."""
        counts = ListenerCounts()
        for worker in self._workers:
            counts = _sum(counts, worker.listener(name))
        return ListenerMetrics(name=name, **msgspec.structs.asdict(counts))

    async def find_connections(
        self, wanted: ConnectionsRequest, here: ConnectionPage
    ) -> ConnectionPage:
        """The connections of all workers that are meant, and those of this process."""
        asking = (self._ask(worker, wanted) for worker in self._workers)
        pages = [here, *await asyncio.gather(*asking)]
        found = heapq.merge(*(page.connections for page in pages), key=lambda one: one.id)
        total = sum(page.total for page in pages)
        if wanted.kind == "close":
            return ConnectionPage(connections=tuple(found), total=total)
        shown = tuple(islice(found, max(1, wanted.limit)))
        after = shown[-1].id if len(shown) < total and len(shown) >= wanted.limit else ""
        return ConnectionPage(connections=shown, total=total, next=after)

    async def _ask(self, worker: WorkerState, wanted: ConnectionsRequest) -> ConnectionPage:
        if worker.channel is None or not worker.is_open:
            return _NO_CONNECTIONS
        self._asked_last += 1
        id = self._asked_last
        answer = self._asked[id] = asyncio.get_running_loop().create_future()
        worker.channel.send(AskConnections(id, wanted))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            if not worker.is_open:
                return _NO_CONNECTIONS
            raise RequestTimeoutError(
                f"Worker {worker.number} did not say within {_ANSWER_SECONDS:.0f} s which "
                "connections it has. Try again."
            ) from None
        finally:
            del self._asked[id]


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def check_workers(count: int) -> None:
    """Raises ConfigError if this system has no workers."""
    if count and sys.platform != "linux":
        raise ConfigError(
            "Workers need Linux, which shares a port out between processes. Leave out --workers "
            "(workers = 0), or run edges on ports of their own behind a load balancer."
        )
