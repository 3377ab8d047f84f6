"""A topic whose durability is raised from os to fsync: what a power cut must not do to it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import fanlog
from fanlog import errors
from fanlog.model import KIB
from tests.power.machine import FuseMachine, PoweredBroker
from tests.power.steps import (
    assert_well,
    cut_power,
    publish_all,
    running,
    until_killed,
    values_of,
    words,
)

# More than one file of a log, so that sealed ones are among what is not synced.
SEGMENT_BYTES = 64 * KIB
OLD, NEW = 40, 60
PADDING = b"x" * 4 * KIB


async def test_all_that_was_there_and_all_that_follows_survives(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", partitions=2, segment_bytes=SEGMENT_BYTES)
        old = [word + PADDING for word in words(OLD, "old")]
        for partition in range(2):
            for value in old:
                await client.publish("orders", value, partition=partition)
        await client.alter_topic("orders", durability="fsync", retention_seconds=99)
        new = words(NEW, "new")
        for partition in range(2):
            for value in new:
                receipt = await client.publish("orders", value, partition=partition)
                assert receipt.durability == "fsync"
        await cut_power(broker)
        for partition in range(2):
            assert await values_of(client, "orders", partition=partition) == old + new
        settings = (await client.describe_topic("orders")).settings
        assert (settings.durability, settings.retention_seconds) == ("fsync", 99)
        await assert_well(client)
        await publish_all(client, "orders", words(5, "later"))
        await cut_power(broker)
        await assert_well(client)


async def test_an_answer_survives_though_nothing_follows(cuts: FuseMachine) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders")
        await client.create_topic("empty")
        await publish_all(client, "orders", words(OLD))
        for topic in ("orders", "empty"):
            await client.alter_topic(topic, durability="fsync")
        await cut_power(broker)
        assert sorted(await values_of(client, "orders")) == sorted(words(OLD))
        for topic in ("orders", "empty"):
            assert (await client.describe_topic(topic)).settings.durability == "fsync"
        await assert_well(client)


@pytest.mark.parametrize("nth", [1, 3, 5, 6, 8, 12])
async def test_what_was_acknowledged_as_synced_is_kept_wherever_it_is_cut(
    cuts: FuseMachine, nth: int
) -> None:
    async with running(cuts) as (broker, client):
        await client.create_topic("orders", segment_bytes=SEGMENT_BYTES)
        await client.create_topic("first", durability="fsync")
        await client.publish("first", b"the journal is there")
        before = [word + PADDING for word in words(OLD, "old")]
        for value in before:
            await client.publish("orders", value)
        cuts.kill_at(broker, "fsync", nth=nth)
        answered, receipts = await raise_while_publishing(broker, cuts)
        await cut_power(broker)
        settings = (await client.describe_topic("orders")).settings
        if settings.durability == "os":
            assert (answered, receipts) == (False, [])
            return
        stored = await values_of(client, "orders")
        published = before + [b"%d" % number for number in range(len(stored))]
        # All that was there before is there, and nothing is missing in between.
        assert stored == published[: len(stored)]
        assert len(stored) >= len(before)
        assert all(offset < len(stored) for offset in receipts)
        await assert_well(client)


async def raise_while_publishing(
    broker: PoweredBroker, machine: FuseMachine
) -> tuple[bool, list[int]]:
    """Raises the durability while messages come in, until the broker is killed. Whether that was
    answered, and the offsets that were acknowledged as synced."""
    try:
        async with fanlog.connect(broker.url, reconnect=False) as client:
            return await _raise_while_publishing(broker, client, machine)
    except errors.ConnectError:
        # The broker syncs on its own account, too: it was killed before anybody asked.
        await until_killed(machine)
        broker.kill()
        return False, []


async def _raise_while_publishing(
    broker: PoweredBroker, client: fanlog.Client, machine: FuseMachine
) -> tuple[bool, list[int]]:
    receipts: list[int] = []

    async def publish() -> None:
        number = 0
        while True:
            receipt = await client.publish("orders", b"%d" % number)
            number += 1
            if receipt.durability == "fsync":
                receipts.append(receipt.offset)

    publishing = asyncio.create_task(publish())
    raising = asyncio.create_task(client.alter_topic("orders", durability="fsync"))
    await until_killed(machine)
    broker.kill()
    answered = raising.done() and raising.exception() is None
    for task in (publishing, raising):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, errors.FanlogError):
            await task
    return answered, receipts


async def test_a_sync_that_fails_is_said_and_raises_nothing(fuse: FuseMachine) -> None:
    async with running(fuse) as (broker, client):
        await client.create_topic("orders")
        await client.publish("orders", b"one")
        fuse.fail("fsync", "orders")
        with pytest.raises(errors.LogFailedError, match=r"Syncing .*orders"):
            await client.alter_topic("orders", durability="fsync")
        # The kernel tells of a lost write once: asking again must not say that all is well.
        with pytest.raises(errors.LogFailedError):
            await client.publish("orders", b"two")
        assert (await client.status()).state == "failing"
        broker.kill()
        await asyncio.to_thread(broker.start)
        assert (await client.describe_topic("orders")).settings.durability == "os"
