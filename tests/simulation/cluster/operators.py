"""People who change the members of a cluster, with what `fanlog cluster drain`, `leave` and `join`
do. Their requests are lost, late or refused as those of nodes are, and they try again.

Law: whoever is taken out joins again. `end` brings everybody back, whatever arrives late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from fanlog.cluster.operating import FoundCluster, ask_to_join, ask_to_leave, find_cluster
from fanlog.errors import FanlogError
from tests.simulation.cluster.etcd import SimulatedCoordination
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.cluster.node import SimulatedNode
    from tests.simulation.cluster.simulation import ClusterSimulation

_BY = "operator@simulation"
# So long somebody waits for a command, before Ctrl-C.
_PATIENCE_SECONDS = 8.0
_OUT_SECONDS = 4.0
_AGAIN_SECONDS = 0.5


class Operators:
    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._dice = simulation.world.dice("operators")
        self._machine = Machine(simulation.world, simulation.network, "operators")
        # Nodes that somebody takes out, and brings back.
        self._busy: dict[str, bool] = {}

    def take_out(self, what: str, node: SimulatedNode) -> None:
        """A node is drained, or leaves the cluster; after some seconds it joins again. If it left,
        its disk may be a new one then."""
        if not self._busy.get(node.name):
            self._busy[node.name] = True
            self._begin(f"{what} {node.name}", self._out_and_back(what, node))

    def end(self) -> None:
        """From now on whoever is out is brought back."""
        self._begin("join all", self._bring_back())

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._machine.start_process(name).spawn(work)

    async def _out_and_back(self, what: str, node: SimulatedNode) -> None:
        dice = self._dice
        asked = await self._command(lambda found: ask_to_leave(found, what, node.name, _BY))
        await asyncio.sleep(dice.uniform(0, _OUT_SECONDS))
        if asked and what == "leave" and dice.random() < 0.5 and self._simulation.can_lose(node):
            node.replace_disk()
        await self._join(node.name)
        self._busy[node.name] = False

    async def _join(self, node: str) -> None:
        while True:
            # Before it has started, etcd may not know it, and the command is refused.
            if await self._command(lambda found: ask_to_join(found, node, _BY)):
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _bring_back(self) -> None:
        while True:
            for node in self._simulation.nodes:
                if self._simulation.is_out(node.name):
                    await self._command(lambda found, to=node.name: ask_to_join(found, to, _BY))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _command(self, ask: Callable[[FoundCluster], Awaitable[str]]) -> bool:
        """Whether it has succeeded."""
        seconds = self._dice.uniform(1.0, _PATIENCE_SECONDS)
        simulation = self._simulation
        world = simulation.world
        etcd = SimulatedCoordination(
            world, simulation.etcd, simulation.etcd_faults, self._machine.address
        )
        try:
            async with asyncio.timeout(seconds):
                said = await ask(await find_cluster(etcd, "test", "memory"))
        except (FanlogError, TimeoutError) as fault:
            world.note(f"an operator's command has failed: {fault}")
            return False
        world.note(f"an operator hears: {said}")
        return True
