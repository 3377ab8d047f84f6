"""What goes wrong in a cluster: paths between nodes, etcd and disks; and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.cluster.records import ClusterKeys
from fanlog.cluster.requests import request_key
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.faults import PARTS, STAGES, Faults
from tests.simulation.machine import Trap

if TYPE_CHECKING:
    from tests.simulation.cluster.simulation import ClusterSimulation

_PARTITION_SECONDS = 4.0
_AWAY_SECONDS = 3.0
_FULL_SECONDS = 2.0
_PAUSE_SECONDS = 5.0


class ClusterFaults(Faults):
    def __init__(self, simulation: ClusterSimulation) -> None:
        super().__init__(simulation)
        self._cluster = simulation
        dice = self._dice
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._cut_connection, 4),
            (self._kill_broker, 5),
            (self._kill_primary, 4),
            (self._cut_power, 3),
            (self._trap, 6),
            (self._kill_actor, 1),
            (self._pause_node, 4),
            (self._stop_broker, 2),
            (self._jump, 1),
            (self._part_two, 5),
            (self._isolate, 3),
            (self._cut_from_etcd, 4),
            (self._etcd_away, 1),
            (self._move, 3),
            (self._drain, 3),
            (self._leave, 3),
            (self._replace_disk, 1),
            (self._fill_disk, 1),
        ]
        self._kinds = [kind for kind, _ in kinds]
        self._weights = [weight * dice.choice((0, 0.3, 1, 1, 4)) for _, weight in kinds]
        if not any(self._weights):
            self._weights[0] = 1.0
        self._pause_mean = dice.choice((0.1, 0.3, 0.7, 1.5))
        etcd = simulation.etcd_faults
        etcd.delay_max = dice.choice((0.001, 0.01, 0.1))
        etcd.lost_share = dice.choice((0.0, 0.0, 0.1, 0.4))

    def end(self) -> None:
        faults = self._cluster.etcd_faults
        faults.lost_share = 0.0
        faults.cut.clear()
        self._cluster.etcd.set_away(False)
        for node in self._cluster.nodes:
            node.machine.disk.limit_bytes = None
        super().end()

    # Nodes

    def _some_node(self) -> SimulatedNode:
        return self._dice.choice(self._cluster.nodes)

    def _kill_primary(self) -> None:
        """Whoever serves clients."""
        for node in self._cluster.nodes:
            if node.is_serving:
                node.kill()

    def _cut_power(self) -> None:
        node, seed = self._some_node(), self._dice.getrandbits(32)
        if self._cluster.can_lose(node):
            node.cut_power("any", seed)

    def _trap(self) -> None:
        node = self._some_node()
        seed, power = self._dice.getrandbits(32), self._dice.random() < 0.5

        def spring() -> None:
            if power and self._cluster.can_lose(node):
                node.cut_power("any", seed)
            else:
                node.kill()

        countdown = int(self._dice.expovariate(1 / 20))
        part, stage = self._dice.choice(PARTS), self._dice.choice(STAGES)
        node.machine.trap = Trap(countdown, part, stage, spring)

    def _pause_node(self) -> None:
        """A process stands still, as with SIGSTOP; longer than its lease, or shorter."""
        node, seconds = self._some_node(), self._dice.uniform(0, _PAUSE_SECONDS)
        for process in node.machine.processes:
            self._world.note(f"{process.name} stands still")
            process.loop.busy_until = max(process.loop.busy_until, self._world.now) + seconds

    def _replace_disk(self) -> None:
        node = self._some_node()
        if self._cluster.can_lose(node):
            node.replace_disk()

    def _fill_disk(self) -> None:
        node = self._some_node()
        disk = node.machine.disk
        self._world.note(f"{node.name} has a full disk")
        disk.limit_bytes = disk.used_bytes + self._dice.choice((0, 2000, 20_000))

        def make_room() -> None:
            disk.limit_bytes = None

        self._world.after(self._dice.uniform(0, _FULL_SECONDS), make_room)

    # Paths

    def _part_two(self) -> None:
        one, other = self._dice.sample(self._cluster.nodes, 2)
        self._part([(one.name, other.name)])

    def _isolate(self) -> None:
        """A node hears of no other one. It may still reach etcd."""
        node = self._some_node()
        self._part([(node.name, other.name) for other in self._cluster.nodes if other is not node])
        if self._dice.random() < 0.5:
            self._cut_off(node.name)

    def _part(self, paths: list[tuple[str, str]]) -> None:
        network, ways = self._network, self._dice.choice(("there", "back", "both", "both"))
        blocked = [pair for pair in paths if ways != "back"]
        blocked += [(b, a) for a, b in paths if ways != "there"]
        for path in blocked:
            network.block(*path)

        def heal() -> None:
            for path in blocked:
                network.unblock(*path)

        self._world.after(self._dice.uniform(0, _PARTITION_SECONDS), heal)

    # Etcd

    def _cut_from_etcd(self) -> None:
        self._cut_off(self._some_node().name)

    def _cut_off(self, name: str) -> None:
        cut = self._cluster.etcd_faults.cut
        cut[name] = True
        self._world.note(f"{name} is cut off from etcd")

        def heal() -> None:
            cut.pop(name, None)

        self._world.after(self._dice.uniform(0, _AWAY_SECONDS), heal)

    def _etcd_away(self) -> None:
        etcd = self._cluster.etcd
        self._world.note("etcd is away")
        etcd.set_away(True)
        self._world.after(self._dice.uniform(0, _AWAY_SECONDS), lambda: etcd.set_away(False))

    # Operators

    def _drain(self) -> None:
        self._cluster.operators.take_out("drain", self._some_node())

    def _leave(self) -> None:
        self._cluster.operators.take_out("leave", self._some_node())

    def _move(self) -> None:
        """An operator wants another primary."""
        if not self._cluster.etcd.away:
            to = self._some_node().name
            self._cluster.etcd.put(request_key(ClusterKeys("test"), "move", to), to.encode())
