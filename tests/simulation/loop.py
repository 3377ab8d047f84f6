"""The event loop of one simulated process: asyncio's rules on virtual time, without a selector.

Law: as in asyncio, callbacks run in the order in which they became ready, and a turn runs those
that were ready when it began. Between two turns everybody else in the world may act.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tests.simulation.world import Event, Killed

if TYPE_CHECKING:
    from tests.simulation.process import Process

logger = logging.getLogger("simulation")
T = TypeVar("T")


class Watched(Protocol):
    """A simulated socket, as the loop looks at it."""

    def readable(self) -> bool: ...
    def writable(self) -> bool: ...


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Of the many methods of a loop those that Fanlog uses."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._dice = process.world.dice(f"loop {process.name}")
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._readers: dict[int, asyncio.Handle] = {}
        self._writers: dict[int, asyncio.Handle] = {}
        self._turn: Event | None = None
        self._turn_at = 0.0
        self._in_turn = False
        # Until then the process is busy, or stopped.
        self.busy_until = 0.0
        self.faults: list[dict[str, Any]] = []

    # Time and callbacks

    def time(self) -> float:
        return self._process.clock.monotonic()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self.wake()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        self.wake()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio's own handles call it. A cancelled timer is passed over when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        # Names are counted over all loops of the real process: they would differ with each run.
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._process.tasks.append(task)
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as fault:  # noqa: BLE001 - handed on
                error = fault
                self.call_soon(lambda: future.cancelled() or future.set_exception(error))
            else:
                self.call_soon(lambda: future.cancelled() or future.set_result(result))

        self._process.threads.begin(work)
        return future

    # Sockets

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._replace(self._readers, fd, asyncio.Handle(callback, args, self, None))

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._replace(self._writers, fd, asyncio.Handle(callback, args, self, None))

    def _replace(self, handles: dict[int, asyncio.Handle], fd: int, new: asyncio.Handle) -> None:
        old = handles.pop(fd, None)
        if old is not None:
            old.cancel()
        handles[fd] = new
        self.wake()

    def remove_reader(self, fd: Any) -> bool:
        handle = self._readers.pop(fd, None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    def remove_writer(self, fd: Any) -> bool:
        handle = self._writers.pop(fd, None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    async def create_connection(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        ssl: object = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        assert ssl is None, "the simulated network has no TLS"
        return await self._process.connect(protocol_factory, host, port)

    # Turns

    def wake(self) -> None:
        """Something is ready, or a timer was set."""
        if self._in_turn:
            # Its end looks again.
            return
        world, turn = self._world, self._turn
        soonest = max(self.busy_until, world.now)
        if turn is not None and self._turn_at <= soonest:
            return
        if not self._process.alive or world.over:
            return
        if self._ready or self._has_ready_socket():
            when = soonest
        elif self._timers:
            first = self._timers[0][0]
            when = max(soonest, first)
        else:
            return
        if turn is not None:
            if self._turn_at <= when:
                return
            turn.cancel()
        self._turn_at = when
        self._turn = world.at(when, self._begin_turn)

    def _has_ready_socket(self) -> bool:
        sockets = self._process.sockets
        for fd in self._readers:
            if fd in sockets and sockets[fd].readable():
                return True
        return any(fd in sockets and sockets[fd].writable() for fd in self._writers)

    def _ready_sockets(self) -> list[asyncio.Handle]:
        sockets = self._process.sockets
        ready = [h for fd, h in self._readers.items() if fd in sockets and sockets[fd].readable()]
        if self._writers:
            ready += [
                h for fd, h in self._writers.items() if fd in sockets and sockets[fd].writable()
            ]
        return ready

    def _begin_turn(self) -> None:
        self._turn = None
        process, world = self._process, self._world
        if not process.alive:
            return
        if world.now < self.busy_until:
            self.wake()
            return
        before = process.enter(self)
        self._in_turn = True
        try:
            self._run_turn()
        finally:
            self._in_turn = False
            process.leave(*before)
        if process.alive:
            took = self._dice.uniform(0.000_01, 0.000_2)
            self.busy_until = max(self.busy_until, world.now + took)
            self.wake()

    def _run_turn(self) -> None:
        process, ready, timers = self._process, self._ready, self._timers
        now = self.time() + 1e-9
        if self._readers or self._writers:
            ready.extend(self._ready_sockets())
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        self._world.note(f"{process.name} turn {len(ready)}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue,reportUnknownMemberType]
                if not process.alive:
                    return

    # What asyncio asks of every loop

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if not isinstance(fault, Killed) and self._process.alive and not self._world.over:
            self.faults.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)
