"""One suite over every implementation of the API: embedded, networked and blocking."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import re
from collections import defaultdict
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import BrokerOptions, Config, LogOptions
from fanlog.format.codecs import Codec
from fanlog.format.keys import fnv1a_32
from fanlog.format.messages import Position
from fanlog.model import KIB, MIB, TopicSettings
from tests.awaited import awaited
from tests.client.ways import ALL_WAYS, PATIENCE_SECONDS, Way, take, take_values, until

NO_AUTO_CREATE = Config(broker=BrokerOptions(auto_create_topics=False))


@pytest.fixture(params=ALL_WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def read_all(client: Any, topic: str, count: int) -> list[fanlog.Message]:
    async with client.subscribe(topic, start="earliest") as history:
        return await take(history, count)


# Publishing


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
async def test_a_receipt_says_where_and_how_safely_a_message_is_stored(
    way: Way, durability: str
) -> None:
    async with way.open() as client:
        await client.create_topic("t", durability=durability)
        before_us = int(dt.datetime.now(dt.UTC).timestamp() * 1e6)
        first = await client.publish("t", b"one")
        second = await client.publish("t", b"two")
        assert (first.topic, first.partition, first.offset) == ("t", 0, 0)
        assert (second.offset, second.durability, second.duplicate) == (1, durability, False)
        assert before_us - 1_000_000 <= first.timestamp_us <= second.timestamp_us
        (stored, _) = await read_all(client, "t", 2)
        assert stored.timestamp == dt.datetime.fromtimestamp(first.timestamp_us / 1e6, tz=dt.UTC)


async def test_a_broker_without_a_folder_keeps_everything_in_memory(way: Way) -> None:
    async with way.open(in_memory=True) as client:
        receipt = await client.publish("t", b"x")
        assert receipt.durability == "memory"


async def test_publish_many_keeps_the_order(way: Way) -> None:
    async with way.open() as client:
        values = [b"%d" % i for i in range(3000)]
        receipts = await client.publish_many("t", values)
        assert [receipt.offset for receipt in receipts] == list(range(3000))
        assert [m.value for m in await read_all(client, "t", 3000)] == values


async def test_a_key_always_goes_to_the_partition_of_its_fnv1a_hash(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=7)
        keys = [f"key-{i}" for i in range(40)]
        for key in keys:
            receipt = await client.publish("t", b"x", key=key)
            again = await client.publish("t", b"y", key=key.encode())
            assert receipt.partition == again.partition == fnv1a_32(key.encode()) % 7
        assert len({fnv1a_32(key.encode()) % 7 for key in keys}) == 7


async def test_messages_without_a_key_go_round_all_partitions(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=5)
        used = [(await client.publish("t", b"x")).partition for _ in range(15)]
        assert sorted(used) == sorted([0, 1, 2, 3, 4] * 3)
        assert all(a != b for a, b in itertools.pairwise(used))


async def test_a_partition_can_be_chosen(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=3)
        assert (await client.publish("t", b"x", partition=2, key="k")).partition == 2
        for outside in (3, -1):
            with pytest.raises(errors.PartitionNotFoundError, match="partitions 0 to 2"):
                await client.publish("t", b"x", partition=outside)


async def test_order_is_kept_per_key_and_per_partition(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=4)
        for i in range(2000):
            await client.send("t", b"%d" % i, key=b"%d" % (i % 10))
        await client.flush()
        per_key: dict[bytes | None, list[int]] = defaultdict(list)
        per_partition: dict[int, list[int]] = defaultdict(list)
        for message in await read_all(client, "t", 2000):
            per_key[message.key].append(int(message.value))
            per_partition[message.partition].append(message.offset)
        assert len(per_key) == 10
        for key, numbers in per_key.items():
            assert numbers == list(range(int(key or b""), 2000, 10))
        for offsets in per_partition.values():
            assert offsets == list(range(len(offsets)))


async def test_everything_that_belongs_to_a_message_comes_back(way: Way) -> None:
    then = dt.datetime(2021, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    async with way.open() as client:
        await client.publish("t", b"bytes", key=b"\x00\xff", headers={"a": b"1", "b": "zwei"})
        await client.publish("t", "ünicode", event_time=then)
        await client.publish("t", b"", key="empty")
        await client.publish("t", None, key="gone")
        await client.publish("t", bytearray(b"array"), event_time=1_600_000_000_000_000)
        await client.publish("t", memoryview(b"view")[1:], headers={})
        plain, text, empty, gone, array, view = await read_all(client, "t", 6)
    assert (plain.value, plain.key) == (b"bytes", b"\x00\xff")
    assert plain.headers == {"a": b"1", "b": b"zwei"}
    assert plain.event_time == plain.timestamp
    assert (text.text, text.event_time, text.key, text.headers) == ("ünicode", then, None, {})
    assert (empty.value, empty.is_tombstone) == (b"", False)
    assert (gone.value, gone.is_tombstone, gone.key) == (b"", True, b"gone")
    assert array.value == b"array"
    assert array.event_time == dt.datetime.fromtimestamp(1_600_000_000, tz=dt.UTC)
    assert (view.value, view.headers) == (b"iew", {})


async def test_records_of_one_batch_keep_their_own_keys_headers_and_times(way: Way) -> None:
    when = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    async with way.open(linger_ms=500) as client:
        await client.create_topic("t")
        for i in range(60):
            await client.send(
                "t",
                b"%d" % i if i % 5 else None,
                key=f"k{i}" if i % 2 else None,
                headers={"n": str(i)} if i % 3 else None,
                event_time=when + dt.timedelta(seconds=i) if i % 4 else None,
            )
        await client.flush()
        stored = await read_all(client, "t", 60)
    assert len({id(message.batch) for message in stored}) < 60
    for i, message in enumerate(stored):
        assert message.is_tombstone == (i % 5 == 0)
        assert message.value == (b"%d" % i if i % 5 else b"")
        assert message.key == (b"k%d" % i if i % 2 else None)
        assert message.headers == ({"n": b"%d" % i} if i % 3 else {})
        if i % 4:
            assert message.event_time == when + dt.timedelta(seconds=i)
        else:
            assert message.event_time > dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


async def test_flush_waits_until_everything_sent_is_stored(way: Way) -> None:
    async with way.open() as client:
        await client.send("t", b"first of a new topic")
        await client.flush()
        assert (await client.describe_topic("t")).records == 1
        for i in range(5000):
            await client.send("t", b"%d" % i)
        await client.flush()
        assert (await client.describe_topic("t")).records == 5001
        await client.flush()


async def test_closing_stores_what_was_sent(way: Way) -> None:
    async with way.open() as client:
        for i in range(500):
            await client.send("t", b"%d" % i)
    async with way.open() as client:
        assert [int(m.value) for m in await read_all(client, "t", 500)] == list(range(500))


async def test_a_small_buffer_slows_send_down_and_loses_nothing(way: Way) -> None:
    async with way.open(buffer_bytes_max=4 * KIB, batch_bytes=1 * KIB) as client:
        for i in range(400):
            await client.send("t", (b"%d." % i).ljust(200, b"x"))
        await client.flush()
        stored = await read_all(client, "t", 400)
        assert [int(m.value.split(b".")[0]) for m in stored] == list(range(400))


async def test_what_send_runs_into_is_raised_by_flush(way: Way) -> None:
    async with way.open(NO_AUTO_CREATE) as client:
        await client.create_topic("t")
        await client.send("t", b"x")
        await client.flush()
        await client.delete_topic("t")
        with pytest.raises(errors.TopicNotFoundError, match="topic"):  # noqa: PT012 - either may raise
            for i in range(3):
                await client.send("t", b"%d" % i)
            await client.flush()
        await client.flush()


async def test_what_send_refuses_by_itself_is_raised_at_the_latest_by_flush(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", message_bytes_max=100)
        await client.send("t", b"before")
        with pytest.raises(errors.MessageTooLargeError, match="message_bytes_max"):  # noqa: PT012 - either may raise
            await client.send("t", bytes(200))
            await client.flush()
        await client.send("t", b"after")
        await client.flush()
        assert [m.value for m in await read_all(client, "t", 2)] == [b"before", b"after"]


async def test_a_message_that_is_too_large_is_refused_and_the_next_one_works(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", message_bytes_max=1000)
        await client.publish("t", bytes(1000))
        with pytest.raises(errors.MessageTooLargeError, match=r"1001 bytes.*takes 1000"):
            await client.publish("t", bytes(1001))
        assert (await client.publish("t", b"ok")).offset == 1


async def test_publishing_to_a_deleted_topic_says_so_and_then_works_again(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"old")
        await client.delete_topic("t")
        with pytest.raises(errors.TopicNotFoundError):
            await client.publish("t", b"to the old one")
        assert (await client.publish("t", b"new")).offset == 0
        assert [m.value for m in await read_all(client, "t", 1)] == [b"new"]


async def test_a_message_that_fills_a_batch_is_told_that_its_topic_is_gone(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"x")
        await client.delete_topic("t")
        with pytest.raises(errors.TopicNotFoundError):
            await asyncio.wait_for(client.publish("t", bytes(200_000)), PATIENCE_SECONDS)


@pytest.mark.parametrize("codec", ["none", "zlib", "zstd", "lz4"])
@pytest.mark.parametrize("chosen_by", ["client", "topic"])
async def test_compressed_messages_come_back_as_they_were(
    way: Way, codec: str, chosen_by: str
) -> None:
    options: dict[str, Any] = {"compression": codec} if chosen_by == "client" else {}
    settings = {"compression": codec} if chosen_by == "topic" else {}
    values = [b"the same again and again " * 20 + b"%d" % i for i in range(200)]
    async with way.open(**options) as client:
        await client.create_topic("t", **settings)
        await client.publish_many("t", values, key="k")
        stored = await read_all(client, "t", 200)
        assert [m.value for m in stored] == values
        assert {m.key for m in stored} == {b"k"}
        assert {m.batch.header.codec for m in stored} == {Codec[codec.upper()]}


async def test_a_topic_that_wants_no_compression_gets_none(way: Way) -> None:
    async with way.open(compression="zstd") as client:
        await client.create_topic("t", compression="none")
        await client.publish("t", bytes(2000))
        (message,) = await read_all(client, "t", 1)
        assert message.batch.header.codec == Codec.NONE


# Subscribing


async def test_a_live_subscription_gets_only_what_is_new(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"old")
        async with client.subscribe("t") as live:
            await client.publish("t", b"new")
            (message,) = await take(live, 1)
            assert (message.value, message.offset, message.topic) == (b"new", 1, "t")


async def test_a_subscription_creates_its_topic_where_that_is_allowed(way: Way) -> None:
    async with way.open() as client, client.subscribe("fresh") as live:
        await client.publish("fresh", b"first")
        assert await take_values(live, 1) == [b"first"]


async def test_a_subscription_can_begin_at_an_offset_inside_a_batch(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(10)])
        for offset in (0, 3, 9, 10):
            async with client.subscribe("t", start=offset) as some:
                await client.publish("t", b"live")
                first = (await take(some, 1))[0]
                assert first.offset == offset
                assert first.value == (b"%d" % offset if offset < 10 else b"live")


async def test_an_offset_past_the_end_is_refused_and_leaves_no_reader(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        await client.publish_many("t", [b"x"] * 5, key="k")
        full = fnv1a_32(b"k") % 2
        with pytest.raises(errors.OffsetOutOfRangeError, match="ends at offset"):
            await client.subscribe("t", start=3).start()
        with pytest.raises(errors.OffsetOutOfRangeError, match="ends at offset"):
            await client.subscribe("t", start=6, partitions=(full,)).start()
        info = await client.describe_topic("t")
        assert [p.readers for p in info.partitions] == [0, 0]


async def test_a_subscription_can_begin_at_a_time(way: Way) -> None:
    async with way.open() as client:
        early = await client.publish("t", b"early")
        while (late := await client.publish("t", b"late")).timestamp_us == early.timestamp_us:
            pass
        between = dt.datetime.fromtimestamp(late.timestamp_us / 1e6, tz=dt.UTC)
        async with client.subscribe("t", start=between) as some:
            assert (await take(some, 1))[0].offset == late.offset
        async with client.subscribe("t", start=dt.datetime(2000, 1, 1, tzinfo=dt.UTC)) as some:
            assert await take_values(some, 1) == [b"early"]
        future = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        async with client.subscribe("t", start=future) as some:
            await client.publish("t", b"now")
            assert await take_values(some, 1) == [b"now"]


async def test_a_subscription_can_follow_some_partitions(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=3)
        async with client.subscribe("t", partitions=(0, 2)) as some:
            for partition in (0, 1, 2):
                await client.publish("t", b"%d" % partition, partition=partition)
            assert sorted(await take_values(some, 2)) == [b"0", b"2"]
        with pytest.raises(errors.PartitionNotFoundError, match="partitions 0 to 2"):
            await client.subscribe("t", partitions=(5,)).start()


async def test_a_chosen_partition_stays_chosen_when_the_topic_is_created_again(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        async with client.subscribe("t", partitions=(1,)) as some:
            await client.delete_topic("t")
            await client.create_topic("t", partitions=2)
            await client.create_topic("other", partitions=2)
            fetched = await client.fetch("t", 0, 0)
            assert fetched.batches == []
            # A client that has not published to it before opens the topic as it is now.
            await client.publish("t", b"not mine", partition=0)
            await client.publish("t", b"mine", partition=1)
            assert await take_values(some, 1) == [b"mine"]


async def test_a_durable_name_continues_where_it_committed(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(10)])
        async with client.subscribe("t", durable="me", start="earliest") as reader:
            assert await take_values(reader, 4) == [b"0", b"1", b"2", b"3"]
            await reader.commit()
            await take(reader, 3)
        async with client.subscribe("t", durable="me", start="earliest") as reader:
            five = await take(reader, 5)
            assert [m.value for m in five] == [b"4", b"5", b"6", b"7", b"8"]
            await reader.commit(five[1])
        (position,) = await client.committed("me")
        assert (position.topic, position.partition, position.offset) == ("t", 0, 6)
        async with client.subscribe("t", durable="other") as reader:
            await client.publish("t", b"new")
            assert await take_values(reader, 1) == [b"new"]
        with pytest.raises(errors.InvalidArgumentError, match="durable name"):
            async with client.subscribe("t") as reader:
                await reader.commit()


async def test_a_durable_name_continues_after_a_restart_of_the_broker(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        for i in range(20):
            await client.publish("t", b"%d" % i, partition=i % 2)
        async with client.subscribe("t", durable="me", start="earliest") as reader:
            seen = await take_values(reader, 9)
            await reader.commit()
    async with way.open() as client:
        async with client.subscribe("t", durable="me") as reader:
            seen += await take_values(reader, 11)
        assert sorted(map(int, seen)) == list(range(20))
        assert (await client.publish("t", b"x", partition=0)).offset == 10


async def test_a_durable_name_skips_nothing_where_it_has_not_taken_anything_yet(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        async with client.subscribe("t", durable="me") as reader:
            await client.publish("t", b"1", partition=0)
            await take(reader, 1)
            await reader.commit()
        await client.publish("t", b"while nobody reads", partition=1)
        async with client.subscribe("t", durable="me") as reader:
            assert await take_values(reader, 1) == [b"while nobody reads"]


async def test_a_memory_topic_after_a_restart_tells_its_resumed_reader(way: Way) -> None:
    settings = TopicSettings(durability="memory")
    config = Config(topic=settings)
    async with way.open(config) as client:
        await client.publish_many("t", [b"old"] * 5)
        async with client.subscribe("t", durable="me", start="earliest") as reader:
            await take(reader, 5)
            await reader.commit()
    async with way.open(config) as client:
        await client.publish_many("t", [b"new"] * 7)
        async with client.subscribe("t", durable="me") as reader:
            with pytest.raises(fanlog.MessagesLostError, match="lives in memory") as lost:
                await take(reader, 1)
            assert (lost.value.reason, lost.value.topic) == ("reset", "t")
            assert (lost.value.first, lost.value.next) == (5, 0)
            assert await take_values(reader, 7) == [b"new"] * 7
            assert reader.gaps == 1


async def test_a_deleted_topic_forgets_durable_positions(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"old"] * 5)
        async with client.subscribe("t", durable="me", start="earliest") as reader:
            await take(reader, 5)
            await reader.commit()
        await client.delete_topic("t")
        assert await client.committed("me") == ()
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(8)])
        async with client.subscribe("t", durable="me", start="earliest") as reader:
            assert (await take(reader, 1))[0].offset == 0


async def test_the_hand_over_from_history_to_live_loses_and_repeats_nothing(way: Way) -> None:
    count = 4000
    async with way.open() as client:
        await client.create_topic("t", tail_bytes=8 * KIB, segment_bytes=64 * KIB)

        async def publish() -> None:
            for i in range(0, count, 50):
                await client.publish_many("t", [b"%d" % j for j in range(i, i + 50)])
                await asyncio.sleep(0)

        async def follow(start: Any, begin: int) -> None:
            async with client.subscribe("t", start=start) as reader:
                at = begin
                while at < count:
                    for message in await reader.next_batch(PATIENCE_SECONDS):
                        assert (message.offset, int(message.value)) == (at, at)
                        at += 1
                assert (at, reader.gaps) == (count, 0)

        publishing = asyncio.create_task(publish())
        reading = [asyncio.create_task(follow("earliest", 0))]
        for seen in (500, 1000, 2000, 3000):
            while (await client.describe_topic("t")).records < seen:  # noqa: ASYNC110 - the state is the broker's
                await asyncio.sleep(0)
            reading.append(asyncio.create_task(follow("earliest", 0)))
            reading.append(asyncio.create_task(follow(seen - 50, seen - 50)))
        await publishing
        await asyncio.gather(*reading)


async def test_wildcards_stand_for_one_token_and_for_the_rest(way: Way) -> None:
    names = ("room.a.text", "room.b.text", "room.a.join", "room.a", "hall.a.text", "room")
    wanted = {
        "room.*.text": {"room.a.text", "room.b.text"},
        "room.>": {"room.a.text", "room.b.text", "room.a.join", "room.a"},
        "*.a.*": {"room.a.text", "room.a.join", "hall.a.text"},
        "*": {"room"},
        ">": set(names),
    }
    async with way.open() as client:
        for name in names:
            await client.publish(name, name)
        for pattern, fitting in wanted.items():
            async with client.subscribe(pattern, start="earliest") as some:
                messages = await take(some, len(fitting))
                assert {m.topic for m in messages} == fitting
                assert {m.text for m in messages} == fitting
            assert {t.name for t in await client.topics(pattern)} == fitting


async def test_topics_that_appear_later_join_a_pattern_from_their_first_record(way: Way) -> None:
    async with way.open() as client:
        await client.publish("a.old", b"before")
        async with client.subscribe("a.*") as some:
            await client.publish_many("a.new", [b"1", b"2", b"3"])
            await client.publish("b.new", b"not wanted")
            await client.publish("a.old", b"4")
            got = [(m.topic, m.value) for m in await take(some, 4)]
            assert got == [("a.new", b"1"), ("a.new", b"2"), ("a.new", b"3"), ("a.old", b"4")]


async def test_a_pattern_does_not_bring_the_brokers_own_topics(way: Way) -> None:
    async with way.open() as client, client.subscribe(">", start="earliest") as everything:
        await client.publish("t", b"1")
        await client.commit("me", (Position("t", 0, 1),))
        await client.publish("t", b"2")
        assert [m.topic for m in await take(everything, 2)] == ["t", "t"]
        assert [t.name for t in await client.topics()] == ["t"]
        everywhere = {t.name for t in await client.topics(internal=True)}
        # Without the audit log, which a broker in a program may not have begun yet.
        assert everywhere - {"_fanlog.audit"} == {"t", "_fanlog.cursors"}


async def test_a_deleted_topic_leaves_and_joins_again_when_it_is_created_again(way: Way) -> None:
    async with (
        way.open() as client,
        client.subscribe("t") as exact,
        client.subscribe("*") as pattern,
    ):
        await client.publish("t", b"old")
        await client.delete_topic("t")
        await client.create_topic("t")
        assert (await client.publish("t", b"new")).offset == 0
        for reader in (exact, pattern):
            assert await take_values(reader, 2) == [b"old", b"new"]
            assert reader.gaps == 0


async def test_a_fetch_by_itself_gets_more_of_the_disk_than_one_of_many(way: Way) -> None:
    log = LogOptions(read_block_bytes=64 * KIB, fetch_block_bytes=256 * KIB)
    async with way.open(Config(log=log)) as client:
        await client.create_topic("t", tail_bytes=4 * KIB)
        for number in range(400):
            await client.publish("t", b"%4d" % number + bytes(2000))

        async def fetched_bytes(offset: int, bytes_max: int) -> int:
            batches = (await client.fetch("t", 0, offset, bytes_max=bytes_max)).batches
            assert [batch.base_offset for batch in batches] == list(
                range(offset, offset + len(batches))
            )
            return sum(batch.header.length for batch in batches)

        assert 192 * KIB < await fetched_bytes(0, 4 * MIB) <= 256 * KIB
        assert 96 * KIB < await fetched_bytes(7, 128 * KIB) <= 128 * KIB
        assert 0 < await fetched_bytes(8, 4 * KIB) <= 4 * KIB
        # One that waits at the end is under way too.
        waiting = asyncio.create_task(client.fetch("t", 0, 400, wait_seconds=PATIENCE_SECONDS))
        await until(lambda: awaited(way.core.catalog.get("t").partitions[0]))
        assert 0 < await fetched_bytes(9, 4 * MIB) <= 64 * KIB
        await client.publish("t", b"now")
        assert len((await waiting).batches) == 1


async def test_deleting_a_topic_does_not_disturb_readers_that_are_behind_in_it(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("big", tail_bytes=4 * KIB, segment_bytes=64 * KIB)
        await client.publish_many("big", [bytes(1000)] * 3000)
        async with (
            client.subscribe(">", start="earliest", window_bytes=4 * KIB) as behind,
            client.subscribe("other") as other,
        ):
            await take(behind, 1)
            await client.delete_topic("big")
            await client.publish("other", b"x")
            assert await take_values(other, 1) == [b"x"]
            while (await take(behind, 1))[0].topic == "big":
                pass
            status = await client.status()
            assert status.connections == 1
            if not way.name.startswith("blocking"):
                assert client.reconnects == 0


async def test_a_closed_subscription_ends_its_iteration_and_gets_no_more(way: Way) -> None:
    async with way.open() as client:
        reader = client.subscribe("t")
        await reader.start()
        await client.publish("t", b"1")
        seen = []

        async def iterate() -> None:
            async for message in reader:
                seen.append(message.value)  # noqa: PERF401

        iterating = asyncio.create_task(iterate())
        while not seen:  # noqa: ASYNC110 - the state is the broker's
            await asyncio.sleep(0)
        assert (await client.describe_topic("t")).partitions[0].readers == 1
        await reader.close()
        await asyncio.wait_for(iterating, PATIENCE_SECONDS)
        assert (await client.describe_topic("t")).partitions[0].readers == 0
        assert (await client.status()).subscriptions == 0
        await client.publish("t", b"2")
        assert seen == [b"1"]
        with pytest.raises(errors.ClosedError):
            await reader.next(PATIENCE_SECONDS)
        await reader.close()


async def test_a_subscription_that_is_never_read_holds_up_no_other(way: Way) -> None:
    async with way.open(window_bytes=4 * KIB) as client:
        await client.create_topic("t", tail_bytes=16 * KIB)
        async with (
            client.subscribe("t") as unread,
            client.subscribe("t") as one,
            client.subscribe("*") as two,
        ):
            for i in range(20):
                await client.publish_many("t", [b"%d" % i] * 100)
                for reader in (one, two):
                    assert await take_values(reader, 100) == [b"%d" % i] * 100
            late = await take_values(unread, 2000)
            assert late == [b"%d" % i for i in range(20) for _ in range(100)]
            assert (one.gaps, two.gaps, unread.gaps) == (0, 0, 0)


async def test_two_subscriptions_of_one_client_each_get_everything(way: Way) -> None:
    async with (
        way.open() as client,
        client.subscribe("t", start="earliest") as one,
        client.subscribe("t", start="earliest") as two,
    ):
        await client.publish_many("t", [b"%d" % i for i in range(50)])
        assert await take_values(one, 50) == await take_values(two, 50)


async def test_batches_are_the_messages_as_they_were_stored(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(100)])
        await client.publish("t", None)
        values: list[bytes | None] = []
        async with client.subscribe("t", start=30) as some:
            async for batch in some.batches():
                assert batch.base_offset == 30 + len(values)
                assert [m.offset for m in batch] == list(
                    range(batch.base_offset, batch.next_offset)
                )
                assert len(batch) == len(batch.values) == len(batch.messages)
                assert (batch.topic, batch.partition) == ("t", 0)
                values += batch.values
                if batch.next_offset == 101:
                    break
        assert values == [*(b"%d" % i for i in range(30, 100)), None]


async def test_waiting_for_a_message_can_be_limited(way: Way) -> None:
    async with way.open() as client, client.subscribe("t") as some:
        with pytest.raises(TimeoutError):
            await some.next(0.01)
        await client.publish("t", b"x")
        assert await take_values(some, 1) == [b"x"]


async def test_json_and_text_are_read_from_the_value(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", '{"tea": [1, 2]}')
        (message,) = await read_all(client, "t", 1)
        assert message.json() == {"tea": [1, 2]}
        assert message.text == '{"tea": [1, 2]}'
        assert "t/0@0" in repr(message)


# Topics


async def test_a_topic_is_created_described_listed_and_deleted(way: Way) -> None:
    async with way.open() as client:
        info = await client.create_topic("a.b", partitions=3, durability="fsync")
        assert (info.name, info.settings.partitions, info.settings.durability) == (
            "a.b",
            3,
            "fsync",
        )
        assert [p.partition for p in info.partitions] == [0, 1, 2]
        await client.create_topic("a.c", TopicSettings(retention_seconds=5), partitions=2)
        await client.publish_many("a.c", [b"123"] * 10, key="k")
        described = await client.describe_topic("a.c")
        assert (described.records, described.settings.retention_seconds) == (10, 5)
        assert described.bytes > 30
        assert [t.name for t in await client.topics()] == ["a.b", "a.c"]
        assert [t.name for t in await client.topics("*.c")] == ["a.c"]
        await client.delete_topic("a.b")
        assert [t.name for t in await client.topics()] == ["a.c"]
    async with way.open() as client:
        assert [t.name for t in await client.topics()] == ["a.c"]
        assert (await client.describe_topic("a.c")).records == 10


async def test_a_topic_that_exists_is_not_created_again(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        with pytest.raises(errors.TopicExistsError, match="exists already"):
            await client.create_topic("t")
        info = await client.create_topic("t", exist_ok=True)
        assert info.settings.partitions == 2


async def test_an_unknown_topic_is_an_error_where_topics_are_not_made_by_themselves(
    way: Way,
) -> None:
    async with way.open(NO_AUTO_CREATE) as client:
        says = "fanlog topic create nowhere"
        with pytest.raises(errors.TopicNotFoundError, match=says):
            await client.publish("nowhere", b"x")
        with pytest.raises(errors.TopicNotFoundError, match=says):
            await client.subscribe("nowhere", missing="fail").start()
        with pytest.raises(errors.TopicNotFoundError, match=says):
            await client.fetch("nowhere", 0, 0)
        with pytest.raises(errors.TopicNotFoundError, match=says):  # noqa: PT012 - either may raise
            await client.send("nowhere", b"x")
            await client.flush()
        await client.create_topic("nowhere")
        assert (await client.publish("nowhere", b"x")).offset == 0


async def test_asking_about_an_unknown_topic_does_not_create_it(way: Way) -> None:
    async with way.open() as client:
        for ask in (
            lambda: client.describe_topic("nowhere"),
            lambda: client.delete_topic("nowhere"),
            lambda: client.find_offsets("nowhere", "earliest"),
            lambda: client.fetch("nowhere", 0, 0),
            lambda: client.commit("me", (Position("nowhere", 0, 0),)),
        ):
            with pytest.raises(errors.TopicNotFoundError, match="There is no topic 'nowhere'"):
                await ask()
        assert await client.topics() == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "1 to 255 bytes"),
        ("x" * 256, "1 to 255 bytes, not 256"),
        ("ü" * 128, "not 256"),
        ("a\nb", "control character"),
        ("_fanlog.mine", "broker's own|its own topics"),
    ],
)
async def test_a_bad_name_is_refused_with_the_reason(way: Way, name: str, says: str) -> None:
    async with way.open() as client:
        with pytest.raises(errors.InvalidNameError, match=says):
            await client.create_topic(name)
        with pytest.raises(errors.InvalidNameError, match=says):
            await client.publish(name, b"x")
        refused = errors.TopicNotFoundError if "mine" in name else errors.InvalidNameError
        with pytest.raises(refused, match=says):
            await client.subscribe(name).start()
        assert (await client.publish("fine", b"x")).offset == 0


async def test_a_pattern_is_no_name_to_publish_to(way: Way) -> None:
    async with way.open() as client:
        for pattern in ("a.*", ">"):
            with pytest.raises(errors.InvalidNameError, match="is a pattern"):
                await client.publish(pattern, b"x")
        with pytest.raises(errors.InvalidNameError, match="it must be the end"):
            await client.subscribe("a.>.b").start()
        with pytest.raises(errors.InvalidArgumentError, match="means nothing for a pattern"):
            await client.subscribe("a.*", start=5).start()


async def test_a_star_inside_a_name_is_an_error_wherever_it_is_given(way: Way) -> None:
    async with way.open() as client:
        await client.publish("orders.new", b"x")
        for publish in (client.publish("orders*", b"x"), client.create_topic("orders*")):
            with pytest.raises(errors.InvalidNameError, match="Name one topic without them"):
                await publish
        says = "write orders.*, or orders.> for everything below orders"
        for read in (
            lambda: client.subscribe("orders*").start(),
            lambda: client.consume("orders*", group="g").start(),
            lambda: client.topics("orders*"),
        ):
            with pytest.raises(errors.InvalidNameError, match=re.escape(says)):
                await read()
        with pytest.raises(errors.TopicNotFoundError, match=re.escape(says)):
            await client.describe_topic("orders*")
        assert [topic.name for topic in await client.topics()] == ["orders.new"]


async def test_nobody_publishes_to_the_brokers_own_topics(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"x")
        await client.commit("me", (Position("t", 0, 1),))
        with pytest.raises(errors.InvalidNameError, match="broker's own"):
            await client.publish("_fanlog.cursors", b"rubbish")
        with pytest.raises(errors.InvalidNameError, match="broker's own"):
            await client.delete_topic("_fanlog.cursors")
    async with way.open() as client:
        (position,) = await client.committed("me")
        assert position.offset == 1


async def test_wrong_arguments_are_refused_before_anything_is_stored(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        wrong: list[dict[str, Any]] = [
            {"value": object()},
            {"value": b"x", "key": 5},
            {"value": b"x", "headers": {"a": 5}},
            {"value": b"x", "headers": {5: b"a"}},
            {"value": b"x", "event_time": "yesterday"},
            {"value": b"x", "event_time": 1 << 70},
        ]
        for given in wrong:
            with pytest.raises(errors.InvalidArgumentError):
                await asyncio.wait_for(client.publish("t", **given), PATIENCE_SECONDS)
        assert (await client.publish("t", b"right", key="k")).offset == 0


async def test_wrong_starts_policies_and_settings_are_refused(way: Way) -> None:
    async with way.open() as client:
        with pytest.raises(errors.InvalidArgumentError, match="0 or more"):
            client.subscribe("t", start=-1)
        with pytest.raises(errors.InvalidArgumentError, match="earliest, latest, an offset"):
            client.subscribe("t", start="soon")
        with pytest.raises(errors.InvalidArgumentError, match="catch-up, skip, disconnect"):
            client.subscribe("t", policy="wait")
        with pytest.raises(errors.InvalidArgumentError, match=r"no topic setting 'partition'"):
            await client.create_topic("t", partition=1)
        with pytest.raises(errors.InvalidArgumentError, match="partitions"):
            await client.create_topic("t", partitions=0)
        with pytest.raises(errors.InvalidArgumentError, match="durab"):
            await client.create_topic("t", durability="paper")
        with pytest.raises(errors.InvalidArgumentError, match="durable name"):
            await client.commit("", (Position("t", 0, 1),))
        assert await client.topics() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"linger_ms": -1}, "linger_ms"),
        ({"batch_bytes": "many"}, "batch_bytes"),
        ({"compression": "rar"}, "rar"),
        ({"lingerms": 5}, "lingerms"),
    ],
)
async def test_wrong_client_options_are_refused(
    way: Way, options: dict[str, Any], says: str
) -> None:
    with pytest.raises((errors.InvalidArgumentError, errors.ConfigError), match=says):
        async with way.open(**options):
            pass


async def test_more_topics_than_allowed_are_refused(way: Way) -> None:
    async with way.open(Config(broker=BrokerOptions(topics_max=2))) as client:
        await client.create_topic("a")
        await client.publish("b", b"x")
        with pytest.raises(errors.TooManyTopicsError, match="topics_max"):
            await client.publish("c", b"x")
        await client.delete_topic("a")
        await client.publish("c", b"x")


# Pulling


async def test_fetch_gives_batches_from_an_offset_on(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(10)])
        await client.publish("t", b"10")
        fetched = await client.fetch("t", 0, 0)
        assert (fetched.visible_end, fetched.start_offset) == (11, 0)
        assert [v for batch in fetched.batches for v in batch.values] == [
            b"%d" % i for i in range(11)
        ]
        assert {batch.topic_name for batch in fetched.batches} == {"t"}
        last = await client.fetch("t", 0, 10)
        assert [batch.base_offset for batch in last.batches] == [10]
        assert (await client.fetch("t", 0, 11)).batches == []
        with pytest.raises(errors.PartitionNotFoundError, match="partition 4"):
            await client.fetch("t", 4, 0)
        with pytest.raises(errors.OffsetOutOfRangeError, match="not kept"):
            await client.fetch("t", 0, -1)


async def test_fetch_takes_history_from_disk_bit_by_bit(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", tail_bytes=4 * KIB, segment_bytes=64 * KIB)
        for i in range(30):
            await client.publish_many("t", [b"%d" % i + bytes(500)] * 10)
        offset = 0
        while offset < 300:
            fetched = await client.fetch("t", 0, offset, bytes_max=10_000)
            assert fetched.batches
            for batch in fetched.batches:
                assert batch.base_offset == offset
                offset = batch.next_offset
        assert offset == 300


async def test_a_fetch_waits_for_new_records(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        waiting = asyncio.create_task(client.fetch("t", 0, 0, wait_seconds=PATIENCE_SECONDS))
        await until(lambda: awaited(way.core.catalog.get("t").partitions[0]))
        await client.publish("t", b"x")
        (batch,) = (await waiting).batches
        assert batch.values == [b"x"]
        assert (await client.fetch("t", 0, 1, wait_seconds=0.01)).batches == []


async def test_a_waiting_fetch_hears_that_its_topic_was_deleted(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        waiting = asyncio.create_task(client.fetch("t", 0, 0, wait_seconds=PATIENCE_SECONDS))
        await until(lambda: awaited(way.core.catalog.get("t").partitions[0]))
        await client.delete_topic("t")
        with pytest.raises(errors.TopicNotFoundError, match="deleted"):
            await waiting


async def test_a_topic_that_was_created_again_can_be_fetched(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        assert (await client.fetch("t", 0, 0)).batches == []
        await client.delete_topic("t")
        await client.create_topic("t")
        assert (await client.fetch("t", 0, 0)).batches == []


async def test_offsets_are_found_by_start_and_by_time(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        early = await client.publish("t", b"1", partition=0)
        while (late := await client.publish("t", b"2", partition=0)).timestamp_us == (
            early.timestamp_us
        ):
            pass
        end = late.offset + 1
        assert await client.find_offsets("t", "earliest") == {0: 0, 1: 0}
        assert await client.find_offsets("t", "latest") == {0: end, 1: 0}
        when = dt.datetime.fromtimestamp(late.timestamp_us / 1e6, tz=dt.UTC)
        assert await client.find_offsets("t", when) == {0: late.offset, 1: 0}


# The whole


async def test_the_status_counts_what_is_there(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"x"] * 5)
        async with client.subscribe("t", start="earliest") as some:
            await take(some, 5)
            status = await client.status()
            while status.pending_bytes:  # the audit log's
                status = await client.status()
        assert (status.state, status.problems) == ("ok", ())
        assert (status.topics, status.connections, status.subscriptions) == (1, 1, 1)
        assert (status.published_records, status.pending_bytes) == (5, 0)
        assert status.release == fanlog.__version__
        assert min(status.epoch, status.tail_bytes, status.delivered_bytes) > 0


async def test_a_closed_client_says_so(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"x")
        reader = client.subscribe("t")
        await reader.start()
        await client.close()
        for ask in (
            lambda: client.publish("t", b"y"),
            lambda: client.send("t", b"y"),
            client.status,
            lambda: reader.next(PATIENCE_SECONDS),
            lambda: client.subscribe("t").start(),
        ):
            with pytest.raises(errors.ClosedError, match="closed"):
                await ask()
        await client.close()


async def test_the_log_goes_on_after_a_restart(way: Way) -> None:
    for round_number in range(3):
        async with way.open() as client:
            for durability in ("os", "fsync"):
                await client.create_topic(durability, durability=durability, exist_ok=True)
                receipts = await client.publish_many(durability, [b"%d" % round_number] * 10)
                first = round_number * 10
                assert [r.offset for r in receipts] == list(range(first, first + 10))
                stored = await read_all(client, durability, first + 10)
                assert [int(m.value) for m in stored] == [i // 10 for i in range(first + 10)]
