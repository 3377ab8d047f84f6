"""Priorities as programs use them, over every implementation of the API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fanlog
from fanlog import errors
from tests.client.queues.hands import work
from tests.client.ways import PATIENCE_SECONDS, WAYS, Blocking, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def worked_off(client: Any, topic: str, count: int, **options: Any) -> list[bytes]:
    """One job after the other, each acked."""
    done: list[bytes] = []
    async with work(client, topic, queue="q", **options) as worker:
        while len(done) < count:
            job = await worker.next(PATIENCE_SECONDS)
            done.append(job.value)
            await job.ack()
    return done


async def test_urgent_messages_are_handed_out_first_also_after_a_restart(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("jobs", [b"low1", b"low2"])
        await client.publish("jobs", b"middle", priority=4)
        await client.publish("jobs", b"urgent", priority=9, timeout_seconds=PATIENCE_SECONDS)
        await client.publish_many("jobs", [b"a", b"b"], priority=6)
    async with way.open() as client:
        expected = [b"urgent", b"a", b"b", b"middle", b"low1", b"low2"]
        assert await worked_off(client, "jobs", 6) == expected


async def test_messages_of_several_priorities_in_one_turn_keep_theirs(way: Way) -> None:
    """A batch has one priority: those beside it go into others."""
    async with way.open() as client:
        await client.create_topic("jobs")
        for i in range(30):
            await client.send("jobs", b"%d" % i, priority=i % 3)
        await client.flush()
        async with client.subscribe("jobs", start="earliest") as reader:
            got = [await reader.next(PATIENCE_SECONDS) for _ in range(30)]
        # Plain readers have the order of the log.
        assert [m.value for m in got] == [b"%d" % i for i in range(30)]
        assert [m.priority for m in got] == [i % 3 for i in range(30)]
        done = await worked_off(client, "jobs", 30)
        assert done[:9] == [b"%d" % i for i in range(2, 29, 3)]


async def test_a_plain_message_does_not_slip_into_an_urgent_batch() -> None:
    async with fanlog.Broker() as broker:
        await broker.create_topic("jobs")
        await broker.send("jobs", b"urgent", priority=9)
        await broker.send("jobs", b"plain")
        await broker.flush()
        async with broker.subscribe("jobs", start="earliest") as reader:
            got = [await reader.next(PATIENCE_SECONDS) for _ in range(2)]
        assert [(m.value, m.priority) for m in got] == [(b"urgent", 9), (b"plain", 0)]


async def test_a_transaction_and_compression_keep_priorities(way: Way) -> None:
    async with way.open(compression="zlib") as client:
        await client.create_topic("jobs")
        async with client.transaction() as transaction:
            await transaction.publish("jobs", b"low" * 1000)
            await transaction.publish("jobs", b"urgent" * 1000, priority=9)
        await client.publish("jobs", b"other" * 1000, priority=5)
        expected = [b"urgent" * 1000, b"other" * 1000, b"low" * 1000]
        assert await worked_off(client, "jobs", 3) == expected


async def test_a_replayed_dead_letter_has_the_priority_that_its_job_had(way: Way) -> None:
    async with way.open() as client:
        await client.publish("jobs", b"urgent", priority=9)
        async with work(client, "jobs", queue="q") as worker:
            await (await worker.next(PATIENCE_SECONDS)).reject("no")
        await client.publish_many("jobs", [b"low"] * 3)
        if isinstance(client, Blocking):
            (letter,) = await asyncio.to_thread(client._client.dead_letters.list, "dead.jobs")
            await asyncio.to_thread(client._client.dead_letters.replay, "dead.jobs")
        else:
            (letter,) = await client.dead_letters.list("dead.jobs")
            await client.dead_letters.replay("dead.jobs")
        assert letter.death.priority == 9
        assert letter.document()["priority"] == 9
        assert await worked_off(client, "jobs", 4) == [b"urgent", b"low", b"low", b"low"]


async def test_a_job_says_its_priority_and_keeps_it_when_it_fails(way: Way) -> None:
    async with way.open() as client:
        await client.publish("jobs", b"low")
        await client.publish("jobs", b"urgent", priority=9)
        async with work(client, "jobs", queue="q") as worker:
            for deliveries in (1, 2):
                job = await worker.next(PATIENCE_SECONDS)
                assert (job.value, job.priority, job.deliveries) == (b"urgent", 9, deliveries)
                await job.nack()


async def test_a_priority_that_there_is_none_of_is_refused(way: Way) -> None:
    async with way.open() as client:
        for wrong in (10, -1, "high", 2.5, True):
            with pytest.raises(errors.InvalidArgumentError, match="number from 0 to 9"):
                await client.publish("jobs", b"x", priority=wrong)


async def test_messages_for_later_have_their_priority_when_they_are_due(way: Way) -> None:
    """Several of one partition, in one go: none is taken for a repeat of another."""
    async with way.open() as client:
        await client.create_topic("jobs")
        async with client.transaction() as transaction:
            for i in range(6):
                value, priority = b"%d.%d" % (i % 3, i), i % 3
                await transaction.publish("jobs", value, priority=priority, delay_seconds=0.05)
        await client.publish("jobs", b"9", priority=9, delay_seconds=0.05)
        async with client.subscribe("jobs", start="earliest") as reader:
            got = [await reader.next(PATIENCE_SECONDS) for _ in range(7)]
        assert all(m.value.startswith(b"%d" % m.priority) for m in got)
        expected = [b"9", b"2.2", b"2.5", b"1.1", b"1.4", b"0.0", b"0.3"]
        assert await worked_off(client, "jobs", 7) == expected
