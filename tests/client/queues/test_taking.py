"""Jobs that one client takes and another settles, with nothing but a receipt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.client.core.job_receipts import JobReceipt, ReceivedJob, read_receipt
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.taking import settle, take
from fanlog.config import BrokerOptions, Config, ListenerOptions
from fanlog.format.messages import OutcomeKind
from fanlog.node import Node
from tests.client.ways import PATIENCE_SECONDS, BrokerClock, Way, until

FREE = ListenerOptions(port=0)


@asynccontextmanager
async def two_clients(folder: Path | None = None) -> AsyncIterator[tuple[Any, Any]]:
    """Two that know nothing of each other."""
    node = Node(folder, Config(listener=FREE))
    node.start()
    url = f"fanlog://127.0.0.1:{node.listen().port}"
    try:
        async with fanlog.connect(url) as one, fanlog.connect(url) as other:
            yield one, other
    finally:
        await node.stop()


async def taken(
    client: Any, limit: int = 1, *, wait: float = 0, **options: Any
) -> list[ReceivedJob]:
    given: WorkOptions = {"missing": "fail", **options}  # type: ignore[typeddict-item]
    return await take(client, "jobs", queue="q", limit=limit, wait_seconds=wait, options=given)


async def all_taken(client: Any, count: int) -> list[ReceivedJob]:
    """As many as asked for, however slow the machine is."""
    found: list[ReceivedJob] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await taken(client, count - len(found), wait=PATIENCE_SECONDS)
    return found


def texts(found: list[ReceivedJob]) -> list[str]:
    return sorted(one.message.text for one in found)


async def test_one_client_takes_and_another_settles() -> None:
    async with two_clients() as (one, other):
        await one.publish_many("jobs", ["a", "b", "c", "d"])
        a, b, c, d = sorted(await all_taken(one, 4), key=lambda t: t.message.text)
        assert await settle(other, [a.receipt], OutcomeKind.ACK) == []
        assert (
            await settle(other, [b.receipt], OutcomeKind.NACK, delay_ms=0, reason="try again") == []
        )
        assert await settle(other, [c.receipt], OutcomeKind.REJECT, reason="broken") == []
        assert await settle(other, [d.receipt], OutcomeKind.EXTEND, delay_ms=60_000) == []
        (again,) = await all_taken(other, 1)
        assert (again.message.text, again.deliveries) == ("b", 2)
        assert await settle(one, [again.receipt, d.receipt], OutcomeKind.ACK) == []
        (letter,) = await one.dead_letters.list("dead.jobs")
        assert (letter.value, letter.death.reason) == (b"c", "broken")
        assert (await one.groups.describe("q")).lag == 0
        # Who has gone with jobs, and has none left, is forgotten.
        assert (await one.groups.describe("q")).members == ()


async def test_what_is_said_twice_or_too_late_is_named() -> None:
    async with two_clients() as (one, other):
        await one.publish_many("jobs", ["a", "b"])
        a, b = await all_taken(one, 2)
        assert await settle(one, [a.receipt, a.receipt], OutcomeKind.ACK) == []
        assert await settle(other, [a.receipt], OutcomeKind.ACK) == [a.receipt]
        assert await settle(one, [b.receipt], OutcomeKind.NACK, delay_ms=0) == []
        (again,) = await all_taken(other, 1)
        # The job is somebody else's now.
        for verb in (OutcomeKind.NACK, OutcomeKind.REJECT, OutcomeKind.EXTEND):
            assert await settle(one, [b.receipt], verb) == [b.receipt]
        # But done is done, whoever says so.
        assert await settle(one, [b.receipt], OutcomeKind.ACK) == []
        assert await settle(other, [again.receipt], OutcomeKind.ACK) == [again.receipt]


async def test_jobs_come_again_when_their_time_is_up(data: Path, broker_clock: BrokerClock) -> None:
    way = Way("embedded", data)
    async with way.open() as client:
        await client.publish("jobs", "a")
        (first,) = await all_taken(client, 1)
        assert await taken(client) == []
        broker_clock.advance(31)
        way.core.queues.tick()
        (second,) = await all_taken(client, 1)
        assert (second.message.text, second.deliveries) == ("a", 2)
        assert await settle(client, [first.receipt], OutcomeKind.NACK) == [first.receipt]
        assert await settle(client, [second.receipt], OutcomeKind.ACK) == []


async def test_a_receipt_counts_after_a_restart_of_the_broker(data: Path) -> None:
    way = Way("embedded", data)
    async with way.open() as client:
        await client.publish_many("jobs", ["a", "b"])
        a, _ = await all_taken(client, 2)
    async with way.open() as client:
        assert await settle(client, [a.receipt], OutcomeKind.ACK) == []
        (left,) = await all_taken(client, 1)
        assert left.message.text == "b"


async def test_a_take_waits_for_a_job_and_gives_it_back_if_it_is_given_up() -> None:
    async with two_clients() as (one, other):
        await one.create_topic("jobs")
        waiting = asyncio.create_task(taken(one, 10, wait=PATIENCE_SECONDS))
        await one.publish("jobs", "a")
        (job,) = await waiting
        assert job.message.text == "a"
        given_up = asyncio.create_task(taken(one, 10, wait=PATIENCE_SECONDS))

        async def waits() -> bool:
            return any(m.present for m in (await other.groups.describe("q")).members)

        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await waits():  # noqa: ASYNC110 - the state is the broker's
                await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await one.publish("jobs", "b")
        (job,) = await all_taken(other, 1)
        assert (job.message.text, job.deliveries) == ("b", 1)


async def test_every_job_is_taken_once_by_many_who_take_at_the_same_time() -> None:
    async with two_clients() as (one, other):
        await one.publish_many("jobs", [str(i) for i in range(200)])
        done: list[str] = []

        async def work(client: Any) -> None:
            while len(done) < 200:
                jobs = await taken(client, 7)
                assert await settle(client, [job.receipt for job in jobs], OutcomeKind.ACK) == []
                done.extend(job.message.text for job in jobs)

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(work(client) for client in (one, other) for _ in range(3)))
        assert sorted(done, key=int) == [str(i) for i in range(200)]


async def test_native_workers_and_takes_share_a_queue() -> None:
    async with two_clients() as (one, other):
        await one.publish_many("jobs", ["a", "b"])
        (first,) = await all_taken(one, 1)
        async with other.work("jobs", queue="q") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            assert sorted([first.message.text, job.text]) == ["a", "b"]
            assert await settle(one, [first.receipt], OutcomeKind.NACK, delay_ms=0) == []
            await job.ack()
            again = await worker.next(PATIENCE_SECONDS)
            assert (again.text, again.deliveries) == (first.message.text, 2)
            await again.ack()


async def test_jobs_of_a_deleted_topic_or_queue_are_late() -> None:
    async with two_clients() as (one, _):
        await one.publish("jobs", "a")
        (job,) = await all_taken(one, 1)
        await one.delete_topic("jobs")
        assert await settle(one, [job.receipt], OutcomeKind.ACK) == [job.receipt]
        await one.groups.delete("q")
        with pytest.raises(errors.GroupNotFoundError):
            await settle(one, [job.receipt], OutcomeKind.ACK)


async def test_jobs_kept_by_many_who_left_are_limited() -> None:
    config = Config(broker=BrokerOptions(queue_workers_max=2))
    async with fanlog.Broker(None, config) as client:
        await client.publish_many("jobs", ["a", "b", "c"])
        kept = [await all_taken(client, 1) for _ in range(2)]
        with pytest.raises(errors.LimitError, match="queue_workers_max"):
            await taken(client)
        await settle(client, [kept[0][0].receipt], OutcomeKind.ACK)
        await until(lambda: len(client._node.core.queues.find("q").workers) < 2)  # type: ignore[union-attr]
        assert len(await all_taken(client, 1)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "!!!",
        "é",
        JobReceipt("q", "w", 1, 0, 1, 5, 5).print(),
        JobReceipt("", "w", 1, 0, 1, 0, 1).print(),
        JobReceipt("q", "w", -1, 0, 1, 0, 1).print(),
        JobReceipt("q", "w", 1, 0, 1, 0, 1 << 63).print(),
    ],
    ids=range(8),
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="is not a receipt"):
        read_receipt(text)
