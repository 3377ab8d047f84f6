"""Runs the workers of a core: starts them, starts those again that die or hang, passes settings on,
and drains them before the core. Adds up what they report."""

from __future__ import annotations

import asyncio
import heapq
import logging
import signal
import socket
import sys
import time
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
from fanlog.workers.worker_state import WorkerState, sum_counts

logger = logging.getLogger("fanlog.workers")

# The wait before a worker is started again. It doubles with each early end.
_BACKOFF_SECONDS = 0.2
_BACKOFF_MAX_SECONDS = 10.0
# A worker that ran for this time had a good start.
_GOOD_SECONDS = 10.0
# To import everything, on a busy machine.
_START_SECONDS_MAX = 120.0
# What a worker needs beyond `listener.drain_seconds` to end.
_END_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
# A worker reports once a second. After so long without a report it is a problem.
_SILENT_SECONDS = 5.0
# After so long it is killed, and started again: until then the kernel gives it connections.
_SILENT_SECONDS_MAX = 15.0
_LOOK_SECONDS = 1.0
_SECOND_US = 1_000_000


_NO_CONNECTIONS = ConnectionPage(connections=(), total=0)


class Supervisor:
    """`command` starts a worker; the number of its end of the channel is added. `begin` tells the
    worker of a number what it is. `monotonic_us` is the clock that stops while the core stands
    still: no worker is silent because the core did not listen."""

    def __init__(
        self,
        count: int,
        command: Sequence[str],
        begin: Callable[[int], Begin],
        monotonic_us: Callable[[], int],
    ) -> None:
        self._command = command
        self._begin = begin
        self._monotonic_us = monotonic_us
        self._workers = [WorkerState(number) for number in range(1, count + 1)]
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None
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
        self._looking = loop.create_task(self._look())

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
                code = "a bug of ours"
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
        worker.answered_us = self._monotonic_us()
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
            worker.answered_us = self._monotonic_us()
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

    # Those that hang, or that somebody has stopped

    async def _look(self) -> None:
        while not self._stopping:
            for worker in self._workers:
                self._maybe_kill(worker)
            await asyncio.sleep(_LOOK_SECONDS)

    def _maybe_kill(self, worker: WorkerState) -> None:
        """Kills it if it was silent for too long. Then it ends as any other, and starts again."""
        silent_seconds = self._silent_seconds(worker)
        limit_seconds = _SILENT_SECONDS_MAX if worker.is_open else _START_SECONDS_MAX
        if worker.process is None or silent_seconds <= limit_seconds:
            return
        logger.error(
            "Worker %d (process %d) has not answered for %d s: it is killed.",
            worker.number,
            worker.process.pid,
            silent_seconds,
        )
        with suppress(ProcessLookupError):
            worker.process.kill()

    def _silent_seconds(self, worker: WorkerState) -> float:
        return (self._monotonic_us() - worker.answered_us) / _SECOND_US

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
        if self._looking is not None:
            self._looking.cancel()
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
        if self._stopping:
            return []
        return [said for worker in self._workers if (said := self._maybe_problem(worker))]

    def _maybe_problem(self, worker: WorkerState) -> str | None:
        if not worker.is_open:
            return f"worker {worker.number} is not running: it is being started again"
        silent_seconds = self._silent_seconds(worker)
        if silent_seconds <= _SILENT_SECONDS:
            return None
        return f"worker {worker.number} has not answered for {silent_seconds:.0f} s"

    def metrics(self) -> tuple[WorkerMetrics, ...]:
        return tuple(
            worker.metrics(up=worker.is_open and self._silent_seconds(worker) <= _SILENT_SECONDS)
            for worker in self._workers
        )

    def listener(self, name: str) -> ListenerMetrics:
        """A listener of all workers together."""
        counts = ListenerCounts()
        for worker in self._workers:
            counts = sum_counts(counts, worker.listener(name))
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
