"""A node of a cluster on a simulated machine: the real `ClusterNode`. It is killed, and started
again on what its disk has kept."""

from __future__ import annotations

from pathlib import Path

from fanlog.cluster.node import ClusterNode
from fanlog.cluster.views import Folder
from fanlog.config import ClientOptions, Config
from fanlog.errors import StorageError
from tests.power.disk import Disk
from tests.simulation.broker import FOLDER, SimulatedBroker
from tests.simulation.cluster.etcd import EtcdFaults, SimulatedCoordination
from tests.simulation.machine import Machine
from tests.simulation.memory_etcd import MemoryEtcd


class SimulatedNode(SimulatedBroker):
    """`node` is what runs now, or ran last."""

    def __init__(
        self, machine: Machine, config: Config, etcd: MemoryEtcd, faults: EtcdFaults
    ) -> None:
        super().__init__(machine, config)
        self._etcd = etcd
        self._etcd_faults = faults
        self.node: ClusterNode | None = None
        self._boot = ""

    @property
    def name(self) -> str:
        return self.machine.address

    def start(self) -> None:
        self._stopping = False
        machine = self.machine
        process = self.process = machine.start_process(self.name)
        process.on_killed = self._went_down
        machine.world.note(f"{process.name} starts")
        with process.running():
            coordination = SimulatedCoordination(
                machine.world, self._etcd, self._etcd_faults, self.name
            )
            self.node = ClusterNode(
                Path(FOLDER),
                self._config,
                coordination,
                boot_id=machine.boot_id,
                options=ClientOptions(name="node", connect_timeout_seconds=2.0),
                front=False,
            )
        self._boot = machine.boot_id
        starting = process.spawn(self.node.start())

        def look(_: object) -> None:
            fault = None if starting.cancelled() else starting.exception()
            if process.alive and isinstance(fault, StorageError):
                # As a supervisor sees it.
                machine.world.note(f"{process.name} can't start: {fault}")
                process.kill()

        starting.add_done_callback(look)
        self.starts += 1

    def stop(self) -> None:
        """A clean stop, as after SIGTERM: it hands over first."""
        process, node = self.process, self.node
        if not self.up or self._stopping or process is None or node is None:
            return
        self._stopping = True
        self.machine.world.note(f"{process.name} stops")
        stopping = process.spawn(node.stop())
        stopping.add_done_callback(lambda _: process.kill())

    def replace_disk(self) -> None:
        """Somebody puts a new disk in: it is empty."""
        self.cut_power("drop", 0)
        self.machine.disk = Disk()
        self.node = None
        self.machine.world.note(f"{self.name} has an empty disk")

    # What it is

    @property
    def incarnation(self) -> str:
        return self.node.incarnation if self.up and self.node is not None else ""

    @property
    def is_serving(self) -> bool:
        node = self.node
        return self.up and node is not None and node.primary is not None and node.primary.serving

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def keeps(self) -> str:
        """The incarnation that it has or would be started in; empty without a whole copy."""
        node = self.node
        mark = node._mark if node is not None else None
        kept = mark is not None and mark.state is Folder.WHOLE
        if mark is None or not kept or self._boot != self.machine.boot_id:
            return ""
        return mark.incarnation
