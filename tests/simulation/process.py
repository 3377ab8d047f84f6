"""A simulated process: a loop, threads, open files and sockets. It runs on a machine, and may be
killed at any moment: none of its code runs after that, and its connections break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import SimulatedLoop
from tests.simulation.threads import Threads
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.network import NetworkSocket
    from tests.simulation.open_files import OpenFile

# Above those that the real process has, so that a mistake is found at once.
_FIRST_NUMBER = 1_000_000


class Process:
    def __init__(self, world: World, machine: Machine, name: str) -> None:
        self.world = world
        self.machine = machine
        self.clock = machine.clock
        self.name = name
        self.alive = True
        self.on_killed: Callable[[], None] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.sockets: dict[int, NetworkSocket] = {}
        self.files: dict[int, OpenFile] = {}
        self._number = _FIRST_NUMBER
        self.threads = Threads(self)
        self.loop = SimulatedLoop(self)
        world.processes.append(self)

    def take_number(self) -> int:
        """A number for one more file or socket."""
        self._number += 1
        return self._number

    def enter(self, loop: SimulatedLoop | None) -> tuple[Process | None, Any]:
        """Code of this process runs from now on: on its loop, or, with None, in a thread. Returns
        what `leave` needs."""
        world = self.world
        before = world.current, asyncio._get_running_loop()
        world.current = self
        asyncio._set_running_loop(loop)
        return before

    def leave(self, process: Process | None, loop: Any) -> None:
        """Whatever ran before goes on."""
        self.world.current = process
        asyncio._set_running_loop(loop)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Code of this process runs within, on its loop."""
        before = self.enter(self.loop)
        try:
            yield
        finally:
            self.leave(*before)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begins a task, from outside."""
        with self.running():
            return self.loop.create_task(work)

    async def connect(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self.machine.network.connect(self, make, host, port)

    def kill(self, *, silently: bool = False) -> None:
        """Its kernel ends its connections; with `silently` the whole machine is gone, and peers
        hear nothing."""
        if not self.alive:
            return
        self.alive = False
        self.world.note(f"{self.name} killed")
        for sock in list(self.sockets.values()):
            sock.abandon(silently=silently)
        self.sockets.clear()
        self.files.clear()
        self.machine.processes.remove(self)
        if self.on_killed is not None:
            self.on_killed()

    def discard(self) -> None:
        """After the run: nothing of it may act when it is freed."""
        self.alive = False
        with self.running():
            self.threads.discard()
            for task in self.tasks:
                task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
            for task in self.tasks:
                coroutine = task.get_coro()
                if not task.done() and hasattr(coroutine, "close"):
                    # Whatever its end runs into.
                    with suppress(BaseException):
                        coroutine.close()
