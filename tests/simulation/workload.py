"""What a workload is: actors that use the broker, a model of what they were told, and a check.

Law: the model trusts only what clients saw. A call that returned happened; one that raised, or
whose process was killed, may have happened or not, but not twice.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import fanlog
from tests.simulation.actors import Actor, Work, connecting

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

PATIENCE_SECONDS = 60.0


class Violation(AssertionError):
    """A promise was broken."""


class Intended(Exception):
    """What a workload's own code fails with. Fanlog may log its traceback."""


class Workload(abc.ABC):
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.dice = simulation.world.dice(f"workload {type(self).__name__}")
        self.url = simulation.url
        # How much was acknowledged: a run in which nothing is shows nothing.
        self.acknowledged = 0

    @abc.abstractmethod
    async def prepare(self, client: fanlog.Client) -> None:
        """Makes the topics."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Starts the actors. They go on until `self.over`."""

    @abc.abstractmethod
    async def check(self, client: fanlog.Client) -> None:
        """After the faults, and once more after a last power cut: raises `Violation`."""

    async def settle(self, client: fanlog.Client) -> None:  # noqa: B027 - few need it
        """Does what is left to do when the faults are over, before the first `check`."""

    def unsynced_lost(self) -> None:  # noqa: B027 - few need it
        """All machines of a cluster have lost what was not synced, and an operator chooses one."""

    @property
    def over(self) -> bool:
        return self.simulation.over

    def actor(self, name: str, work: Work, *, killable: bool = True) -> Actor:
        actor = Actor(self.simulation, name, work, killable=killable)
        self.simulation.actors.append(actor)
        actor.start()
        return actor

    def connecting(self, **options: object) -> fanlog.client.aio.Connecting:
        return connecting(self.url, **options)

    def violated(self, promise: str) -> None:
        """For what is found while the simulation runs, in whatever process."""
        self.simulation.violations.append(f"{type(self).__name__}: {promise}")


def ensure(holds: object, promise: str) -> None:
    if not holds:
        raise Violation(promise)


async def read_all(client: fanlog.Client, topic: str) -> dict[int, list[fanlog.Message]]:
    """All that a topic has now, by partition, in order."""
    starts = await client.find_offsets(topic, "earliest")
    ends = await client.find_offsets(topic, "latest")
    found: dict[int, list[fanlog.Message]] = {partition: [] for partition in ends}
    missing = {p for p, end in ends.items() if starts[p] < end}
    if missing:
        async with client.subscribe(topic, start="earliest") as reader:
            while missing:
                batch = await reader.next_batch(PATIENCE_SECONDS)
                found[batch.partition] += batch.messages
                if batch.next_offset >= ends[batch.partition]:
                    missing.discard(batch.partition)
    return found


async def retried(ask: Callable[[], Awaitable[object]]) -> None:
    """A request whose answer may be lost: it was done, or it is done now."""
    while True:
        try:
            await ask()
        except fanlog.errors.LinkError:
            continue
        else:
            return
