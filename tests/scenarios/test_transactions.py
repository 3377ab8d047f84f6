"""Transactions among real processes: shared by several, and killed with the broker."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

import fanlog
from tests.client.transactions.test_transactions import values_of
from tests.power.machine import Machine
from tests.scenarios.broker_process import BrokerProcess

KILLS = 4
COORDINATORS = 6


async def test_processes_stage_one_transaction_together_and_one_commits_it(data: Path) -> None:
    with BrokerProcess(data) as broker:
        async with fanlog.connect(broker.url) as client:
            await client.create_topic("out", partitions=4)
            tx = client.transaction("together")
            await tx.begin()
            processes = [
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.scenarios.stagers"),
                    *(broker.url, tx.ticket, str(number), "500"),
                )
                for number in range(3)
            ]
            assert [await process.wait() for process in processes] == [0, 0, 0]
            assert (await client.describe_topic("out")).records == 0
            assert (await tx.commit()).records == 1500
            values = await values_of(client, "out")
            for number in range(3):
                mine = [v for v in values if v.startswith(b"%d-" % number)]
                assert mine == [b"%d-%d" % (number, i) for i in range(500)]


async def commit_until(client: fanlog.Client, name: int, over: asyncio.Event) -> list[bytes]:
    """One id after the other, each repeated until it got through; every third is large."""
    done: list[bytes] = []
    number = 0
    while not over.is_set():
        value = b"%d-%d" % (name, number)
        padding = bytes(30_000 if number % 3 == 0 else 10)

        async def work(
            tx: fanlog.Transaction, value: bytes = value, padding: bytes = padding
        ) -> None:
            for topic in ("a", "b"):
                for partition in range(2):
                    await tx.publish(topic, value + b" " + padding, partition=partition)

        await client.run_transaction(work, id=value.decode(), attempts=100)
        done.append(value)
        number += 1
    return done


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("machine", "durability"),
    [("kill", "os"), ("kill", "fsync"), ("fuse", "fsync")],
    indirect=["machine"],
)
def test_an_outage_at_any_moment_leaves_each_id_whole_and_once(
    machine: Machine, tmp_path: Path, durability: str
) -> None:
    dice = random.Random(7)
    settings = tmp_path / "fanlog.toml"
    settings.write_text("[broker]\ntransaction_memory_bytes = 20000\n")
    broker = machine.broker("--config", str(settings))

    async def scenario() -> None:
        broker.start()
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            for topic in ("a", "b"):
                await client.create_topic(topic, partitions=2, durability=durability)
            over = asyncio.Event()
            committing = [
                asyncio.create_task(commit_until(client, i, over)) for i in range(COORDINATORS)
            ]
            for _ in range(KILLS):
                await asyncio.sleep(dice.uniform(0.05, 0.4))
                broker.kill()
                await asyncio.to_thread(broker.start)
            await asyncio.sleep(0.2)
            over.set()
            done = [value for values in await asyncio.gather(*committing) for value in values]
            for topic in ("a", "b"):
                found = Counter(v.split(b" ")[0] for v in await values_of(client, topic))
                assert set(found) == set(done)
                assert set(found.values()) == {2}
            assert len(done) > KILLS
        assert await settled(machine.data)

    try:
        asyncio.run(scenario())
    finally:
        broker.kill()


async def settled(data: Path) -> bool:
    """Whether the files of transactions go once they are stored for good."""
    for _ in range(600):
        if not list(data.glob("transactions/*")):
            return True
        await asyncio.sleep(0.1)
    return False
