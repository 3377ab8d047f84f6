"""Topics with very many partitions, as peers create and grow them: the logs are made in slices, and
a peer's next frames wait for its topic."""

from __future__ import annotations

import pytest

from fanlog.broker.lifecycle import growth
from fanlog.format.frames import FrameKind
from fanlog.format.messages import CreateTopic, GrowTopic, NamedTopic, OpenTopic, TopicOpened
from fanlog.listeners import topic_requests
from fanlog.log import store
from fanlog.model import TopicInfo
from tests.listeners.peers import Serving, request, serving

PARTITIONS = 40


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is one step."""
    monkeypatch.setattr("fanlog.broker.slices.SLICE_US", 0)
    monkeypatch.setattr(topic_requests, "_PARTITIONS_AT_ONCE", 4)
    monkeypatch.setattr(growth, "_LOGS_AT_ONCE", 4)
    monkeypatch.setattr(store, "_LOGS_A_STEP", 4)


def creating(number: int = 5) -> bytes:
    wanted = CreateTopic("t", {"partitions": PARTITIONS})
    return request(FrameKind.CREATE_TOPIC, wanted, number)


def partitions_of(served: Serving) -> int:
    return len(served.node.core.catalog.get("t").partitions)


async def test_the_next_frame_finds_the_topic() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(creating() + request(FrameKind.OPEN_TOPIC, OpenTopic("t"), 6))
        frames = [await peer.expect(FrameKind.OK), await peer.expect(FrameKind.OK)]
        answers = {got.request: got for got in frames}
        made, opened = answers[5].read(TopicInfo), answers[6].read(TopicOpened)
        assert made.number == opened.number
        assert len(made.partitions) == opened.settings.partitions == PARTITIONS
        assert partitions_of(served) == PARTITIONS


async def test_other_peers_have_their_turns_while_a_topic_is_made() -> None:
    async with serving() as served:
        peer, other = await served.greeted(), await served.greeted()
        await peer.send(creating())
        answer = await other.ask(FrameKind.DESCRIBE_TOPIC, NamedTopic("t"))
        assert answer.failure.code == "topic_not_found"
        assert (await peer.expect(FrameKind.OK)).request == 5


async def test_of_two_that_create_a_topic_one_is_refused() -> None:
    async with serving() as served:
        peers = [await served.greeted(), await served.greeted()]
        for peer in peers:
            await peer.send(creating())
        frames = [await peer.frame() for peer in peers]
        kinds = [got.kind for got in frames if got is not None]
        assert sorted(kinds) == sorted([FrameKind.OK, FrameKind.ERROR])
        (refused,) = (got for got in frames if got is not None and got.kind is FrameKind.ERROR)
        assert refused.failure.code == "topic_exists"
        assert partitions_of(served) == PARTITIONS


async def test_a_topic_that_is_made_meanwhile_takes_the_number() -> None:
    async with serving() as served:
        peer, other = await served.greeted(), await served.greeted()
        await peer.send(creating())
        between = await other.open_topic("between")
        made = (await peer.expect(FrameKind.OK)).read(TopicInfo)
        assert made.number > between
        found = served.node.core.catalog.find_partition(made.number, PARTITIONS - 1)
        assert found is not None
        assert found.log.owner == (made.number, PARTITIONS - 1)


async def test_a_topic_of_a_peer_that_is_gone_is_made_as_a_whole() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(creating())
        peer.close()
        await served.until(lambda: served.node.core.catalog.find("t") is not None)
        assert partitions_of(served) == PARTITIONS
        await served.check_works()


async def test_a_refused_topic_holds_nothing_up() -> None:
    async with serving() as served:
        peer = await served.greeted()
        bad = CreateTopic("t", {"partitions": PARTITIONS, "cleanup": "nothing"})
        await peer.send(request(FrameKind.CREATE_TOPIC, bad, 5))
        assert (await peer.expect(FrameKind.ERROR)).failure.code == "invalid_argument"
        assert (await peer.ask(FrameKind.OPEN_TOPIC, OpenTopic("u"))).kind is FrameKind.OK


async def test_a_topic_that_grows_twice_at_a_time_has_the_larger_number() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        await peer.send(
            request(FrameKind.GROW_TOPIC, GrowTopic("t", PARTITIONS), 5)
            + request(FrameKind.GROW_TOPIC, GrowTopic("t", PARTITIONS + 20), 6)
        )
        frames = [await peer.expect(FrameKind.OK), await peer.expect(FrameKind.OK)]
        assert {got.request for got in frames} == {5, 6}
        topic = served.node.core.catalog.get("t")
        owners = [partition.log.owner for partition in topic.partitions]
        assert owners == [(topic.number, index) for index in range(PARTITIONS + 20)]


async def test_a_topic_that_is_deleted_while_it_grows_stays_deleted() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        await peer.send(
            request(FrameKind.GROW_TOPIC, GrowTopic("t", PARTITIONS), 5)
            + request(FrameKind.DELETE_TOPIC, NamedTopic("t"), 6)
        )
        frames = [await peer.frame(), await peer.frame()]
        answers = {got.request: got for got in frames if got is not None}
        assert answers[6].kind is FrameKind.OK
        assert answers[5].failure.code == "topic_deleted"
        assert served.node.core.catalog.find("t") is None
