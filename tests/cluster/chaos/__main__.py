"""A cluster that is treated badly: `python -m tests.cluster.chaos --minutes 30 --namespaces`.

Nodes are killed, paused, stopped, drained and moved to, in random order, while clients work; with
`--namespaces` (as root) each node has a host of its own with an etcd, and networks, disks and
clocks fail, too. In the end nothing that was acknowledged may be lost or twice, and all nodes have
the same. A seed chooses the order; what happens in between is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import fanlog
from fanlog.model import MIB
from tests.cluster.chaos import isolation
from tests.cluster.chaos.campaign import Campaign, Others
from tests.cluster.chaos.equality import Differences, compare_folders
from tests.cluster.chaos.faults import Scene
from tests.cluster.chaos.redis_clients import RedisClients
from tests.cluster.chaos.site import Site, local_site, namespaced_site
from tests.cluster.chaos.transactions import Transactions
from tests.cluster.chaos.web_clients import WebClients
from tests.cluster.workload import PATIENCE_SECONDS, Workload

_NOTICE_SECONDS = 2.0
# Each time, a node meets damage of at least one topic partition, and repairs it.
_READS_MAX = 8


async def treat_badly(site: Site, given: argparse.Namespace) -> list[str]:
    """What was violated, as sentences."""
    workload = Workload(site.cluster.url)
    nodes = site.cluster.nodes.values()
    others: list[Others] = [
        Transactions(workload),
        RedisClients(workload, [(node.machine.host, node.redis_port) for node in nodes]),
        WebClients(workload, [(node.machine.host, node.http_port) for node in nodes]),
    ]
    campaign = Campaign(site, Scene(site, random.Random(given.seed)), workload, others)
    try:
        await workload.start()
        for one in others:
            await one.start()
        await workload.more(20)
        await campaign.run(given.minutes * 60, given.hold_seconds)
        violations = await _check(site, workload, others)
    finally:
        await workload.stop()
        for one in others:
            for task in one.tasks:
                task.cancel()
        campaign.console.print(campaign.summary())
    rests = [one.rest_s for one in campaign.rounds]
    campaign.console.print(
        f"{workload}, {', '.join(str(one) for one in others)}. {len(rests)} rounds, "
        f"longest time without a write {max(rests):.1f} s, violations: {len(violations)}"
    )
    return violations


async def _check(site: Site, workload: Workload, others: list[Others]) -> list[str]:
    """Everything that has to hold in the end, whatever else does not."""
    violations: list[str] = []

    async def holds(check: Callable[[], Awaitable[None]]) -> None:
        try:
            await check()
        except AssertionError as fault:
            violations.append(str(fault) or repr(fault))

    for one in others:
        await holds(one.finish)
    await holds(workload.finish)
    for node in site.cluster.nodes.values():
        await holds(lambda node=node: workload.check_node(node.url))
        for one in others:
            await holds(lambda one=one, node=node: one.check(node.url))
    return violations + await _compare(site, workload)


async def _compare(site: Site, workload: Workload) -> list[str]:
    """What differs between the nodes. They have kept some blocks in memory, and what a node repairs
    it reads elsewhere meanwhile: damage that nobody has met is met after a restart."""
    await _repair(site)
    differences = Differences([])
    for _ in range(_READS_MAX):
        if failed := await _stop(site):
            return failed
        differences = await asyncio.to_thread(compare_folders, site.folders)
        if not differences.damaged:
            break
        for node in site.cluster.nodes.values():
            node.start()
        await asyncio.to_thread(site.cluster.wait_whole)
        for node in site.cluster.nodes.values():
            await _read_everything(workload, node.url)
        await _repair(site)
    return differences.sentences


async def _repair(site: Site) -> None:
    """Who has read damage says so soon, and then repairs it."""
    await asyncio.sleep(_NOTICE_SECONDS)
    await asyncio.to_thread(site.cluster.wait_fit)
    await asyncio.to_thread(site.cluster.wait_whole)


async def _stop(site: Site) -> list[str]:
    """The primary last: what it writes then, nobody else has."""
    primary = await asyncio.to_thread(site.cluster.primary)
    codes = {
        name: await asyncio.to_thread(site.cluster.nodes[name].stop)
        for name in sorted(site.cluster.nodes, key=lambda name: name == primary)
    }
    return [f"{name} was stopped and ended with {code}" for name, code in codes.items() if code]


async def _read_everything(workload: Workload, url: str) -> None:
    async with fanlog.connect(url, wait_seconds=PATIENCE_SECONDS) as client:
        topics = await client.topics()
    for topic in topics:
        for partition in range(len(topic.partitions)):
            await workload.read_all(url, topic.name, partition)


def main(given: argparse.Namespace, folder: Path) -> int:
    # That clients reconnect goes without saying.
    logging.getLogger("fanlog").setLevel(logging.ERROR)
    where: AbstractContextManager[Site] = (
        namespaced_site(folder, given.disk_mib * MIB) if given.namespaces else local_site(folder)
    )
    with where as site:
        violations = asyncio.run(treat_badly(site, given))
    for violation in violations:
        print(violation)
    return 1 if violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Treats a cluster of three nodes badly.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, default=None, help="Kept. Default: a temporary one.")
    parser.add_argument(
        "--namespaces", action="store_true", help="Give each node a network, a disk and a clock."
    )
    parser.add_argument(
        "--hold-seconds", type=float, default=8.0, help="How long a fault lasts at most."
    )
    parser.add_argument("--disk-mib", type=int, default=2048, help="Size of a node's disk.")
    return parser.parse_args()


def _run() -> int:
    given = _arguments()
    if given.folder is None:
        given.folder = Path(tempfile.mkdtemp(prefix="fanlog-chaos-"))
        temporary = True
    else:
        given.folder.mkdir(parents=True, exist_ok=True)
        temporary = False
    if given.namespaces and not isolation.is_inside():
        if why := isolation.why_not():
            sys.exit(why)
        print(f"Seed {given.seed}", flush=True)
        again = ["--seed", str(given.seed), "--folder", str(given.folder)]
        code = isolation.enter(["-m", "tests.cluster.chaos", *sys.argv[1:], *again])
    else:
        if not given.namespaces:
            print(f"Seed {given.seed}", flush=True)
        code = main(given, given.folder)
    if code:
        print(f"Logs and data: {given.folder}")
    elif temporary:
        shutil.rmtree(given.folder)
    return code


if __name__ == "__main__":
    sys.exit(_run())
