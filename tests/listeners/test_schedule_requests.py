"""Delayed messages and schedules as a peer asks for them, and as a bad one does."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind
from fanlog.format.messages import (
    AddSchedule,
    Cancelled,
    CancelScheduled,
    ListScheduled,
    ListSchedules,
    OpenTopic,
    Refused,
    RemoveSchedule,
    ScheduledPage,
    SchedulePage,
    ScheduleRemoved,
    TopicOpened,
)
from fanlog.format.schedules import (
    RUN_PREFIX,
    SCHEDULED_TOPIC,
    Delayed,
    Repeat,
    encode_delayed,
    record_key,
)
from tests.listeners.peers import Peer, serving
from tests.listeners.test_requests import expect_error

FAR_US = (int(time.time()) + 3600) * 1_000_000
MESSAGE = encode_delayed(Delayed("t", b"x"))


async def scheduled_number(peer: Peer) -> int:
    answer = await peer.ask(FrameKind.OPEN_TOPIC, OpenTopic(SCHEDULED_TOPIC))
    return answer.read(TopicOpened).number


async def page(peer: Peer, after: str = "", count: int = 500) -> ScheduledPage:
    wanted = ListScheduled(after=after, count=count)
    return (await peer.ask(FrameKind.LIST_SCHEDULED, wanted)).read(ScheduledPage)


async def test_a_message_that_is_sent_again_after_a_lost_connection_waits_once(
    data: Path,
) -> None:
    async with serving(data) as served:
        one, two = await served.greeted(), await served.greeted()
        batch = encode_batch(
            [MESSAGE],
            keys=[record_key(1, "a")],
            event_times_us=[FAR_US],
            topic=await scheduled_number(one),
            producer_id=7,
        )
        first = await one.publish(batch)
        again = await two.publish(batch)
        assert (again.base_offset, again.duplicate) == (first.base_offset, 1)
        assert (await page(two)).total == 1
        for answer in (True, False):
            asked = await two.ask(FrameKind.CANCEL_SCHEDULED, CancelScheduled(("a",)))
            assert asked.read(Cancelled) == Cancelled((answer,))
        # Repeated once more, it is still the one that was cancelled.
        await one.publish(batch)
        assert (await page(one)).total == 0


async def test_a_listing_goes_on_page_by_page(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        assert await page(peer) == ScheduledPage(())
        number = await scheduled_number(peer)
        batch = encode_batch(
            [MESSAGE] * 25,
            keys=[record_key(i, f"{i}") for i in range(25)],
            event_times_us=[FAR_US - i for i in range(25)],
            topic=number,
        )
        await peer.publish(batch)
        found: list[str] = []
        after = ""
        while True:
            some = await page(peer, after, 10)
            found += [message.id for message in some.messages]
            assert some.total == 25
            after = some.next
            if not after:
                break
        assert found == [f"{24 - i}" for i in range(25)]
        for wrong in ("x", "1.2", "1.2.3.4.5.6", "999.1.1.1.1"):
            wanted = ListScheduled(after=wrong)
            await expect_error(peer, FrameKind.LIST_SCHEDULED, wanted, "invalid_argument")


@pytest.mark.parametrize(
    ("key", "value", "time_us"),
    [
        (b"", MESSAGE, FAR_US),
        (b"12345678", MESSAGE, FAR_US),
        (b"12345678\xff", MESSAGE, FAR_US),
        (b"12345678" + b"x" * 256, MESSAGE, FAR_US),
        (b"12345678" + RUN_PREFIX.encode() + b"mine", MESSAGE, FAR_US),
        (b"12345678a", None, FAR_US),
        (b"12345678a", b"", FAR_US),
        (b"12345678a", b"\xc1\xff", FAR_US),
        (b"12345678a", MESSAGE, (1 << 63) - 1),
        (b"12345678a", MESSAGE, -(1 << 62)),
        (b"12345678a", encode_delayed(Delayed("_fanlog.cursors", b"x")), FAR_US),
        (b"12345678a", encode_delayed(Delayed("a.*", b"x")), FAR_US),
        (b"12345678a", encode_delayed(Delayed("t", b"x", partition=-7)), FAR_US),
        (b"12345678a", encode_delayed(Delayed("t", b"x", repeat=Repeat("* * * * *"))), FAR_US),
    ],
    # Names that do not depend on the time, so that all processes find the same tests.
    ids=itertools.count(1),
)
async def test_a_record_that_is_no_delayed_message_is_refused(
    data: Path, key: bytes, value: bytes | None, time_us: int
) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await scheduled_number(peer)
        await peer.send(encode_batch([value], keys=[key], event_times_us=[time_us], topic=number))
        refused = (await peer.expect(FrameKind.REFUSED)).read(Refused)
        assert refused.code in ("invalid_argument", "invalid_name", "bad_format")
        assert (await page(peer)).total == 0
        await served.check_works()


async def test_a_request_for_too_many_or_for_no_schedule_is_answered(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        many = CancelScheduled(tuple(map(str, range(10_001))))
        await expect_error(peer, FrameKind.CANCEL_SCHEDULED, many, "limit")
        none = await peer.ask(FrameKind.CANCEL_SCHEDULED, CancelScheduled(()))
        assert none.read(Cancelled) == Cancelled(())
        removed = await peer.ask(FrameKind.REMOVE_SCHEDULE, RemoveSchedule("x"))
        assert removed.read(ScheduleRemoved) == ScheduleRemoved(False)
        listed = await peer.ask(FrameKind.LIST_SCHEDULES, ListSchedules())
        assert listed.read(SchedulePage) == SchedulePage(())
        for name in ("", "x" * 300, "a\nb"):
            wanted = AddSchedule(name=name, topic="t", value=b"x", every_seconds=60.0)
            await expect_error(peer, FrameKind.ADD_SCHEDULE, wanted, "invalid_argument")
        for every in (float("nan"), float("inf"), 1e300, -5.0):
            wanted = AddSchedule(name="n", topic="t", value=b"x", every_seconds=every)
            await expect_error(peer, FrameKind.ADD_SCHEDULE, wanted, "invalid_argument")
