"""Answers about very many partitions: they are collected in slices, and others have their turns."""

from __future__ import annotations

import pytest

from fanlog.broker.slices import Slices
from fanlog.format import long_messages
from fanlog.format.frames import FrameKind, frame
from fanlog.format.messages import CreateTopic, GrowTopic, NamedGroup, NamedTopic, ResetGroup
from fanlog.listeners import topic_requests
from fanlog.model import GroupInfo, Start, TopicInfo
from tests.listeners.peers import Peer, request, serving

PARTITIONS = 40
DESCRIBE = request(FrameKind.DESCRIBE_TOPIC, NamedTopic("t"), 5)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is one step."""
    monkeypatch.setattr("fanlog.broker.slices.SLICE_US", 0)
    monkeypatch.setattr(long_messages, "_ITEMS_A_STEP", 4)
    monkeypatch.setattr(topic_requests, "_PARTITIONS_AT_ONCE", 4)


async def created(peer: Peer, partitions: int = PARTITIONS) -> TopicInfo:
    answer = await peer.ask(FrameKind.CREATE_TOPIC, CreateTopic("t", {"partitions": partitions}))
    return answer.read(TopicInfo)


async def test_a_topic_is_described_as_it_is() -> None:
    async with serving() as served:
        peer = await served.greeted()
        made = await created(peer)
        assert made == served.node.core.describe("t")
        assert [p.partition for p in made.partitions] == list(range(PARTITIONS))
        assert (await peer.ask(FrameKind.DESCRIBE_TOPIC, NamedTopic("t"))).read(TopicInfo) == made
        grown = await peer.ask(FrameKind.GROW_TOPIC, GrowTopic("t", PARTITIONS + 1))
        assert len(grown.read(TopicInfo).partitions) == PARTITIONS + 1


async def test_a_group_is_described_as_it_is() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await created(peer)
        wanted = ResetGroup(group="g", topic="t", start=Start("earliest"))
        answer = await peer.ask(FrameKind.RESET_GROUP, wanted)
        assert len(answer.read(list)) == PARTITIONS
        got = (await peer.ask(FrameKind.DESCRIBE_GROUP, NamedGroup("g"))).read(GroupInfo)
        assert got == await served.node.core.groups.describe("g")
        assert len(got.partitions) == PARTITIONS


async def test_other_requests_are_answered_while_one_is_collected() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await created(peer)
        await peer.send(DESCRIBE + frame(FrameKind.PING, b"", request=6))
        assert (await peer.expect(FrameKind.PONG)).request == 6
        assert (await peer.expect(FrameKind.OK)).request == 5


async def test_a_topic_that_is_deleted_meanwhile_is_not_described() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await created(peer)
        await peer.send(DESCRIBE + request(FrameKind.DELETE_TOPIC, NamedTopic("t"), 6))
        frames = [await peer.frame(), await peer.frame()]
        kinds = {got.request: got for got in frames if got is not None}
        assert kinds[6].kind is FrameKind.OK
        assert kinds[5].failure.code == "topic_deleted"


async def test_a_peer_that_is_gone_meanwhile_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0
    later = Slices.later

    def counted(slices: Slices, resume: object) -> None:
        nonlocal steps
        steps += 1
        later(slices, resume)  # type: ignore[arg-type]

    async with serving() as served:
        peer = await served.greeted()
        await created(peer)
        monkeypatch.setattr(Slices, "later", counted)
        await peer.send(DESCRIBE)
        peer.close()
        other = await served.greeted()
        assert (await other.ask(FrameKind.DESCRIBE_TOPIC, NamedTopic("t"))).kind is FrameKind.OK
        assert steps >= PARTITIONS // 4
