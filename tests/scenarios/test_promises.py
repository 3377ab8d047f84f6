"""What the documents that Fanlog grew out of promise, one test each, named after the promise: over
TCP, against a broker with a folder, as a user would see it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fanlog
from fanlog.format.keys import partition_of
from fanlog.node import Node
from tests.client.proxy import proxy_to
from tests.client.ways import FREE_PORT, take, take_values

PATIENCE_SECONDS = 60.0
WORDS = [b"message %d" % i for i in range(100)]


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """A broker over a folder; leaving stops it, so that serving again is a restart."""
    node = Node(folder, fanlog.Config(listener=FREE_PORT))
    node.start()
    try:
        yield f"fanlog://127.0.0.1:{node.listen().port}"
    finally:
        await node.stop()


async def test_partitions_keep_a_key_together_and_spread_the_rest(data: Path) -> None:
    async with serving(data) as url, fanlog.connect(url) as client:
        await client.create_topic("orders", partitions=4)
        for i in range(40):
            receipt = await client.publish("orders", b"x", key=b"order-%d" % (i % 8))
            assert receipt.partition == partition_of(b"order-%d" % (i % 8), 4)
        spread = {(await client.publish("orders", b"no key")).partition for _ in range(16)}
        assert spread == {0, 1, 2, 3}


async def test_consumer_groups_share_a_topic_and_go_on_where_they_committed(data: Path) -> None:
    async with serving(data) as url, fanlog.connect(url) as client:
        await client.create_topic("orders", partitions=4)
        got: dict[str, list[bytes]] = defaultdict(list)
        everything = asyncio.Event()

        async def consume(group: str) -> None:
            async with (
                fanlog.connect(url) as own,
                own.consume("orders", group=group, reset="earliest", commit="iterate") as member,
            ):
                async for message in member:
                    got[group].append(message.value)
                    if all(len(got[g]) >= len(WORDS) for g in ("billing", "shipping")):
                        everything.set()

        tasks = [asyncio.create_task(consume(g)) for g in ("billing", "billing", "shipping")]
        for word in WORDS:
            await client.publish("orders", word)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await everything.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(got["billing"]) == sorted(WORDS)
        assert sorted(got["shipping"]) == sorted(WORDS)
    async with serving(data) as url, fanlog.connect(url) as client:
        await client.publish("orders", b"later")
        async with client.consume("orders", group="billing", commit="manual") as member:
            again: list[bytes] = []
            while not again or again[-1] != b"later":
                again.append((await member.next(PATIENCE_SECONDS)).value)
        # At most the one that was in each member's hands is not committed.
        assert len(again) <= 3


async def until_stored(url: str, records: int) -> None:
    """Waits until there is so much in the topic."""
    async with fanlog.connect(url) as client, asyncio.timeout(PATIENCE_SECONDS):
        while (await client.describe_topic("orders")).records < records:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_exactly_once_a_lost_acknowledgement_stores_a_message_once(data: Path) -> None:
    async with serving(data) as url, proxy_to(int(url.rpartition(":")[2])) as proxy:
        through = f"fanlog://127.0.0.1:{proxy.port}"
        async with fanlog.connect(through, backoff_first_seconds=0.01) as client:
            first = await client.publish("orders", b"one")
            proxy.mute = True
            publishing = asyncio.create_task(client.publish("orders", b"two"))
            await until_stored(url, 2)
            proxy.cut()
            proxy.mute = False
            async with asyncio.timeout(PATIENCE_SECONDS):
                second = await publishing
        assert (first.offset, second.offset) == (0, 1)
        assert second.duplicate
        async with fanlog.connect(url) as client:
            assert (await client.describe_topic("orders")).records == 2


async def test_push_delivery_needs_no_polling(data: Path) -> None:
    async with (
        serving(data) as url,
        fanlog.connect(url) as client,
        client.subscribe("orders") as live,
    ):
        waiting = asyncio.create_task(live.next(PATIENCE_SECONDS))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await client.publish("orders", b"pushed")
        assert (await waiting).value == b"pushed"


async def test_seek_to_an_offset_to_a_time_and_to_either_end(data: Path) -> None:
    async with serving(data) as url, fanlog.connect(url) as client:
        for word in WORDS[:5]:
            await client.publish("orders", word)
            await asyncio.sleep(0.002)
        moment = dt.datetime.now(dt.UTC)
        await asyncio.sleep(0.002)
        for word in WORDS[5:10]:
            await client.publish("orders", word)
        async with client.consume("orders", group="g", reset="earliest") as member:
            assert await take_values(member, 10) == WORDS[:10]
            await member.seek(3)
            assert await take_values(member, 7) == WORDS[3:10]
            await member.seek(moment)
            assert await take_values(member, 5) == WORDS[5:10]
            await member.seek("earliest")
            assert await take_values(member, 10) == WORDS[:10]
            await member.seek("latest")
            await client.publish("orders", b"new")
            assert await take_values(member, 1) == [b"new"]


@pytest.mark.parametrize("codec", ["zlib", "zstd", "lz4"])
async def test_compression_is_chosen_by_the_publisher_and_unseen_by_readers(
    data: Path, codec: str
) -> None:
    value = b"the same words again and again " * 100
    async with serving(data) as url, fanlog.connect(url, compression=codec) as client:
        await client.publish_many("orders", [value] * 50)
        assert (await client.describe_topic("orders")).bytes < len(value) * 50 / 10
        async with client.subscribe("orders", start="earliest") as reader:
            assert await take_values(reader, 50) == [value] * 50


async def test_durable_subscriptions_continue_after_a_restart(data: Path) -> None:
    async with serving(data) as url, fanlog.connect(url) as client:
        await client.publish_many("orders", WORDS)
        async with client.subscribe("orders", durable="trader", start="earliest") as reader:
            await take(reader, 40)
            await reader.commit()
    async with (
        serving(data) as url,
        fanlog.connect(url) as client,
        client.subscribe("orders", durable="trader") as reader,
    ):
        assert await take_values(reader, 60) == WORDS[40:]


async def test_drop_counters_say_what_slow_readers_missed(data: Path) -> None:
    async with serving(data) as url, fanlog.connect(url) as client:
        await client.create_topic("ticks", durability="memory", tail_bytes=4096)
        async with client.subscribe("ticks", policy="skip", window_bytes=4096) as slow:
            await client.publish("ticks", b"first")
            for _ in range(200):
                await client.publish("ticks", b"x" * 512)
            seen = 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while seen + slow.missed < 201:
                    # What was missed at the very end has nothing behind it that would come.
                    with contextlib.suppress(TimeoutError):
                        await slow.next(0.5)
                        seen += 1
            with pytest.raises(TimeoutError):
                await slow.next(0.2)
            counters = (await client.describe_topic("ticks")).counters
            assert slow.missed == counters.skipped_records > 0
            assert seen + slow.missed == 201


async def test_back_pressure_makes_a_publisher_wait_and_loses_nothing(data: Path) -> None:
    async with serving(data) as url, proxy_to(int(url.rpartition(":")[2])) as proxy:
        through = f"fanlog://127.0.0.1:{proxy.port}"
        async with fanlog.connect(through, buffer_bytes_max=8192) as client:
            await client.publish("orders", b"first")
            proxy.mute = True
            sent = 1

            async def send_on() -> None:
                nonlocal sent
                while sent < 2000:
                    await client.send("orders", b"%06d" % sent)
                    sent += 1

            sending = asyncio.create_task(send_on())
            await asyncio.sleep(0.2)
            # Nobody acknowledges, so that the buffer is full and `send` waits.
            assert sent < 1000
            proxy.mute = False
            proxy.cut()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await sending
            await client.flush()
        async with fanlog.connect(url) as client:
            assert (await client.describe_topic("orders")).records == 2000
