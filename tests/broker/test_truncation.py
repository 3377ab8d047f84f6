"""Deleting the records of many partitions: in slices, and followers of the topic hear once."""

from __future__ import annotations

import asyncio

import pytest

from fanlog.broker.lifecycle.truncation import delete_in_slices
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.slices import SLICE_US
from fanlog.errors import LogFailedError, TopicDeletedError
from fanlog.format.messages import PartitionOffset
from fanlog.log.partition import PartitionLog
from tests.broker.stage import HandRuntime, Stage, stage

PARTITIONS = 400
A_SLICE = 4


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a part of a slice later than the one before."""

    def work_us(runtime: HandRuntime) -> int:
        runtime.time_us += SLICE_US // A_SLICE
        return runtime.monotonic_us()

    monkeypatch.setattr(HandRuntime, "work_us", work_us)


def filled(on: Stage) -> list[BrokerTopic]:
    """A topic with a record in each partition; where it is noted that it was truncated."""
    on.core.create_topic("t", {"partitions": PARTITIONS})
    for partition in range(PARTITIONS):
        on.publish("t", [b"x"], partition=partition)
    on.run()
    heard: list[BrokerTopic] = []
    on.core.events.subscribe(truncated=heard.append)
    return heard


def starts(on: Stage) -> list[int]:
    return [partition.log.start_offset for partition in on.core.catalog.get("t").partitions]


def deleting(on: Stage) -> asyncio.Task[list[PartitionOffset]]:
    checked = on.core.check_deletion("t", dict.fromkeys(range(PARTITIONS), 1))
    return asyncio.ensure_future(delete_in_slices(on.core, checked))


async def turn(on: Stage) -> None:
    """One turn of the loop, with the one call that is due."""
    for _ in range(3):
        await asyncio.sleep(0)
    if on.runtime.due:
        on.runtime.due.popleft()()


@pytest.mark.usefixtures("slow_clock")
async def test_records_of_many_partitions_are_deleted_a_slice_at_a_time() -> None:
    with stage() as on:
        filled(on)
        task = deleting(on)
        steps: list[int] = []
        while not task.done():
            before = sum(starts(on))
            await turn(on)
            steps.append(sum(starts(on)) - before)
        assert await task == [PartitionOffset(index, 1) for index in range(PARTITIONS)]
        assert 0 < max(steps) <= A_SLICE
        assert sum(steps) == PARTITIONS


async def test_followers_of_a_topic_hear_once_that_many_partitions_were_truncated() -> None:
    with stage() as on:
        heard = filled(on)
        await deleting(on)
        assert [topic.name for topic in heard] == ["t"]
        assert starts(on) == [1] * PARTITIONS


async def test_they_also_hear_of_it_if_a_later_partition_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stage() as on:
        heard = filled(on)
        last = on.core.catalog.get("t").partitions[-1].log
        end = PartitionLog.end_deletion

        def end_deletion(log: PartitionLog, offset: int) -> int:
            if log is last:
                raise LogFailedError("the disk is gone")
            return end(log, offset)

        monkeypatch.setattr(PartitionLog, "end_deletion", end_deletion)
        with pytest.raises(LogFailedError):
            await deleting(on)
        assert len(heard) == 1
        assert starts(on) == [1] * (PARTITIONS - 1) + [0]


@pytest.mark.usefixtures("slow_clock")
async def test_a_topic_that_is_deleted_meanwhile_ends_the_deletion_of_its_records() -> None:
    with stage() as on:
        heard = filled(on)
        task = deleting(on)
        await turn(on)
        on.core.delete_topic("t")
        while not task.done():
            await turn(on)
        with pytest.raises(TopicDeletedError):
            await task
        assert not heard
