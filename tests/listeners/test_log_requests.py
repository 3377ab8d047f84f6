"""Requests about a topic's log, over a socket."""

from __future__ import annotations

from pathlib import Path

from fanlog.format.frames import FrameKind, frame
from fanlog.format.messages import DeleteRecords, PartitionOffset, Positions
from tests.listeners.peers import one_message, request, serving


async def test_deleting_records_of_many_partitions_leaves_others_their_turns(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="os", partitions=3)
        for partition in range(3):
            await peer.publish(one_message(number, partition=partition))
        wanted = DeleteRecords("t", tuple(PartitionOffset(p, 1) for p in range(3)))
        asked = request(FrameKind.DELETE_RECORDS, wanted, 5)
        await peer.send(asked + frame(FrameKind.PING, request=6))
        await peer.expect(FrameKind.PONG)
        answer = (await peer.expect(FrameKind.OK)).read(Positions)
        assert [(p.partition, p.offset) for p in answer.positions] == [(0, 1), (1, 1), (2, 1)]


async def test_a_deletion_that_is_wrong_for_one_partition_deletes_nothing(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="os", partitions=2)
        await peer.publish(one_message(number))
        wanted = DeleteRecords("t", (PartitionOffset(0, 1), PartitionOffset(1, 1)))
        answer = await peer.ask(FrameKind.DELETE_RECORDS, wanted)
        assert answer.failure.code == "offset_out_of_range"
        assert (await peer.fetch(number)).start_offset == 0


async def test_deletions_at_the_same_time_leave_the_later_start(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="os")
        for _ in range(9):
            await peer.publish(one_message(number))
        frames = [
            request(FrameKind.DELETE_RECORDS, DeleteRecords("t", (PartitionOffset(0, offset),)), 5)
            for offset in (3, 8, 5)
        ]
        await peer.send(b"".join(frames))
        starts = [(await peer.expect(FrameKind.OK)).read(Positions) for _ in frames]
        assert [start.positions[0].offset for start in starts] == [3, 8, 8]
        assert (await peer.fetch(number, offset=8)).start_offset == 8
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        assert (await peer.fetch(number, offset=8)).start_offset == 8
