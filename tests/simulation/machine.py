"""A machine: a disk, a clock and processes, on a network. Its power can be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tests.power.disk import Disk, Mode
from tests.simulation.clock import Clock
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.world import World

Stage = Literal["before", "torn", "after"]


class Trap:
    """Something that happens at an I/O to come: before it, after it, or in the middle of a write.
    The I/O is the one after `countdown` others whose path has `part`."""

    def __init__(self, countdown: int, part: str, stage: Stage, spring: Callable[[], None]) -> None:
        self._countdown = countdown
        self._part = part
        self.stage = stage
        self.spring = spring

    def armed(self, kind: str, path: str) -> bool:
        """Whether it is this one."""
        if self._part not in path or (self.stage == "torn" and kind != "pwrite"):
            return False
        self._countdown -= 1
        return self._countdown < 0


class Machine:
    """`address` is what others call it on the network."""

    def __init__(self, world: World, network: Network, address: str) -> None:
        self.world = world
        self.network = network
        self.address = address
        self.disk = Disk()
        self.clock = Clock(world)
        self.chance = world.dice(f"machine {address}")
        self.sync_seconds_max = 0.005
        self.processes: list[Process] = []
        self.boots = 1
        self._started = 0
        self.trap: Trap | None = None

    @property
    def boot_id(self) -> str:
        return f"{self.address}-{self.boots}"

    def sync_seconds(self) -> float:
        """How long the disk takes for the next sync."""
        return self.chance.uniform(0, self.sync_seconds_max)

    def start_process(self, name: str) -> Process:
        self._started += 1
        process = Process(self.world, self, f"{name}.{self._started}")
        self.processes.append(process)
        return process

    def kill_all(self) -> None:
        """As `kill -9` does: the kernel keeps what was written."""
        for process in list(self.processes):
            process.kill()

    def cut_power(self, mode: Mode, seed: int) -> None:
        """Everything ends, and what was not synced is lost as `mode` says."""
        self.world.note(f"{self.address} power cut {mode} {seed}")
        for process in list(self.processes):
            process.kill(silently=True)
        self.disk.cut(mode, seed)
        self.boots += 1
