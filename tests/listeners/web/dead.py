"""Dead letters for tests: jobs that a queue gave up on, and many at once."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import fanlog
from fanlog.format.dead_letters import Death, death_headers
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Site
from tests.listeners.web.test_work import get

DEAD = "/v1/dead-letters/dead.jobs"

BEGIN = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


async def kill(broker: fanlog.Broker, topic: str = "jobs", **jobs: str) -> None:
    """Publishes jobs, whose key and value are given with the reason that they die for."""
    for key, reason in jobs.items():
        await broker.publish(topic, {"name": key}, key=key, headers={"h": "1"})
        async with broker.work(topic, queue="workers") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            await job.reject(reason)
    await letters(broker, f"dead.{topic}", len(jobs))


async def letters(broker: fanlog.Broker, topic: str, count: int) -> list[fanlog.DeadLetter]:
    """All dead letters of a topic, once there are so many."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                found = await broker.dead_letters.list(topic, limit=1_000_000)
            except fanlog.TopicNotFoundError:
                found = []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


async def kill_many(
    broker: fanlog.Broker, count: int, reason: Callable[[int], str], topic: str = "jobs"
) -> None:
    """Many dead letters, as the broker writes them, in the order of their jobs. One is real, so
    that the topic is as the broker makes it."""
    await kill(broker, topic, first="the first one")
    first = (await letters(broker, f"dead.{topic}", 1))[0].death
    for number in range(count):
        death = Death(
            topic=topic,
            partition=0,
            offset=first.offset + 1 + number,
            queue="workers",
            reason=reason(number),
            deliveries=5,
            time=BEGIN + dt.timedelta(seconds=number),
            key=f"k{number}".encode(),
            log=first.log,
        )
        value = b'{"number":%d}' % number
        headers = {**death_headers(death), "content-type": b"application/json"}
        await broker.send(f"dead.{topic}", value, key=death.letter_key, headers=headers)
    await broker.flush()


async def complete(site: Site, path: str) -> Any:
    """An answer, once the whole topic has been read."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = await get(site, path)
            if answer["complete"]:
                return answer


async def ended(site: Site, id: str) -> Any:
    """A task, once it has ended."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            task = await get(site, f"/v1/tasks/{id}")
            if task["state"] != "running":
                return task
            await asyncio.sleep(0.01)


async def values(broker: fanlog.Broker, topic: str, count: int) -> list[Any]:
    """The first messages of a topic, as JSON."""
    found: list[Any] = []
    async with broker.subscribe(topic, start="earliest") as subscription:
        async for message in subscription:
            found.append(message.json())
            if len(found) == count:
                return found
    return found
