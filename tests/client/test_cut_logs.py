"""Clients whose broker lost the end of a log in a power cut: they hear of it, get all that is new,
and commit nothing that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fanlog
from fanlog import errors
from fanlog.client.aio import Client
from fanlog.model import Gap
from tests.broker.cuts import cut_log
from tests.client.test_reconnect import EAGER, Restartable, running
from tests.client.ways import PATIENCE_SECONDS, take, until


async def publish(client: Client, prefix: str, count: int) -> None:
    """Batches of ten."""
    for first in range(0, count, 10):
        await client.publish_many("t", [f"{prefix}{i}".encode() for i in range(first, first + 10)])


async def cut_power(broker: Restartable, kept: int, new: int) -> None:
    """The log loses its end, and gets new messages before anybody comes back."""
    await broker.stop()
    assert broker.folder is not None
    cut_log(broker.folder, "t", kept)
    port, broker.port = broker.port, 0
    await broker.start()
    async with fanlog.connect(broker.url) as other:
        await publish(other, "new-", new)
    await broker.stop()
    broker.port = port
    await broker.start()


@asynccontextmanager
async def old_log(data: Path) -> AsyncIterator[tuple[Restartable, Client]]:
    """A broker with a topic of 100 messages, and a client of it."""
    async with running(data) as broker, fanlog.connect(broker.url, **EAGER) as client:
        await publish(client, "old-", 100)
        yield broker, client


async def committed(client: Client, durable: str) -> list[tuple[int, int]]:
    return [(p.offset, p.epoch) for p in await client.committed(durable)]


@pytest.mark.parametrize("new", [30, 200])
async def test_a_subscriber_gets_what_it_has_then_the_gap_then_all_that_is_new(
    data: Path, new: int
) -> None:
    async with (
        old_log(data) as (broker, client),
        client.subscribe("t", start="earliest", durable="name") as reader,
    ):
        assert [m.offset for m in await take(reader, 50)] == list(range(50))
        # The answer comes behind all messages.
        await client.describe_topic("t")
        await cut_power(broker, 40, new)
        await until(lambda: client.connected and client.reconnects > 0)
        old = await take(reader, 50)
        assert [m.text for m in old] == [f"old-{i}" for i in range(50, 100)]
        # All of it is gone: it does not count as progress in the new log.
        await reader.commit()
        assert await committed(client, "name") == [(40, 3)]
        with pytest.raises(errors.FencedError, match="not in partition 0 of 't' any more"):
            await reader.commit(old[-1])
        with pytest.raises(errors.MessagesLostError) as lost:
            await take(reader, 1)
        assert (lost.value.reason, lost.value.first, lost.value.next) == ("reset", 100, 40)
        got = await take(reader, new)
        assert [m.text for m in got] == [f"new-{i}" for i in range(new)]
        await reader.commit()
        assert await committed(client, "name") == [(40 + new, 2)]


async def test_a_member_gets_all_that_is_new_and_commits_only_that(data: Path) -> None:
    gaps: list[Gap] = []
    async with old_log(data) as (broker, client):
        wanted = {"group": "g", "reset": "earliest", "on_gap": gaps.append}
        async with client.consume("t", commit_interval_seconds=0.01, **wanted) as member:  # type: ignore[arg-type]
            assert len(await take(member, 60)) == 60
            await client.describe_topic("t")
            await cut_power(broker, 40, 200)
            await until(lambda: client.connected and client.reconnects > 0)
            await until(lambda: bool(gaps))
            assert [(gap.first, gap.next, gap.reason) for gap in gaps] == [(100, 40, "reset")]
            got = [m.text for m in await take(member, 240)]
            assert got == [
                *(f"old-{i}" for i in range(60, 100)),
                *(f"new-{i}" for i in range(200)),
            ]
            await member.commit()
        (partition,) = (await client.groups.describe("g")).partitions
        assert (partition.committed, partition.lag) == (240, 0)


async def test_a_member_that_stops_while_it_has_old_messages_leaves_out_nothing_new(
    data: Path,
) -> None:
    async with old_log(data) as (broker, client):
        async with client.consume("t", group="g", reset="earliest", on_gap=print) as member:
            assert len(await take(member, 60)) == 60
            await client.describe_topic("t")
            await cut_power(broker, 40, 200)
            await until(lambda: client.connected and client.reconnects > 0)
            old = await take(member, 10)
            assert [m.text for m in old] == [f"old-{i}" for i in range(60, 70)]
            with pytest.raises(errors.FencedError, match="not in partition 0 of 't' any more"):
                await member.commit(old[-1])
        async with client.consume("t", group="g", reset="earliest", on_gap=print) as member:
            assert [m.text for m in await take(member, 200)] == [f"new-{i}" for i in range(200)]


async def test_a_transformation_goes_on_with_all_that_is_new(data: Path) -> None:
    gaps: list[Gap] = []
    async with old_log(data) as (broker, client):

        async def transform(until_text: str) -> None:
            seen: list[str] = []

            def made(message: fanlog.Message) -> str:
                seen.append(message.text)
                return message.text

            await client.transform(
                "t",
                "u",
                made,
                group="g",
                reset="earliest",
                batch_seconds=0.05,
                on_gap=gaps.append,
                until=lambda: bool(seen) and seen[-1] == until_text,
            )

        await transform("old-99")
        await cut_power(broker, 40, 200)
        await transform("new-199")
        assert [(gap.first, gap.next) for gap in gaps] == [(100, 40)]
        async with client.subscribe("u", start="earliest") as reader:
            got = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(300)]
        assert got == [*(f"old-{i}" for i in range(100)), *(f"new-{i}" for i in range(200))]


async def test_what_was_read_of_a_topic_that_was_made_again_is_not_committed(data: Path) -> None:
    async with (
        old_log(data) as (_, client),
        client.subscribe("t", start="earliest", durable="name") as reader,
    ):
        old = await take(reader, 10)
        await client.delete_topic("t")
        await client.create_topic("t")
        await publish(client, "new-", 50)
        with pytest.raises(errors.FencedError, match="another topic 't', which was deleted"):
            await reader.commit(old[-1])
