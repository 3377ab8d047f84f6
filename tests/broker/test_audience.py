"""The audience of a partition: cursors and wakes in one registry."""

from __future__ import annotations

import asyncio

from fanlog.broker.messages.audience import PartitionAudience
from fanlog.broker.messages.topics import BrokerSubscription, Cursor, Partition
from fanlog.broker.messages.wire_forms import Values
from fanlog.model import Start
from tests.broker.stage import Peer, Stage, stage


class Lines:
    """A view with a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def render(self, values: Values) -> bytes:
        return b"".join(value or b"" for value in values)


def partition_of(on: Stage) -> Partition:
    return on.core.open_topic("t", create=True).partitions[0]


def cursor_of(on: Stage, view: Lines | None = None) -> Cursor:
    peer = Peer()
    subscription = BrokerSubscription(1, on.core.subscriptions, peer, peer, "t")
    cursor = Cursor(subscription, partition_of(on), 0)
    cursor.view = view
    return cursor


def test_a_partition_that_nobody_follows_has_no_registry() -> None:
    with stage() as on:
        on.publish("t", [b"a"])
        on.run()
        assert partition_of(on).audience is None


def test_views_are_in_the_order_of_their_ranks_whenever_they_join() -> None:
    with stage() as on:
        audience: PartitionAudience[Cursor] = PartitionAudience()
        cursors = [cursor_of(on, Lines(rank)) for rank in (2, 3, 1, 2)]
        for cursor in cursors:
            audience.join(cursor)
        assert [view.rank for view in audience.viewed] == [1, 2, 2, 3]
        assert audience.count() == len(list(audience.cursors())) == 4
        for cursor in cursors:
            audience.leave(cursor)
        assert not audience.viewed
        assert not any(cursor.live for cursor in cursors)


def test_a_cursor_that_left_may_leave_again() -> None:
    with stage() as on:
        audience: PartitionAudience[Cursor] = PartitionAudience()
        for cursor in (cursor_of(on), cursor_of(on, Lines(1))):
            audience.join(cursor)
            audience.leave(cursor)
            audience.leave(cursor)
        assert audience.count() == 0


def test_a_wake_is_called_once_and_may_register_again() -> None:
    with stage() as on:
        partition, calls = partition_of(on), []

        def wake() -> None:
            calls.append(partition.visible_end)
            if len(calls) == 1:
                on.core.reading.when_more(partition, wake)

        on.core.reading.when_more(partition, wake)
        on.core.reading.when_more(partition, wake)
        for _ in range(3):
            on.publish("t", [b"a"])
            on.run()
        assert calls == [1, 2]


def test_a_wake_that_was_cancelled_is_not_called() -> None:
    with stage() as on:
        partition, calls = partition_of(on), []

        def wake() -> None:
            calls.append(1)

        on.core.reading.no_more(partition, wake)
        on.core.reading.when_more(partition, wake)
        on.core.reading.no_more(partition, wake)
        on.publish("t", [b"a"])
        on.run()
        assert calls == []


async def test_readers_get_a_piece_before_wakes_are_called() -> None:
    with stage() as on:
        partition, seen = partition_of(on), []
        peer = await on.subscribe("t", start=Start("latest"))
        on.core.reading.when_more(partition, lambda: seen.append(peer.offsets))
        on.publish("t", [b"a"])
        on.run()
        assert seen == [[0]]


async def test_who_waits_for_an_offset_goes_on_there_and_leaves_nothing_behind() -> None:
    with stage() as on:
        partition = partition_of(on)
        waiting = asyncio.ensure_future(on.core.reading.until_visible(partition, 2))
        for count in (1, 2):
            await asyncio.sleep(0)
            assert not waiting.done()
            on.publish("t", [b"a"])
            on.run()
            assert partition.visible_end == count
            await asyncio.sleep(0)
        await waiting
        assert partition.audience is not None
        assert not partition.audience.wakes


async def test_who_waits_for_an_offset_hears_that_the_topic_goes() -> None:
    with stage() as on:
        partition = partition_of(on)
        waiting = asyncio.ensure_future(on.core.reading.until_visible(partition, 2))
        await asyncio.sleep(0)
        on.core.delete_topic("t")
        await waiting
        assert partition.topic.deleted
