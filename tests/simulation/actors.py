"""Actors: the client programs of a workload, each in a process of its own, on a machine of its own.
One that is killed comes back as a new process, until the simulation ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import fanlog
from fanlog.client.aio import Connecting
from tests.simulation.machine import Machine
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Work = Callable[[], Coroutine[Any, Any, None]]
_RETURN_SECONDS = 1.0


class Actor:
    """`work` is begun in each new process. It ends by itself when the simulation does."""

    def __init__(
        self, simulation: Simulation, name: str, work: Work, *, killable: bool = True
    ) -> None:
        self._simulation = simulation
        self._work = work
        self.name = name
        self.killable = killable
        self.machine = Machine(simulation.world, simulation.network, name)
        self._dice = simulation.world.dice(f"actor {name}")
        self.process: Process | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        process = self.process = self.machine.start_process(self.name)
        task = self._task = process.spawn(self._work())
        task.add_done_callback(lambda _: self._look(process, task))

    def _look(self, process: Process, task: asyncio.Task[Any]) -> None:
        """A program that ends because of an error that is worth another try is started again."""
        fault = None if task.cancelled() else task.exception()
        if process.alive and isinstance(fault, self._simulation.forgiven):
            self._simulation.world.note(f"{self.name} has failed: {fault}")
            self.kill()

    def kill(self) -> None:
        """It may come back after its session, or before."""
        if self.process is None or not self.process.alive or self.done:
            return
        self.process.kill(silently=self._dice.random() < 0.3)
        self._simulation.world.after(self._dice.uniform(0, _RETURN_SECONDS), self.start)

    @property
    def done(self) -> bool:
        if self._task is None or not self._task.done():
            return False
        if self._task.cancelled():
            return True
        return not isinstance(self._task.exception(), self._simulation.forgiven)

    def result(self) -> None:
        """Raises what its program has failed with."""
        assert self._task is not None
        if self._task.done():
            self._task.result()


def connecting(url: str, **options: Any) -> Connecting:
    """A client with little patience: simulated time is cheap, but not free."""
    chosen: dict[str, Any] = {
        "wait_seconds": 60.0,
        "backoff_max_seconds": 0.3,
        "ping_seconds": 0.7,
        "connect_timeout_seconds": 2.0,
        "request_timeout_seconds": 60.0,
        "delivery_timeout_seconds": 300.0,
    }
    return fanlog.connect(url, **{**chosen, **options})
