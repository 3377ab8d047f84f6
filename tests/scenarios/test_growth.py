"""A topic grows under load, and the broker is killed in between, or its power cut."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

import fanlog
from tests.power.machine import OUTAGES, Machine

PUBLISHERS = 2
MEMBERS = 3
KEYS = 50
KILLS = 6
PATIENCE_SECONDS = 50.0


async def publish(client: fanlog.Client, name: int, over: asyncio.Event) -> list[bytes]:
    """One message after the other, a few at a time; all are acknowledged in the end."""
    done: list[bytes] = []
    while not over.is_set():
        values = [b"%d-%d" % (name, len(done) + i) for i in range(10)]
        keyed = [(v, b"%d" % (i % KEYS)) for i, v in enumerate(values, len(done))]
        await asyncio.gather(*(client.publish("in", v, key=key) for v, key in keyed))
        done += values
        await asyncio.sleep(0.005)
    return done


async def values_of(client: fanlog.Client, topic: str) -> Counter[bytes | None]:
    info = await client.describe_topic(topic)
    found: Counter[bytes | None] = Counter()
    async with client.subscribe(topic, start="earliest") as everything:
        while found.total() < info.records:
            found.update((await everything.next_batch(PATIENCE_SECONDS)).values)
    return found


async def move(url: str, over: asyncio.Event) -> None:
    """A member that publishes to another topic what it reads, in transactions."""
    async with fanlog.connect(url, backoff_max_seconds=0.1) as client:
        await client.transform(
            "in",
            "out",
            lambda message: message.value,
            group="g",
            until=over.is_set,
            batch_records=50,
        )


async def follow(url: str, seen: Counter[bytes | None]) -> None:
    """A reader that is there all the time."""
    async with (
        fanlog.connect(url, backoff_max_seconds=0.1) as client,
        client.subscribe("in", start="earliest") as reader,
    ):
        async for message in reader:
            seen[message.value] += 1


async def until_all_moved(client: fanlog.Client, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await client.describe_topic("out")).records < count:  # noqa: ASYNC110 - in the broker
            await asyncio.sleep(0.1)


async def until_all_used(client: fanlog.Client) -> None:
    """Waits until there is something in each partition that the topic has by now."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(  # noqa: ASYNC110 - in the broker
            partition.visible_end for partition in (await client.describe_topic("in")).partitions
        ):
            await asyncio.sleep(0.05)


@pytest.mark.timeout(4 * PATIENCE_SECONDS)
@pytest.mark.parametrize("machine", OUTAGES, indirect=True)
def test_nothing_is_lost_or_doubled_while_topics_grow_and_the_broker_is_killed(
    machine: Machine,
) -> None:
    asyncio.run(grow_under_load(machine))


async def grow_under_load(machine: Machine) -> None:
    broker = machine.broker()
    durability = "os" if machine.backend == "kill" else "fsync"
    await asyncio.to_thread(broker.start)
    published, moved = asyncio.Event(), asyncio.Event()
    seen: Counter[bytes | None] = Counter()
    try:
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            await client.create_topic("in", partitions=2, durability=durability)
            await client.create_topic("out", durability=durability)
            reading = asyncio.create_task(follow(broker.url, seen))
            moving = [asyncio.create_task(move(broker.url, moved)) for _ in range(MEMBERS)]
            publishing = [
                asyncio.create_task(publish(client, name, published)) for name in range(PUBLISHERS)
            ]
            await until_all_used(client)
            await until_all_moved(client, 1)
            await client.grow_topic("in", partitions=5)
            await client.grow_topic("out", partitions=3)
            await until_all_used(client)
            growing = asyncio.create_task(client.grow_topic("in", partitions=9))
            await asyncio.sleep(0)
            broker.kill()
            await asyncio.to_thread(broker.start)
            assert len((await growing).partitions) == 9
            await until_all_used(client)
            published.set()
            values = Counter(v for done in await asyncio.gather(*publishing) for v in done)
            await until_all_moved(client, values.total())
            moved.set()
            await asyncio.gather(*moving)
            assert await values_of(client, "in") == values
            assert await values_of(client, "out") == values
            assert sum(1 for group in await client.groups.list() if group.lag) == 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while seen.total() < values.total():  # noqa: ASYNC110 - of another task
                    await asyncio.sleep(0.05)
            assert seen == values
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    finally:
        broker.kill()


@pytest.mark.parametrize("machine", OUTAGES, indirect=True)
async def test_a_kill_at_any_moment_leaves_the_old_count_or_the_new_one(machine: Machine) -> None:
    dice = random.Random(5)
    broker = machine.broker()
    await asyncio.to_thread(broker.start)
    try:
        async with fanlog.connect(broker.url, backoff_max_seconds=0.05) as client:
            await client.create_topic("t", durability="fsync")
            count = stored = 1
            await client.publish("t", b"x")
            for _ in range(KILLS):
                growing = asyncio.create_task(client.grow_topic("t", partitions=count + 2))
                await asyncio.sleep(dice.uniform(0, 0.004))
                growing.cancel()
                broker.kill()
                await asyncio.to_thread(broker.start)
                info = await client.describe_topic("t")
                assert len(info.partitions) == info.settings.partitions
                assert len(info.partitions) in (count, count + 2)
                assert (info.records, (await client.status()).problems) == (stored, ())
                count = len(info.partitions)
                for partition in range(count):
                    await client.publish("t", b"x", partition=partition)
                stored += count
    finally:
        broker.kill()
