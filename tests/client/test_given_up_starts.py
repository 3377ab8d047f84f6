"""Who gives up while its start is under way: the broker is told, and keeps nothing for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.config import Config
from fanlog.errors import GroupNotFoundError, RequestTimeoutError
from fanlog.node import Node
from tests.client.ways import FREE_PORT, take_values

PATIENCE_SECONDS = 40


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """A broker behind a socket: an answer takes a few turns of the loop, a cancellation one."""
    node = Node(folder, Config(listener=FREE_PORT))
    node.start()
    try:
        yield f"fanlog://127.0.0.1:{node.listen().port}"
    finally:
        await node.stop()


async def give_up(start: Coroutine[Any, Any, Any]) -> None:
    """Cancels it when it has asked, and before it can have its answer."""
    starting = asyncio.create_task(start)
    await asyncio.sleep(0)
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def members_of(client: fanlog.Client, group: str) -> int:
    try:
        return len((await client.groups.describe(group)).members)
    except GroupNotFoundError:
        return 0


async def test_a_member_that_is_cancelled_as_it_joins_leaves_the_group(data: Path) -> None:
    async with served(data) as url, fanlog.connect(url) as client:
        await client.create_topic("t", partitions=2)
        await give_up(client.consume("t", group="g").start())
        assert await members_of(client, "g") == 0


async def test_a_transform_that_is_cancelled_as_it_joins_holds_nothing_up(data: Path) -> None:
    async with served(data) as url, fanlog.connect(url) as client:
        await client.create_topic("in", partitions=4)

        async def work() -> int:
            return await client.transform("in", "out", lambda m: m.value, group="g")

        at_work = asyncio.create_task(work())
        await give_up(work())
        await client.publish_many("in", [b"%d" % i for i in range(40)])
        try:
            # Partitions would be with the one that is gone, and their messages never done.
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sum(p.offset for p in await client.committed("group/g")) < 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert await members_of(client, "g") == 1
        finally:
            at_work.cancel()
            await asyncio.gather(at_work, return_exceptions=True)


@pytest.mark.parametrize("as_member", [True, False])
async def test_what_was_cancelled_as_it_began_can_begin_again(data: Path, as_member: bool) -> None:
    async with served(data) as url, fanlog.connect(url) as client:
        await client.publish("t", b"one")
        reader = (
            client.consume("t", group="g", reset="earliest")
            if as_member
            else client.subscribe("t", start="earliest")
        )
        await give_up(reader.start())
        async with reader:
            assert await take_values(reader, 1) == [b"one"]


async def test_jobs_are_not_kept_for_a_worker_that_was_cancelled_as_it_began(data: Path) -> None:
    async with served(data) as url, fanlog.connect(url) as client:
        await client.publish("t", b"one")
        await give_up(client.work("t", queue="q", reset="earliest").start())
        async with client.work("t", queue="q", reset="earliest") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            assert job.value == b"one"
            await job.ack()


async def test_a_member_whose_join_is_not_answered_in_time_leaves_the_group(data: Path) -> None:
    async with served(data) as url, fanlog.connect(url) as client:
        await client.create_topic("t", partitions=2)
        async with fanlog.connect(url, request_timeout_seconds=1e-6) as hasty:
            with pytest.raises(RequestTimeoutError):
                await hasty.consume("t", group="g").start()
            # The broker takes what a connection asks in order: when it has made this one, it has
            # seen all that came before.
            with pytest.raises(RequestTimeoutError):
                await hasty.create_topic("made behind it")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await client.topics("made behind it"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await members_of(client, "g") == 0
