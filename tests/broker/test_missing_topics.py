"""Very many readers that wait for topics: each costs little, and a new topic is not their matter
unless it is theirs."""

from __future__ import annotations

import asyncio

import pytest

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.broker.slices import SLICE_US
from fanlog.errors import TopicNotFoundError
from fanlog.format.messages import Notice
from fanlog.model import MissingPolicy
from tests.broker.stage import Peer, Stage, stage
from tests.broker.test_large_patterns import make_slow

READERS = 100_000
FEW = 40


class Counted(dict[str, dict[BrokerSubscription, None]]):
    """Waiting readers by name; counts how many are looked at."""

    looked_at = 0

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        found = super().get(name, {})
        self.looked_at += len(found)
        return found


async def test_a_new_topic_looks_only_at_readers_that_wait_for_it() -> None:
    with stage(None) as on:
        peer = Peer()
        for number in range(READERS):
            await on.subscribe(f"user.{number}", peer)
        assert len(on.core.catalog) == 0
        assert len(on.core.subscriptions) == READERS
        counted = on.core.subscriptions._literal = Counted(on.core.subscriptions._literal)
        on.core.create_topic("nobody", {})
        on.core.create_topic("user.5", {})
        on.run()
        assert counted.looked_at == 1
        assert [joined.name for joined in peer.joins] == ["user.5"]


async def joined(on: Stage, peers: list[Peer]) -> list[list[int]]:
    on.publish("t", [b"x"], partition=0)
    on.publish("t", [b"y"], partition=1)
    on.run()
    return [sorted(batch.partition for batch in peer.batches) for peer in peers]


async def test_readers_join_a_new_topic_in_slices_and_get_its_first_message() -> None:
    with stage(None) as on:
        peers = [await on.subscribe("t") for _ in range(FEW)]
        make_slow(on)
        on.core.create_topic("t", {"partitions": 2})
        assert 0 < sum(len(peer.joins) for peer in peers) < FEW
        assert await joined(on, peers) == [[0, 1]] * FEW
        assert all(len(peer.joins) == 1 for peer in peers)


async def test_a_topic_that_grows_before_all_have_joined_is_read_once_by_each() -> None:
    with stage(None) as on:
        peers = [await on.subscribe("t") for _ in range(FEW)]
        make_slow(on)
        on.core.create_topic("t", {})
        on.grow("t", 2)
        assert await joined(on, peers) == [[0, 1]] * FEW
        assert all(len(peer.feed.cursors) == 2 for peer in peers if peer.feed)


async def test_a_topic_that_goes_before_all_have_joined_is_left_by_those_who_had() -> None:
    with stage(None) as on:
        peers = [await on.subscribe("t") for _ in range(FEW)]
        make_slow(on)
        on.core.create_topic("t", {})
        there = sum(len(peer.joins) for peer in peers)
        on.core.delete_topic("t")
        on.run()
        assert sum(len(peer.joins) for peer in peers) == there
        assert sum(len(peer.lefts) for peer in peers) == there
        on.core.create_topic("t", {"partitions": 2})
        assert await joined(on, peers) == [[0, 1]] * FEW


async def begin_and_delete(on: Stage, name: str, missing: MissingPolicy) -> Peer:
    """A reader whose topic goes while it begins, which takes more than one turn of the loop."""
    on.core.create_topic(name, {})
    beginning = asyncio.create_task(on.subscribe(name, missing=missing))
    await asyncio.sleep(0)
    assert not beginning.done()
    on.core.delete_topic(name)
    on.run()
    return await beginning


@pytest.mark.parametrize("name", ["t", "_stream.t"])
async def test_a_topic_that_goes_while_its_reader_begins_is_missing(name: str) -> None:
    with stage(None) as on:
        make_slow(on, SLICE_US)
        with pytest.raises(TopicNotFoundError, match="There is no"):
            await begin_and_delete(on, name, "fail")
        assert len(on.core.subscriptions) == 0

        peer = await begin_and_delete(on, name, "wait")
        assert peer.joins == []
        on.core.create_topic(name, {})
        on.publish(name, [b"x"])
        on.run()
        assert peer.batches[0].values == [b"x"]


async def test_a_reader_that_goes_before_it_has_joined_is_not_joined() -> None:
    with stage(None) as on:
        peers = [await on.subscribe("t") for _ in range(FEW)]
        make_slow(on)
        on.core.create_topic("t", {"partitions": 2})
        last = peers[-1].feed
        assert last is not None
        on.core.subscriptions.remove(last)
        assert (await joined(on, peers))[-1] == []
        assert on.core.catalog.get("t").partitions[0].readers == FEW - 1


async def test_everybody_may_wait_for_the_same_topic_and_leave_again() -> None:
    with stage(None) as on:
        peer = Peer()
        kept: list[BrokerSubscription] = []
        for _ in range(20_000):
            await on.subscribe("t", peer)
            assert peer.feed is not None
            kept.append(peer.feed)
        for subscription in kept:
            on.core.subscriptions.remove(subscription)
        assert not on.core.subscriptions._literal
        assert not on.core.is_awaited("t")


async def test_a_parent_is_told_of_by_the_one_pattern_that_leaves_it_out() -> None:
    with stage(None) as on:
        peers = {
            target: await on.subscribe(target) for target in ("a.b.>", "a.>", "*.b.>", "a.b.*", ">")
        }
        on.core.create_topic("a.b", {})
        on.run()
        told = {target: peer.notices for target, peer in peers.items() if peer.notices}
        assert told == {"a.b.>": [Notice("parent", "a.b")]}


async def test_the_brokers_own_topics_are_not_waited_for() -> None:
    with stage(None) as on, pytest.raises(TopicNotFoundError, match="makes its own topics"):
        await on.subscribe("_fanlog.nothing")
