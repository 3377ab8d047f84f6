"""A broker on a simulated machine: the real node with the real native listener. It is killed, and
started again on what its disk has kept."""

from __future__ import annotations

from collections.abc import Callable

from fanlog.config import Config
from fanlog.node import Node
from tests.power.disk import Mode
from tests.simulation.machine import Machine
from tests.simulation.process import Process
from tests.simulation.world import Killed

PORT = 7420
FOLDER = "/data"


class SimulatedBroker:
    """`starts` counts how often it came up. `on_down` is called when it has ended."""

    def __init__(self, machine: Machine, config: Config) -> None:
        self.machine = machine
        self._config = config
        self._node: Node | None = None
        self._stopping = False
        self.process: Process | None = None
        self.starts = 0
        self.on_down: list[Callable[[SimulatedBroker], None]] = []

    @property
    def url(self) -> str:
        return f"fanlog://{self.machine.address}:{PORT}"

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Recovers and listens, in one go: whoever asks meanwhile is refused."""
        self._stopping = False
        process = self.process = self.machine.start_process("broker")
        process.on_killed = self._went_down
        self.machine.world.note(f"{process.name} starts")
        with process.running():
            try:
                node = self._node = Node(FOLDER, self._config)
                node.start()
                node.listen()
            except Killed:
                return
        self.starts += 1
        process.loop.wake()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """A clean stop, as after SIGTERM."""
        process, node = self.process, self._node
        if not self.up or self._stopping or process is None or node is None:
            return
        self._stopping = True
        self.machine.world.note(f"{process.name} stops")
        stopping = process.spawn(node.stop())
        stopping.add_done_callback(lambda _: process.kill())

    def cut_power(self, mode: Mode, seed: int) -> None:
        self.machine.cut_power(mode, seed)

    def _went_down(self) -> None:
        for call in self.on_down:
            call(self)
