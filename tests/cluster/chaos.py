"""A cluster that is treated badly for long: `python -m tests.cluster.chaos --minutes 30`.

Nodes are killed, paused, stopped, drained and moved to, in random order, while clients work; in the
end the checks of `workload.py` must hold, on each node by itself. A seed chooses the order; what
happens in between is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from tests.cluster.processes import CLUSTER, ClusterProcesses, NodeProcess
from tests.cluster.workload import Workload, while_working
from tests.etcd_servers import EtcdMember, etcd_servers

_MORE = 10


class Chaos:
    """One step after the other, until the time is over. After each step the cluster is whole."""

    def __init__(self, cluster: ClusterProcesses, seed: int, seconds: float) -> None:
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._until = time.monotonic() + seconds
        self.done: Counter[str] = Counter()
        self._steps: tuple[Callable[[Workload, NodeProcess], Awaitable[None]], ...] = (
            self._kill,
            self._kill_for_long,
            self._pause,
            self._blink,
            self._stop,
            self._move,
            self._drain,
            self._kill_etcd,
        )

    async def disturb(self, workload: Workload) -> None:
        while time.monotonic() < self._until:
            primary = await asyncio.to_thread(self._cluster.primary)
            # The primary as often as both others together.
            chosen = self._dice.choice([*self._cluster.nodes, primary])
            step = self._dice.choice(self._steps)
            name = step.__name__.removeprefix("_")
            print(f"{name} {chosen}{' (primary)' if chosen == primary else ''}: {workload}")
            await step(workload, self._cluster.nodes[chosen])
            await asyncio.to_thread(self._cluster.wait_whole)
            await workload.more(_MORE)
            self.done[name] += 1

    async def _kill(self, workload: Workload, node: NodeProcess) -> None:
        node.kill()
        await asyncio.sleep(self._dice.uniform(0, 1))
        node.start()

    async def _kill_for_long(self, workload: Workload, node: NodeProcess) -> None:
        node.kill()
        await workload.more(_MORE)
        node.start()

    async def _pause(self, workload: Workload, node: NodeProcess) -> None:
        node.pause()
        await asyncio.sleep(self._dice.uniform(4, 10))
        node.resume()

    async def _blink(self, workload: Workload, node: NodeProcess) -> None:
        """A pause that may be over before anybody noticed."""
        node.pause()
        await asyncio.sleep(self._dice.uniform(0, 4))
        node.resume()

    async def _stop(self, workload: Workload, node: NodeProcess) -> None:
        code = await asyncio.to_thread(node.stop)
        assert code == 0, f"{node.node} ended with {code}"
        await workload.more(_MORE)
        node.start()

    async def _move(self, workload: Workload, node: NodeProcess) -> None:
        await self._operate("move", node.node)

    async def _drain(self, workload: Workload, node: NodeProcess) -> None:
        await self._operate("drain", node.node)
        await workload.more(_MORE)
        await self._operate("join", node.node)

    async def _kill_etcd(self, workload: Workload, node: NodeProcess) -> None:
        member: EtcdMember = self._cluster.etcd.members[0]
        member.kill()
        await workload.more(_MORE)
        member.start(self._cluster.etcd.cluster, "existing")
        await asyncio.to_thread(self._cluster.etcd.leader)

    async def _operate(self, *words: str) -> None:
        where = ("--cluster", CLUSTER, "--etcd", ",".join(self._cluster.etcd.urls))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fanlog", "cluster", *words, *where)
        )
        assert await process.wait() == 0, f"fanlog cluster {' '.join(words)} failed"


async def main(seed: int, minutes: float, folder: Path) -> None:
    with (
        etcd_servers(folder) as etcd,
        closing(ClusterProcesses(folder, etcd)) as cluster,
    ):
        cluster.start()
        chaos = Chaos(cluster, seed, minutes * 60)
        workload = await while_working(cluster.url, chaos.disturb)
        for node in cluster.nodes.values():
            await workload.check_node(node.url)
        steps = ", ".join(f"{name} {count}" for name, count in sorted(chaos.done.items()))
        print(f"All is well: {workload}. Steps: {steps}. Epoch {cluster.wait_whole().epoch}.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Treats a cluster of three nodes badly.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="Kept. Default: a temporary one.")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    chosen = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    print(f"Seed {chosen}")
    if given.folder is not None:
        given.folder.mkdir(parents=True)
        asyncio.run(main(chosen, given.minutes, given.folder))
    else:
        with tempfile.TemporaryDirectory(prefix="fanlog-chaos-") as made:
            asyncio.run(main(chosen, given.minutes, Path(made)))
