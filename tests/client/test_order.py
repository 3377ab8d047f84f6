"""What a program publishes is stored in the order of its calls, and what it asks for afterwards
comes behind that. A batch that lingers, or a topic that must be opened, changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import fanlog
from tests.client.ways import WAYS, Way, take

# Nothing lingers so long in a test: what is stored by then did not wait for it.
LINGERS_MS = 30_000


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Path) -> Way:
    return Way(request.param, data)


async def stored(client: Any, topic: str, count: int) -> list[str]:
    async with client.subscribe(topic, start="earliest") as history:
        return [message.text for message in await take(history, count)]


async def test_a_transaction_does_not_overtake_what_lingers(way: Way) -> None:
    async with way.open(linger_ms=LINGERS_MS) as client:
        await client.create_topic("t", partitions=3)
        for i in range(3):
            await client.send("t", str(i), key="k")
        async with client.transaction() as tx:
            await tx.publish("t", "3", key="k")
        await client.send("t", "4", key="k")
        await client.run_transaction(_staging(way, "5"))
        assert await stored(client, "t", 6) == [str(i) for i in range(6)]


def _staging(way: Way, value: str) -> Callable[[Any], Awaitable[None] | None]:
    def stage(tx: Any) -> None:
        tx.publish("t", value, key="k")

    async def stage_here(tx: Any) -> None:
        await tx.publish("t", value, key="k")

    return stage if way.name == "blocking" else stage_here


async def test_a_delayed_message_that_was_just_sent_is_listed_and_taken_back(way: Way) -> None:
    async with way.open(linger_ms=LINGERS_MS) as client:
        await client.send("t", "x", delay_seconds=3600, schedule_id="mine")
        assert await client.cancel_scheduled("mine")
        await client.send("t", "y", delay_seconds=3600, schedule_id="another")
        if way.name == "blocking":
            listed = await asyncio.to_thread(lambda: list(client._client.scheduled("t")))
        else:
            listed = [message async for message in client.scheduled("t")]
        assert [message.id for message in listed] == ["another"]


@pytest.mark.parametrize("how", ["publish", "send"])
async def test_nobody_overtakes_those_who_wait_for_a_topic_to_be_opened(
    how: str, data: Path
) -> None:
    free = fanlog.Config(listener=fanlog.config.ListenerOptions(port=0))
    async with fanlog.Broker(data, free) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with fanlog.connect(url) as client:
            for topic in range(5):
                tasks: list[asyncio.Task[Any]] = []
                while sum(task.done() for task in tasks) < 10:
                    publishing = getattr(client, how)(f"t{topic}", str(len(tasks)))
                    tasks.append(asyncio.create_task(publishing))
                    # One in each turn of the loop, before, while and after the topic is opened.
                    await asyncio.sleep(0)
                await asyncio.gather(*tasks)
                await client.flush()
                numbers = [str(i) for i in range(len(tasks))]
                assert await stored(client, f"t{topic}", len(tasks)) == numbers


async def test_who_gives_up_waiting_for_a_topic_holds_up_nobody(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        tasks = [asyncio.create_task(broker.publish("t", str(i))) for i in range(5)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert tasks[1].cancelled()
        assert await stored(broker, "t", 4) == ["0", "2", "3", "4"]


async def test_all_who_wait_for_a_topic_hear_that_there_is_none(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        tasks = [asyncio.create_task(broker.publish("_fanlog.none", "x")) for _ in range(3)]
        await asyncio.wait(tasks)
        assert all(isinstance(task.exception(), fanlog.FanlogError) for task in tasks)


@pytest.mark.parametrize("target", ["t.a", "t.>"])
async def test_a_group_that_begins_at_the_end_gets_all_that_comes_after_it(
    target: str, way: Way
) -> None:
    async with way.open() as client:
        await client.create_topic("t.a", partitions=3)
        for i in range(9):
            await client.publish("t.a", "old", key=str(i))
        async with client.consume(target, group="g", reset="latest") as member:
            # At once: the partitions are not shared out yet.
            new = [await client.publish("t.a", "new", key=str(i)) for i in range(9)]
            got = await take(member, 9)
        assert {(m.partition, m.offset) for m in got} == {(r.partition, r.offset) for r in new}
