"""Puts the simulated parts into the modules of Fanlog, in the places of the real ones.

A module that says `import os` gets the simulated `os`, one that says `from threading import Lock`
the simulated lock, and so on: whatever a module of Fanlog has under any name, and that is one of
the things below, is replaced for the time of a run. Code outside of Fanlog keeps the real ones.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import os
import queue
import random
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.network import SimulatedSocketModule
from tests.simulation.open_files import (
    SimulatedFcntl,
    SimulatedOs,
    SimulatedShutil,
    simulated_open,
)
from tests.simulation.threads import (
    ModuleLock,
    SimulatedCondition,
    SimulatedEvent,
    SimulatedExecutor,
    SimulatedLock,
    SimulatedQueue,
    SimulatedThread,
)
from tests.simulation.world import World, activate

# The longest that a look at a clock takes: budgets of time run out at any step.
_LOOK_SECONDS = 0.000_2


class SimulatedTime:
    """`time`: the clocks of the machine whose code runs. Each look takes a moment, so that work
    in slices is cut at any place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice("time")
        self._spent = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def _clock(self) -> Any:
        process = self._world.current
        assert process is not None
        return process.clock

    def monotonic(self) -> float:
        return self._clock().monotonic()

    def monotonic_ns(self) -> int:
        return round(self._clock().monotonic() * 1e9)

    def time(self) -> float:
        return self._clock().wall()

    def time_ns(self) -> int:
        return round(self._clock().wall() * 1e6) * 1000

    def work_ns(self) -> int:
        """Time that is only measured: it grows with each look."""
        self._spent += self._dice.uniform(0, _LOOK_SECONDS)
        return self.monotonic_ns() + round(self._spent * 1e9)

    perf_counter_ns = thread_time_ns = work_ns

    def perf_counter(self) -> float:
        return self.work_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        process = self._world.current
        assert process is not None
        process.threads.sleep(seconds)


class SimulatedSecrets:
    """`secrets`: from the seed, and so no secret at all."""

    def __init__(self, world: World) -> None:
        self._dice = world.dice("secrets")

    def __getattr__(self, name: str) -> Any:
        return getattr(secrets, name)

    def randbits(self, bits: int) -> int:
        return self._dice.getrandbits(bits)

    def randbelow(self, end: int) -> int:
        return self._dice.randrange(end)

    def token_bytes(self, size: int = 32) -> bytes:
        return self._dice.randbytes(size)

    def token_hex(self, size: int = 32) -> str:
        return self._dice.randbytes(size).hex()

    def token_urlsafe(self, size: int = 32) -> str:
        return self.token_hex(size)


class SimulatedRandom:
    """`random`: one generator for all that is not the simulation's own."""

    def __init__(self, world: World) -> None:
        self._dice = world.dice("random")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dice, name)

    def Random(self, seed: Any = None) -> random.Random:  # noqa: N802 - its name
        return random.Random(self._dice.random() if seed is None else seed)


def _replacements(world: World) -> dict[int, Any]:
    clock = SimulatedTime(world)
    pairs: list[tuple[object, object]] = [
        (os, SimulatedOs()),
        (shutil, SimulatedShutil()),
        (fcntl, SimulatedFcntl()),
        (socket, SimulatedSocketModule()),
        (time, clock),
        (time.monotonic, clock.monotonic),
        (time.monotonic_ns, clock.monotonic_ns),
        (time.perf_counter_ns, clock.perf_counter_ns),
        (time.perf_counter, clock.perf_counter),
        (time.time, clock.time),
        (secrets, SimulatedSecrets(world)),
        (random, SimulatedRandom(world)),
        (threading.Thread, SimulatedThread),
        (threading.Lock, SimulatedLock),
        (threading.Event, SimulatedEvent),
        (threading.Condition, SimulatedCondition),
        (queue.SimpleQueue, SimulatedQueue),
        (concurrent.futures.ThreadPoolExecutor, SimulatedExecutor),
    ]
    return {id(real): simulated for real, simulated in pairs}


# Chosen at random when a module is imported.
_SALTS = ("_SALT",)


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Within, Fanlog's modules live in the world."""
    replacements = _replacements(world)
    lock_type = type(threading.Lock())
    replaced: list[tuple[Any, str, Any]] = []
    opened: list[Any] = []
    modules = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == "fanlog"]
    for module in modules:
        for name, value in list(vars(module).items()):
            new = replacements.get(id(value))
            if isinstance(value, lock_type):
                new = ModuleLock()
            elif name in _SALTS:
                new = b"simulate"
            if new is not None:
                replaced.append((module, name, value))
                setattr(module, name, new)
        if module.__name__.startswith("fanlog.log"):
            opened.append(module)
            vars(module)["open"] = simulated_open
    activate(world)
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)
        for module in opened:
            del vars(module)["open"]
        activate(None)
