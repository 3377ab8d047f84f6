"""Readers that can't keep up: each policy does what it says, is counted, and costs nobody else
anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanlog.config import LogOptions
from fanlog.errors import OffsetOutOfRangeError, SlowReaderError
from fanlog.model import KIB, Gap, GapReason, SlowPolicy, Start
from tests.broker.stage import Peer, Stage, stage

# Three batches of a kilobyte or so fit into the tail.
SMALL: dict[str, Any] = {"tail_bytes": 4 * KIB, "segment_bytes": 64 * KIB}


def publish(on: Stage, count: int, topic: str = "t") -> None:
    """So many batches of one record, each a turn of its own."""
    for _ in range(count):
        on.publish(topic, [bytes(1000)])
        on.run()


async def test_a_blocked_reader_gets_what_it_missed_from_the_tail_and_is_live_again() -> None:
    with stage() as on:
        reader = await on.subscribe("t")
        publish(on, 2)
        reader.room = 300
        publish(on, 5)
        assert reader.blocked
        reader.drain(on.core)
        publish(on, 2)
        assert reader.offsets == list(range(9))
        assert (reader.gaps, on.counters("t")) == ([], {})


async def test_catch_up_reads_from_disk_what_the_tail_has_lost_and_becomes_live_again(
    data: Path,
) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.CATCH_UP)
        reader.room = 100
        publish(on, 30)
        assert len(reader.taken) == 100
        assert on.core.catalog.get("t").partitions[0].log.tail.start_offset > 20
        reader.drain(on.core)
        on.run()
        assert reader.offsets == list(range(30))
        assert on.counters("t") == {"catch_ups": 1}
        publish(on, 3)
        assert reader.offsets == list(range(33))
        reader.room = 100
        publish(on, 30)
        reader.drain(on.core)
        on.run()
        assert reader.offsets == list(range(63))
        assert (reader.gaps, on.counters("t")) == ([], {"catch_ups": 2})


async def test_a_reader_that_asked_for_history_is_not_counted_as_slow(data: Path) -> None:
    with stage(data, **SMALL) as on:
        publish(on, 30)
        for policy in SlowPolicy:
            reader = await on.subscribe("t", policy=policy)
            on.run()
            assert reader.offsets == list(range(30))
            assert (reader.gaps, reader.ended) == ([], None)
        assert on.counters("t") == {}


@pytest.mark.parametrize("in_memory", [True, False])
async def test_skip_names_the_offsets_that_will_not_come(data: Path, in_memory: bool) -> None:
    with stage(None if in_memory else data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        publish(on, 2)
        reader.room = 100
        publish(on, 30)
        reader.drain(on.core)
        on.run()
        assert reader.offsets == [0, 1, 2]
        assert reader.gaps == [Gap("t", 0, 3, 32, GapReason.SKIPPED)]
        assert on.counters("t") == {"skips": 1, "skipped_records": 29}
        publish(on, 2)
        assert reader.offsets == [0, 1, 2, 32, 33]


async def test_skip_skips_nothing_that_the_tail_still_has(data: Path) -> None:
    with stage(data, tail_bytes=64 * KIB) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.SKIP)
        reader.room = 100
        publish(on, 20)
        reader.drain(on.core)
        assert reader.offsets == list(range(20))
        assert (reader.gaps, on.counters("t")) == ([], {})


@pytest.mark.parametrize("in_memory", [True, False])
async def test_disconnect_turns_a_slow_reader_out_and_says_where_it_was(
    data: Path, in_memory: bool
) -> None:
    with stage(None if in_memory else data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.DISCONNECT)
        reader.room = 100
        publish(on, 2)
        on.core.fan_out.sweep()
        assert reader.ended is None
        publish(on, 30)
        on.core.fan_out.sweep()
        assert isinstance(reader.ended, SlowReaderError)
        assert "everything below offset 1" in str(reader.ended)
        assert on.counters("t") == {"disconnects": 1}


async def test_disconnect_is_noticed_when_the_reader_goes_on_before_the_sweep(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", policy=SlowPolicy.DISCONNECT)
        reader.room = 100
        publish(on, 30)
        reader.drain(on.core)
        on.run()
        assert isinstance(reader.ended, SlowReaderError)
        assert on.counters("t") == {"disconnects": 1}


async def test_a_full_window_holds_a_reader_back_until_it_is_moved(data: Path) -> None:
    with stage(data, **SMALL) as on:
        reader = await on.subscribe("t", window_bytes=2500)
        assert reader.feed is not None
        publish(on, 30)
        assert reader.offsets == [0, 1, 2]
        assert not reader.blocked
        on.core.fan_out.grant(reader.feed, 2500)
        on.run()
        assert reader.offsets == [0, 1, 2]
        for _ in range(50):
            on.core.fan_out.grant(reader.feed, reader.feed.sent_bytes + 1)
            on.run()
        publish(on, 1)
        assert reader.offsets[:30] == list(range(30))
        assert on.counters("t")["catch_ups"] >= 1


async def test_retention_that_overtakes_a_reader_is_an_explicit_gap(data: Path) -> None:
    with stage(data, retention_seconds=60, **SMALL) as on:
        reader = await on.subscribe("t")
        reader.room = 100
        publish(on, 200)
        on.runtime.time_us += 3600 * 1_000_000
        on.core.housekeeping()
        publish(on, 2)
        start = on.core.describe("t").partitions[0].start_offset
        assert start >= 200
        reader.drain(on.core)
        on.run()
        assert reader.gaps == [Gap("t", 0, 1, start, GapReason.RETENTION)]
        assert reader.offsets == [0, *range(start, 202)]
        assert on.counters("t")["lost_records"] == start - 1


async def test_a_memory_topic_that_forgets_tells_a_reader_that_catches_up() -> None:
    with stage(**SMALL) as on:
        reader = await on.subscribe("t")
        reader.room = 100
        publish(on, 30)
        start = on.core.describe("t").partitions[0].start_offset
        reader.drain(on.core)
        on.run()
        assert reader.gaps == [Gap("t", 0, 1, start, GapReason.RETENTION)]
        assert reader.offsets == [0, *range(start, 30)]
        with pytest.raises(OffsetOutOfRangeError, match="not kept"):
            on.fetch("t", 0)


async def test_a_stalled_reader_stops_nobody_else(data: Path) -> None:
    with stage(data, **SMALL) as on:
        readers = [await on.subscribe("t") for _ in range(10)]
        stalled = readers[::2]
        for reader in stalled:
            reader.room = 50
        publish(on, 40)
        for reader in readers:
            if reader in stalled:
                assert len(reader.taken) == 50
            else:
                assert reader.offsets == list(range(40))
        for reader in stalled:
            reader.drain(on.core)
        on.run()
        assert all(reader.offsets == list(range(40)) for reader in readers)


async def test_one_connection_may_have_a_stalled_and_a_reading_subscription(data: Path) -> None:
    with stage(data, **SMALL) as on:
        peer = Peer()
        await on.subscribe("a", peer, window_bytes=100)
        await on.subscribe("b", peer)
        publish(on, 5, "a")
        publish(on, 5, "b")
        numbers = [on.core.catalog.get(name).number for name in "ab"]
        got = [(batch.header.topic, batch.base_offset) for batch in peer.batches]
        assert got == [(numbers[0], 0), *((numbers[1], i) for i in range(5))]


async def test_a_reader_that_is_let_go_in_the_middle_of_a_piece_gets_the_rest_of_it() -> None:
    with stage() as on:
        reader = await on.subscribe("t")
        for room in range(1, 1000, 97):
            reader.room = room
            publish(on, 1)
            reader.drain(on.core)
        assert reader.offsets == list(range(11))


async def test_history_and_live_meet_without_loss_or_repeat_at_any_moment(data: Path) -> None:
    """One step of the broker's work at a time, with a new message before each."""
    with stage(data, **SMALL) as on:
        publish(on, 100)
        reader = await on.subscribe("t")
        published = 100
        while on.runtime.due and published < 200:
            on.publish("t", [bytes(1000)])
            published += 1
            on.runtime.due.popleft()()
        on.run()
        assert reader.offsets == list(range(published))


async def test_what_becomes_visible_is_sent_once_to_a_reader_that_arrives_at_that_moment(
    data: Path,
) -> None:
    """Between the sync that makes a piece visible and the turn that fans it out, a reader may
    come to the end by itself."""
    with stage(data, durability="fsync") as on:
        on.publish("t", [b"x"])
        on.run()
        on.sync_group.sync()
        reader = await on.subscribe("t", window_bytes=100_000)
        on.run()
        assert reader.offsets == [0]
        on.publish("t", [b"y"])
        on.run()
        on.sync_group.sync()
        on.run()
        assert reader.offsets == [0, 1]


async def test_deleting_a_topic_ends_its_readers_quietly_wherever_they_are(data: Path) -> None:
    with stage(data, log_options=LogOptions(read_block_bytes=64 * KIB), **SMALL) as on:
        publish(on, 200)
        live, blocked, paused, loading = Peer(), Peer(), Peer(), Peer()
        await on.subscribe("*", live, start=Start("latest"))
        on.run()
        blocked.room = 10
        await on.subscribe("*", blocked)
        on.run()
        await on.subscribe("*", paused, window_bytes=100)
        on.run()
        await on.subscribe("*", loading)
        on.core.delete_topic("t")
        on.run()
        blocked.drain(on.core)
        assert paused.feed is not None
        on.core.fan_out.grant(paused.feed, 1 << 40)
        on.run()
        on.publish("u", [b"x"])
        on.run()
        for peer in (live, blocked, paused, loading):
            assert peer.ended is None
            assert peer.lefts == ["t"]
            assert peer.gaps == []
            assert peer.batches[-1].values == [b"x"]


async def test_a_reader_that_starts_past_the_end_is_refused_and_not_counted() -> None:
    with stage() as on:
        publish(on, 3)
        with pytest.raises(OffsetOutOfRangeError):
            await on.subscribe("t", start=Start("offset", 4))
        assert on.core.describe("t").partitions[0].readers == 0
        assert len(on.core.subscriptions) == 0
