"""Data for a broker that is looked at, and that keeps coming: a small shop.

| what | where |
| --- | --- |
| topics | orders (4 partitions, with keys), payments, logs.web, logs.api, prices (compacted) |
| groups | billing reads orders and keeps up; archive has stopped, so that its lag grows |
| queue | mailers works on emails; every fifth job dies, for one of three reasons: dead.emails |
| the rest | an open transaction, a delayed message, a schedule, people in chat.room.lobby |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

import fanlog
from fanlog.client.aio import Client

PEOPLE = ("ann", "bob", "carla", "dimitri")
PRODUCTS = ("tea", "coffee", "cocoa", "cups", "honey")
REASONS = (
    "SMTP server refused the recipient: 550 no such user",
    "template 'welcome-2' not found",
    "timed out after 30 s",
)
LOBBY = "chat.room.lobby"
EVERY_SECONDS = 0.1
OLDER_MESSAGES = 200


@dataclass
class Flowing:
    """`published` counts the orders so far. `pause()` stops what comes in, `resume()` goes on."""

    published: int = 0
    _running: asyncio.Event = field(default_factory=asyncio.Event)

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def ready(self) -> None:
        await self._running.wait()


def order(number: int, dice: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "customer": dice.choice(PEOPLE),
        "items": [{"product": dice.choice(PRODUCTS), "count": dice.randrange(1, 5)}],
        "total": round(dice.uniform(3, 120), 2),
        "address": {"city": "Bern", "street": f"Gasse {number % 90}"},
    }


@asynccontextmanager
async def flowing(broker: Client, url: str, key: str = "") -> AsyncIterator[Flowing]:
    """Fills the broker, and keeps publishing until the block ends."""
    await _create(broker)
    data, dice = Flowing(), random.Random(14)
    for number in range(OLDER_MESSAGES):
        await _publish(broker, data, number, dice)
    await broker.flush()
    await _archive(broker)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_people(url, key))
        tasks = [
            asyncio.create_task(work)
            for work in (
                _publishing(broker, data, dice),
                _forever(lambda: broker.consume("orders", _nothing, group="billing")),
                _forever(lambda: broker.work("emails", _mail, queue="mailers", concurrency=4)),
            )
        ]
        stack.push_async_callback(_ended, tasks)
        transaction = broker.transaction("monthly-closing", timeout_seconds=3600)
        await stack.enter_async_context(_aborted(transaction))
        await transaction.publish("payments", b"not yet", key="ann")
        await broker.publish("emails", {"to": "ann"}, delay_seconds=3600, schedule_id="reminder-42")
        await broker.add_schedule("daily-report", "reports", "daily", cron="0 8 * * 1-5")
        await _until_dead(broker)
        data.resume()
        yield data


async def _create(broker: Client) -> None:
    await broker.create_topic("orders", partitions=4)
    for name in ("payments", "logs.web", "logs.api", "emails", "reports", LOBBY):
        await broker.create_topic(name)
    await broker.create_topic("prices", cleanup="compact")
    async with broker.work(
        "emails",
        queue="mailers",
        max_deliveries=1,
        dead_letter="dead.emails",
        visibility_seconds=30,
    ):
        pass


async def _publish(broker: Client, data: Flowing, number: int, dice: random.Random) -> None:
    one = order(number, dice)
    trace = {"traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01"}
    await broker.send("orders", one, key=one["customer"], headers={"source": "shop", **trace})
    data.published += 1
    await broker.send("payments", {"order": number, "amount": one["total"]}, key=one["customer"])
    await broker.send("logs.web", f"GET /orders/{number} 200 {dice.randrange(2, 90)} ms")
    if number % 3 == 0:
        await broker.send("logs.api", f"worker {number % 4} has taken order {number}")
        await broker.send("prices", {"price": one["total"]}, key=dice.choice(PRODUCTS))
        await broker.send("emails", {"to": one["customer"], "order": number})
        await broker.send(LOBBY, {"from": one["customer"], "text": f"Order {number} is ready."})


async def _archive(broker: Client) -> None:
    """A group that reads a little and stops."""
    async with broker.consume("orders", group="archive", reset="earliest", commit="manual") as few:
        async for message in few:
            if message.offset >= 5:
                break
        await few.commit()


async def _publishing(broker: Client, data: Flowing, dice: random.Random) -> None:
    for number in count(OLDER_MESSAGES):
        await data.ready()
        await _publish(broker, data, number, dice)
        await asyncio.sleep(EVERY_SECONDS)


async def _nothing(message: fanlog.Message) -> None:
    del message
    await asyncio.sleep(0)


async def _mail(job: fanlog.Job) -> None:
    number = job.json()["order"] // 3
    if number % 5 == 0:
        await job.reject(REASONS[number // 5 % len(REASONS)])
    elif number % 7 == 0:
        await asyncio.sleep(0.5)


async def _forever(work: Callable[[], Awaitable[object]]) -> None:
    await work()


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _aborted(transaction: Any) -> AsyncIterator[None]:
    """An open transaction, given up at the end."""
    await transaction.__aenter__()
    try:
        yield
    finally:
        await transaction.abort()


async def _until_dead(broker: Client) -> None:
    """Waits until the dead letters have a topic."""
    while not await broker.topics("dead.emails"):  # noqa: ASYNC110 - the broker says nothing
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _people(url: str, key: str) -> AsyncIterator[None]:
    """Browsers in the lobby, by name."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as http, AsyncExitStack() as stack:
        for name in PEOPLE:
            address = f"{url}/v1/ws" + (f"?user={name}" if key else "")
            socket = await stack.enter_async_context(http.ws_connect(address, heartbeat=20))
            await socket.send_json(
                {"op": "subscribe", "id": 1, "target": LOBBY, "presence": {"name": name.title()}}
            )
            stack.push_async_callback(_ended, [asyncio.create_task(_drained(socket))])
        yield


async def _drained(socket: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in socket:
        pass
