"""What goes wrong in a run, by its seed: connections, paths, processes, power, and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.broker import SimulatedBroker
from tests.simulation.machine import Machine, Stage, Trap

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

# Names that an I/O is worth a crash for.
PARTS = ("", "", "/journal/", "/topics/", "catalog", ".log", ".json", "/transactions/", "ends")
STAGES: tuple[Stage, ...] = ("before", "torn", "after", "after")
_DOWN_SECONDS = 0.8
_BLOCK_SECONDS = 1.5
_PAUSE_SECONDS = 2.0
_CUT_BYTES = 4000


class Faults:
    """One fault after the other, until `end`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._network = simulation.network
        self._dice = dice = simulation.world.dice("faults")
        self._over = False
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._cut_connection, 8),
            (self._cut_all, 1),
            (self._block_path, 3),
            (self._kill_broker, 3),
            (self._cut_power, 4),
            (self._trap, 8),
            (self._kill_actor, 4),
            (self._pause, 2),
            (self._stop_broker, 2),
            (self._jump, 1),
        ]
        # Each run has favourites: some have no power cuts, some hardly anything else.
        self._kinds = [kind for kind, _ in kinds]
        self._weights = [weight * dice.choice((0, 0.3, 1, 1, 4)) for _, weight in kinds]
        if not any(self._weights):
            self._weights[0] = 1.0
        self._pause_mean = dice.choice((0.05, 0.2, 0.5, 1.0))
        for broker in simulation.brokers:
            broker.on_down.append(self._start_again)

    def begin(self) -> None:
        self._world.after(self._dice.expovariate(1 / self._pause_mean), self._next)

    def end(self) -> None:
        """All is well from now on, and every broker is up."""
        self._over = True
        self._network.unblock_all()
        for broker in self._simulation.brokers:
            broker.machine.trap = None
            if not broker.up:
                broker.start()

    def _next(self) -> None:
        if self._over:
            return
        fault = self._dice.choices(self._kinds, self._weights)[0]
        fault()
        self.begin()

    # The network

    def _cut_connection(self) -> None:
        streams = self._network.open_streams()
        if streams:
            stream = self._dice.choice(streams)
            if self._dice.random() < 0.3:
                self._network.cut(stream)
            else:
                stream.bytes_left = self._dice.randrange(1, _CUT_BYTES)

    def _cut_all(self) -> None:
        for stream in self._network.open_streams():
            self._network.cut(stream)

    def _block_path(self) -> None:
        ends = [self._some_broker().machine.address]
        ends.append(self._dice.choice(self._simulation.actors).machine.address)
        self._dice.shuffle(ends)
        self._network.block(ends[0], ends[1])
        if self._dice.random() < 0.5:
            self._network.block(ends[1], ends[0])
        self._world.after(self._dice.uniform(0, _BLOCK_SECONDS), self._network.unblock_all)

    # Processes and machines

    def _some_broker(self) -> SimulatedBroker:
        return self._dice.choice(self._simulation.brokers)

    def _kill_broker(self) -> None:
        self._some_broker().kill()

    def _cut_power(self) -> None:
        self._some_broker().cut_power("any", self._dice.getrandbits(32))

    def _stop_broker(self) -> None:
        self._some_broker().stop()

    def _start_again(self, broker: SimulatedBroker) -> None:
        def start() -> None:
            if not broker.up:
                broker.start()

        self._world.after(self._dice.uniform(0.01, _DOWN_SECONDS), start)

    def _trap(self) -> None:
        """The broker ends at an I/O to come, of any kind and at any stage."""
        broker = self._some_broker()
        seed, power = self._dice.getrandbits(32), self._dice.random() < 0.7

        def spring() -> None:
            if power:
                broker.cut_power("any", seed)
            else:
                broker.kill()

        countdown = int(self._dice.expovariate(1 / 20))
        part, stage = self._dice.choice(PARTS), self._dice.choice(STAGES)
        broker.machine.trap = Trap(countdown, part, stage, spring)

    def _kill_actor(self) -> None:
        actors = [actor for actor in self._simulation.actors if actor.killable]
        if actors:
            self._dice.choice(actors).kill()

    def _pause(self) -> None:
        """A process stands still, as with SIGSTOP."""
        machines = [b.machine for b in self._simulation.brokers]
        machines += [a.machine for a in self._simulation.actors]
        seconds = self._dice.uniform(0, _PAUSE_SECONDS)
        for process in self._dice.choice(machines).processes:
            self._world.note(f"{process.name} stands still")
            process.loop.busy_until = max(process.loop.busy_until, self._world.now) + seconds

    def _jump(self) -> None:
        machine: Machine = self._some_broker().machine
        machine.clock.jump(self._dice.choice((-3600.0, -1.0, 1.0, 3600.0)))
