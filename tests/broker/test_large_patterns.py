"""A pattern that fits very many topics: joined in slices, while topics come, grow and go."""

from __future__ import annotations

import asyncio

import pytest

import fanlog
from fanlog.broker.slices import SLICE_US
from fanlog.format.messages import Joined, Subscribe
from fanlog.listeners import native
from fanlog.model import Start
from tests.broker.stage import Peer, Stage, stage

TOPICS = 30


def make_slow(on: Stage, look_us: int = SLICE_US // 2) -> None:
    """From now on each look at the clock takes half a slice, or as long as it says."""
    runtime = on.runtime
    clock = runtime.monotonic_us

    def slow_clock() -> int:
        runtime.time_us += look_us
        return clock()

    runtime.monotonic_us = slow_clock  # type: ignore[method-assign]


async def joined_meanwhile(on: Stage, peer: Peer, changes: list[str]) -> list[Joined]:
    """Subscribes to all topics; after the first slice, the changes happen: `+name` creates,
    `-name` deletes, and `*name` grows a topic."""
    wanted = Subscribe(target="t.*", wildcard=True, start=Start("earliest"))
    task = asyncio.create_task(on.core.subscriptions.add(1, wanted, peer, peer))
    await asyncio.sleep(0)
    assert not task.done()
    for change in changes:
        name = change[1:]
        if change[0] == "+":
            on.core.create_topic(name, {})
        elif change[0] == "-":
            on.core.delete_topic(name)
        else:
            on.grow(name, 2)
    while not task.done():
        if on.runtime.due:
            on.runtime.due.popleft()()
        await asyncio.sleep(0)
    subscription, joined = task.result()
    peer.feed = subscription
    on.core.subscriptions.start(subscription)
    on.run()
    return joined


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["+t.aa", "+t.zz", "+other"],
        ["-t.00", "-t.01", "-t.29"],
        ["*t.00", "*t.29"],
        ["+t.zz", "-t.zz", "-t.00", "+t.00", "*t.00"],
    ],
)
async def test_a_reader_joins_what_there_is_in_the_end(changes: list[str]) -> None:
    with stage(None) as on:
        for number in range(TOPICS):
            on.core.create_topic(f"t.{number:02}", {})
        make_slow(on)
        peer = Peer()
        joined = await joined_meanwhile(on, peer, changes)
        there = {t.number: len(t.partitions) for t in on.core.catalog if t.name.startswith("t.")}
        assert {j.number: len(j.starts) for j in joined} == there
        assert peer.feed is not None
        assert len(peer.feed.cursors) == sum(there.values())
        for topic in list(on.core.catalog):
            for partition in range(len(topic.partitions)):
                on.publish(topic.name, [b"x"], partition=partition)
        on.run()
        assert len(peer.batches) == sum(there.values())


async def test_a_client_reads_all_topics_of_a_large_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_JOINED_AT_ONCE", 7)
    async with fanlog.Broker() as broker:
        for number in range(TOPICS):
            await broker.publish(f"t.{number}", str(number))
        async with broker.subscribe("t.*", start="earliest") as messages:
            got: list[fanlog.Message] = []
            async for message in messages:
                got.append(message)
                if len(got) == TOPICS:
                    break
        assert sorted(int(message.value) for message in got) == list(range(TOPICS))
