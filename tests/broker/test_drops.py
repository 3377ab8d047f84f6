"""What readers missed is in a topic of its own, `_fanlog.drops`: who, where, how much and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanlog.broker.messages.drop_notes import DROPS_TOPIC, Drop, DropKind
from fanlog.broker.messages.following import follow
from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.config import BrokerOptions
from fanlog.errors import InvalidNameError, TopicNotFoundError
from fanlog.format.batch import encode_batch
from fanlog.format.checksum import crc32c
from fanlog.format.messages import Position, Subscribe
from fanlog.model import KIB, GapReason, SlowPolicy, Start
from tests.broker.groups.members import Member
from tests.broker.queues.workers import hire, later
from tests.broker.stage import BEGIN_US, Peer, Publisher, Stage, no_room, stage
from tests.broker.test_faults import damage, published
from tests.broker.test_slow_readers import SMALL, publish
from tests.broker.test_views import Lines

SECOND_US = 1_000_000


class Caller(Peer):
    """A peer with an address."""

    def __init__(self, peer: str = "192.0.2.7:4000") -> None:
        super().__init__()
        self.peer = peer


async def join(on: Stage, peer: Peer, topic: str = "t", **wanted: Any) -> Peer:
    """A reader that says what it is called."""
    asked = Subscribe(target=topic, **wanted)
    subscription, _ = await on.core.subscriptions.add(1, asked, peer, peer, "dashboard")
    on.core.subscriptions.start(subscription)
    peer.feed = subscription
    return peer


def miss(on: Stage, reader: Peer, batches: int = 30, topic: str = "t") -> None:
    """The reader takes next to nothing while so much is published, and then goes on."""
    reader.room = 100
    publish(on, batches, topic)
    reader.drain(on.core)
    on.run()


def written(on: Stage) -> list[Drop]:
    """All that was written down."""
    if on.core.catalog.find(DROPS_TOPIC) is None:
        return []
    return [msgspec.json.decode(value or b"", type=Drop) for value in on.values(DROPS_TOPIC)]


def after(on: Stage, seconds: float = 1.0) -> list[Drop]:
    """All that was written down when so much time has passed."""
    on.runtime.time_us += int(seconds * SECOND_US)
    on.core.tick()
    on.run()
    return written(on)


async def test_what_a_reader_skipped_is_written_down_with_who_it_is(data: Path) -> None:
    with stage(data, **SMALL) as on:
        on.core.open_topic("t", create=True)
        publish(on, 5)
        reader = await join(on, Caller(), policy=SlowPolicy.SKIP, durable="wall")
        publish(on, 2)
        miss(on, reader)
        assert after(on) == [
            Drop(
                kind=GapReason.SKIPPED,
                topic="t",
                partition=0,
                first=8,
                next=37,
                records=29,
                times=1,
                since_us=BEGIN_US,
                until_us=BEGIN_US,
                begin=5,
                end=37,
                client="dashboard",
                peer="192.0.2.7:4000",
                durable="wall",
            )
        ]
        (batch,) = on.fetch(DROPS_TOPIC, 0)
        assert list(batch.keys) == [b"t"]
        (raw,) = batch.values
        assert b"group" not in (raw or b"")


async def test_what_was_noted_is_there_after_a_restart(data: Path) -> None:
    with stage(data, **SMALL) as on:
        miss(on, await on.subscribe("t", policy=SlowPolicy.SKIP))
        before = after(on)
    with stage(data, **SMALL) as on:
        assert written(on) == before
        assert len(before) == 1


async def test_misses_of_one_reader_in_a_second_are_one_record(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        other = await on.subscribe("t", policy=SlowPolicy.SKIP)
        for _ in range(3):
            on.runtime.time_us += 1000
            other.room = 100
            miss(on, reader)
        other.drain(on.core)
        on.core.tick()
        on.run()
        mine, others = written(on)
        assert (mine.times, mine.first, mine.next, mine.records) == (3, 1, 90, 87)
        assert (mine.since_us, mine.until_us) == (BEGIN_US + 1000, BEGIN_US + 3000)
        assert (others.times, others.records) == (1, 89)
        assert len(on.fetch(DROPS_TOPIC, 0)) == 1


async def test_it_is_written_once_a_second_at_most(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        miss(on, reader)
        assert len(after(on, 0)) == 1
        miss(on, reader)
        miss(on, reader)
        assert len(after(on, 0.9)) == 1
        assert [drop.times for drop in after(on, 0.1)] == [1, 2]
        assert len(after(on, 5)) == 2


async def test_past_the_bound_one_record_says_how_many_more_there_were(data: Path) -> None:
    with stage(data, options=BrokerOptions(drops_pending_max=2), **SMALL) as on:
        readers = [await on.subscribe("t", policy=SlowPolicy.SKIP) for _ in range(5)]
        for reader in readers:
            reader.room = 100
        publish(on, 30)
        for reader in readers:
            reader.drain(on.core)
        miss(on, readers[0])
        first, second, more = after(on)
        assert (first.times, second.times) == (2, 1)
        assert (more.kind, more.topic, more.times, more.records) == (DropKind.MORE, "", 3, 3 * 29)
        miss(on, readers[4])
        assert [drop.kind for drop in after(on)][3:] == [GapReason.SKIPPED]


async def test_a_reader_that_is_cut_off_is_written_down_and_has_missed_nothing(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.DISCONNECT)
        reader.room = 100
        publish(on, 30)
        on.core.fan_out.sweep()
        (drop,) = after(on)
        assert (drop.kind, drop.first, drop.next) == (DropKind.DISCONNECTED, 1, 30)
        assert (drop.records, drop.times) == (0, 1)


async def test_what_retention_took_from_a_reader_is_written_down(data: Path) -> None:
    with stage(data, retention_seconds=60, **SMALL) as on:
        reader = await on.subscribe("t")
        reader.room = 100
        publish(on, 200)
        on.runtime.time_us += 3600 * SECOND_US
        on.core.housekeeping()
        publish(on, 2)
        start = on.core.describe("t").partitions[0].start_offset
        reader.drain(on.core)
        on.run()
        (drop,) = after(on)
        assert (drop.kind, drop.first, drop.next) == (GapReason.RETENTION, 1, start)
        assert drop.records == start - 1


async def test_damage_on_disk_is_written_down_for_each_reader(data: Path) -> None:
    published(data)
    damage(data, b"record 123 ")
    with stage(data, segment_bytes=64 * KIB) as on:
        for _ in range(2):
            await on.subscribe("t")
            on.run()
        drops = after(on)
        assert [(drop.kind, drop.first, drop.next) for drop in drops] == [
            (GapReason.DAMAGED, 123, 124)
        ] * 2


async def test_a_place_in_a_log_that_began_anew_is_written_down(data: Path) -> None:
    with stage(data, durability="memory") as on:
        publish(on, 3)
        resume = (Position("t", 0, 900, on.core.epoch - 1),)
        await on.subscribe("t", resume=resume)
        (drop,) = after(on)
        assert (drop.kind, drop.first, drop.next, drop.records) == (GapReason.RESET, 900, 0, 0)


def test_a_batch_that_a_view_can_not_show_is_written_down_without_a_reader(data: Path) -> None:
    with stage(data) as on:
        peer, topic = Peer(), on.core.open_topic("t", create=True)
        subscription = BrokerSubscription(0, on.core.subscriptions, peer, peer, "t")
        follow(on.core.fan_out, subscription, topic, Lines())
        sound = encode_batch([b"a", b"b"], topic=topic.number)
        body = sound[56:64] + b"\xff" * (len(sound) - 64)
        broken = sound[:52] + crc32c(body).to_bytes(4, "little") + body
        on.core.take(broken, 0, Publisher())
        on.run()
        (drop,) = after(on)
        assert (drop.kind, drop.first, drop.next) == (DropKind.UNREADABLE, 0, 2)
        assert (drop.records, drop.client, drop.peer) == (2, "", "")


async def test_a_reader_in_a_view_is_written_down_like_any_other(data: Path) -> None:
    with stage(data, **SMALL) as on:
        peer, topic = Caller("192.0.2.8:77"), on.core.open_topic("t", create=True)
        subscription = BrokerSubscription(
            0, on.core.subscriptions, peer, peer, "t", policy=SlowPolicy.SKIP
        )
        follow(on.core.fan_out, subscription, topic, Lines())
        miss(on, peer)
        (drop,) = after(on)
        assert (drop.kind, drop.peer, drop.records) == (GapReason.SKIPPED, "192.0.2.8:77", 29)


async def test_a_member_of_a_group_is_written_down_with_its_group(data: Path) -> None:
    with stage(data, retention_seconds=60, **SMALL) as on:
        on.core.open_topic("t", create=True)
        member = Member(on, "a")
        member.join()
        on.run()
        member.room = 100
        publish(on, 200)
        on.runtime.time_us += 3600 * SECOND_US
        on.core.housekeeping()
        member.drain(on.core)
        on.run()
        (drop,) = after(on)
        assert (drop.kind, drop.group, drop.durable) == (GapReason.RETENTION, "g", "")


def test_jobs_that_retention_took_from_a_queue_are_written_down_with_its_name(data: Path) -> None:
    with stage(data, durability="memory", retention_seconds=10) as on:
        publish(on, 10)
        ann = hire(on, prefetch=2)
        assert ann.offsets_taken() == [0, 1]
        on.runtime.time_us += 11 * SECOND_US
        publish(on, 3)
        on.core.housekeeping()
        later(on, 60)
        (drop,) = after(on)
        assert (drop.kind, drop.queue) == (GapReason.RETENTION, "q")
        assert (drop.first, drop.next, drop.records, drop.begin) == (0, 10, 10, None)


# Who reads it


async def test_it_is_read_like_any_topic_and_its_own_readers_are_not_noted(data: Path) -> None:
    with stage(data, **SMALL) as on:
        # Before there is one, and from the end: it comes when it is written.
        live = await on.subscribe(DROPS_TOPIC, start=Start("latest"))
        slow = await on.subscribe(DROPS_TOPIC, start=Start("latest"), policy=SlowPolicy.SKIP)
        slow.room = 0
        woken: list[bool] = []
        partition = on.core.catalog.get(DROPS_TOPIC).partitions[0]
        on.core.reading.when_more(partition, lambda: woken.append(True))
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        miss(on, reader)
        assert len(after(on)) == 1
        assert (live.offsets, woken) == ([0], [True])
        partition.log.tail.drop_before(1)
        partition.log.drop_before(1)
        for _ in range(3):
            miss(on, reader)
            after(on)
        partition.log.tail.drop_before(3)
        slow.drain(on.core)
        on.run()
        assert on.counters(DROPS_TOPIC)["skips"] == 1
        assert live.offsets == [0, 1, 2, 3]
        after(on)
        assert partition.visible_end == 4


async def test_nobody_else_writes_or_deletes_it(data: Path) -> None:
    with stage(data, **SMALL) as on:
        miss(on, await on.subscribe("t", policy=SlowPolicy.SKIP))
        after(on)
        by = on.publish(DROPS_TOPIC, [b"rubbish"])
        on.run()
        assert [type(error) for _, _, error in by.refusals] == [TopicNotFoundError]
        with pytest.raises(InvalidNameError):
            on.core.delete_topic(DROPS_TOPIC)
        with pytest.raises(InvalidNameError):
            on.core.create_topic(DROPS_TOPIC, {})
        assert len(written(on)) == 1


async def test_patterns_do_not_find_it(data: Path) -> None:
    with stage(data, **SMALL) as on:
        everything = await on.subscribe(">")
        miss(on, await on.subscribe("t", policy=SlowPolicy.SKIP))
        assert len(after(on)) == 1
        number = on.core.catalog.get(DROPS_TOPIC).number
        assert number not in {batch.header.topic for batch in everything.batches}


# Where it is kept


async def test_a_broker_without_a_folder_only_counts() -> None:
    with stage(**SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        miss(on, reader)
        assert after(on) == []
        on.core.close()
        assert on.counters("t") == {"skips": 1, "skipped_records": 29}
        assert len(on.core.drop_notes) == 0
        with pytest.raises(TopicNotFoundError):
            await on.subscribe(DROPS_TOPIC)


async def test_nothing_is_made_as_long_as_nobody_misses_anything(data: Path) -> None:
    with stage(data) as on:
        await on.subscribe("t")
        publish(on, 3)
        after(on)
        on.core.close()
        assert on.core.catalog.find(DROPS_TOPIC) is None


async def test_it_keeps_as_much_and_as_long_as_the_options_say(data: Path) -> None:
    options = BrokerOptions(drops_retention_seconds=60, drops_retention_bytes=64 * KIB)
    with stage(data, options=options, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        miss(on, reader)
        after(on)
        settings = on.core.catalog.get(DROPS_TOPIC).settings
        assert (settings.retention_seconds, settings.retention_bytes) == (60, 64 * KIB)
        assert settings.durability == "os"
        on.runtime.time_us += 3600 * SECOND_US
        on.core.housekeeping()
        miss(on, reader)
        assert len(after(on)) == 1


async def test_what_is_noted_last_is_written_at_the_end(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        miss(on, reader)
        after(on, 0)
        miss(on, reader)
        on.core.close()
    with stage(data, **SMALL) as on:
        assert len(written(on)) == 2


async def test_a_full_disk_loses_no_note(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(data, durability="memory", **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        miss(on, reader)
        assert len(after(on)) == 1
        miss(on, reader)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_room)
            assert len(after(on)) == 1
            miss(on, reader)
            assert len(after(on)) == 1
        assert [drop.times for drop in after(on)] == [1, 2]


async def test_names_that_are_no_text_can_be_written_too(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t\udcff", policy=SlowPolicy.SKIP)
        miss(on, reader, topic="t\udcff")
        assert [drop.topic for drop in after(on)] == ["t?"]
