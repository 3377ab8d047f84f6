"""Growing a topic, over a socket: the answer, and who else hears of it."""

from __future__ import annotations

from pathlib import Path

import fanlog
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.model import Start
from tests.listeners.peers import Peer, one_message, serving


async def heard(peer: Peer) -> list[messages.Grew]:
    frames = await peer.frames_until_pong()
    return [got.read(messages.Grew) for got in frames if got.kind is FrameKind.GREW]


async def test_those_who_have_opened_topics_hear_of_it_and_others_do_not(data: Path) -> None:
    async with serving(data) as served:
        operator, publisher, other = [await served.greeted() for _ in range(3)]
        number = await operator.open_topic("t", durability="os")
        opened = await publisher.ask(FrameKind.OPEN_TOPIC, messages.OpenTopic("t"))
        assert opened.read(messages.TopicOpened).settings.partitions == 1
        answer = await operator.ask(FrameKind.GROW_TOPIC, messages.GrowTopic("t", 3))
        assert len(answer.read(fanlog.TopicInfo).partitions) == 3
        assert await heard(publisher) == [messages.Grew(number, 3)]
        assert await heard(operator) == await heard(other) == []
        again = await operator.ask(FrameKind.GROW_TOPIC, messages.GrowTopic("t", 3))
        assert len(again.read(fanlog.TopicInfo).partitions) == 3
        assert await heard(publisher) == []
        assert (await publisher.publish(one_message(number, partition=2))).partition == 2


async def test_who_is_gone_is_not_told(data: Path) -> None:
    async with serving(data) as served:
        operator, publisher = await served.greeted(), await served.greeted()
        await publisher.ask(FrameKind.OPEN_TOPIC, messages.OpenTopic("t"))
        publisher.close()
        while served.node.core.connections > 1:
            await operator.ask(FrameKind.PING)
        assert served.node.core.openers == {}
        await operator.ask(FrameKind.GROW_TOPIC, messages.GrowTopic("t", 3))


async def test_a_batch_of_a_new_partition_comes_behind_the_frame_that_names_it(
    data: Path,
) -> None:
    async with serving(data) as served:
        operator, reader = await served.greeted(), await served.greeted()
        number = await operator.open_topic("t", durability="os")
        wanted = messages.Subscribe(target="t", start=Start("latest"))
        await reader.ask(FrameKind.SUBSCRIBE, wanted, aux=7)
        await operator.ask(FrameKind.GROW_TOPIC, messages.GrowTopic("t", 2))
        await operator.publish(one_message(number, b"x", partition=1))
        frames = await reader.frames_until_pong()
        kinds = [got.kind for got in frames if got.kind is not FrameKind.FEED]
        assert kinds == [FrameKind.JOINED, FrameKind.BATCH]
        joined = frames[0].read(messages.Joined)
        assert joined.starts == (messages.PartitionOffset(1, 0),)


async def test_what_cant_grow_is_an_error_and_the_connection_goes_on(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        await peer.open_topic("t", partitions=2)
        for name, partitions, code in (
            ("t", 1, "invalid_argument"),
            ("t", 4097, "invalid_argument"),
            ("u", 2, "topic_not_found"),
            ("_fanlog.cursors", 2, "invalid_name"),
        ):
            wanted = messages.GrowTopic(name, partitions)
            assert (await peer.ask(FrameKind.GROW_TOPIC, wanted)).failure.code == code
        assert (await peer.ask(FrameKind.PING)).kind is FrameKind.PONG
