"""Steps of tests that cut a machine's power under a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import fanlog
from fanlog.client.aio import Connecting
from tests.power.machine import FuseMachine, Machine, PoweredBroker

PATIENCE_SECONDS = 60.0


def connecting(url: str) -> Connecting:
    """A client that waits for as long as a broker may take to start on a busy machine."""
    return fanlog.connect(
        url, backoff_max_seconds=0.05, request_timeout_seconds=2 * PATIENCE_SECONDS
    )


@asynccontextmanager
async def running(machine: Machine) -> AsyncIterator[tuple[PoweredBroker, fanlog.Client]]:
    broker = machine.broker()
    await asyncio.to_thread(broker.start)
    try:
        async with connecting(broker.url) as client:
            yield broker, client
    finally:
        broker.kill()


async def cut_power(broker: PoweredBroker) -> None:
    """The power goes, and the broker starts again on what is left: it always does."""
    broker.kill()
    await asyncio.to_thread(broker.start)


async def until_killed(machine: FuseMachine) -> None:
    """Waits for the call at which the broker was to be killed."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not machine.sprung:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)


async def assert_well(client: fanlog.Client) -> None:
    status = await client.status()
    assert status.state == "ok", f"{status.state}: {status.problems}"


async def values_of(
    client: fanlog.Client, topic: str, key: bytes | None = None, partition: int = 0
) -> list[bytes]:
    """What a partition has now: all of it, or of a key."""
    found: list[bytes] = []
    reached = (await client.find_offsets(topic, "earliest"))[partition]
    end = (await client.find_offsets(topic, "latest"))[partition]
    if reached >= end:
        return found
    async with client.subscribe(topic, start="earliest", partitions=(partition,)) as reader:
        while reached < end:
            batch = await reader.next_batch(PATIENCE_SECONDS)
            found += [m.value for m in batch.messages if key is None or m.key == key]
            reached = batch.next_offset
    return found


def words(count: int, word: str = "word") -> list[bytes]:
    return [b"%s %d" % (word.encode(), i) for i in range(count)]


async def publish_all(client: fanlog.Client, topic: str, values: Sequence[bytes]) -> None:
    await asyncio.gather(*(client.publish(topic, value) for value in values))
