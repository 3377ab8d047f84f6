"""Workloads on a machine whose power is cut at random, by a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import fanlog
from tests.power.delaying import Delaying
from tests.power.machine import FuseMachine, Machine, PoweredBroker
from tests.power.steps import PATIENCE_SECONDS, connecting
from tests.power.workloads import ALL, Workload

EVERYTHING = (*ALL, Delaying)

# Calls that are worth a cut right before or after them, and files that they are worth one for.
CALLS = ("fsync", "fsyncdir", "write", "rename", "unlink", "create", "mkdir", "truncate")
PATHS = ("/journal/", "_fanlog", r"\.json", r"\.log", r"\.idx|\.producers", "/topics/", "")
# A call that does not come so soon is not waited for.
TRAP_SECONDS = 1.5


@dataclass(slots=True)
class Result:
    cuts: int = 0
    trapped: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)


async def campaign(
    machine: Machine, seed: int, cuts: int, kinds: Sequence[type[Workload]] = EVERYTHING
) -> Result:
    """Raises AssertionError where anything that was acknowledged is lost, doubled or moved, or
    where the broker does not start."""
    dice = random.Random(seed)
    settings = machine.root.parent / "fanlog.toml"
    settings.write_text(
        "[broker]\ntransaction_memory_bytes = 20000\n[log]\njournal_bytes = 1048576\n"
        "segment_first_bytes = 4096\n"
    )
    broker = machine.broker("--config", str(settings))
    await asyncio.to_thread(broker.start)
    over = asyncio.Event()
    result = Result()
    try:
        async with connecting(broker.url) as client:
            workloads = [
                kind(broker.url, client, random.Random(dice.random()), over) for kind in kinds
            ]
            for workload in workloads:
                await workload.prepare()
            working = asyncio.create_task(work(workloads))
            try:
                for _ in range(cuts):
                    await more_acknowledged(workloads, working)
                    await one_cut(machine, broker, dice, result)
                    await check_health(client)
                over.set()
                await asyncio.wait_for(working, 2 * PATIENCE_SECONDS)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
            for workload in workloads:
                await workload.check()
                result.acknowledged[type(workload).__name__] = workload.acknowledged
            await check_health(client)
    finally:
        broker.kill()
    return result


async def work(workloads: Sequence[Workload]) -> None:
    """All of them at once; the first that fails ends the others."""
    async with asyncio.TaskGroup() as tasks:
        for workload in workloads:
            tasks.create_task(workload.work())


async def one_cut(
    machine: Machine, broker: PoweredBroker, dice: random.Random, result: Result
) -> None:
    await asyncio.sleep(dice.choice((0.0, dice.uniform(0, 0.3), dice.uniform(0, 1.5))))
    if isinstance(machine, FuseMachine) and dice.random() < 0.7:
        call, path = dice.choice(CALLS), dice.choice(PATHS)
        machine.kill_at(broker, call, path, nth=dice.randint(1, 5), after=dice.random() < 0.5)
        loop = asyncio.get_running_loop()
        end = loop.time() + TRAP_SECONDS
        while loop.time() < end and not machine.sprung:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        result.trapped += machine.sprung
    broker.kill()
    result.cuts += 1
    await asyncio.to_thread(broker.start)


async def more_acknowledged(workloads: Sequence[Workload], working: asyncio.Task[None]) -> None:
    """Waits until each of them gets on; raises where one has ended."""
    before = [workload.acknowledged for workload in workloads]
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while any(
            workload.acknowledged == count
            for workload, count in zip(workloads, before, strict=True)
        ):
            if working.done():
                working.result()
            await asyncio.sleep(0.01)


async def check_health(client: fanlog.Client) -> None:
    status = await client.status()
    assert status.state == "ok", f"{status.state}: {status.problems}"
