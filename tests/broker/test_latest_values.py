"""The latest value of each key, and then every change: no gap, no repeat, whatever is published
meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fanlog.broker.messages.latest_values import LatestTables
from fanlog.config import BrokerOptions
from fanlog.errors import InvalidArgumentError, LimitError, TopicDeletedError
from fanlog.format.batch import encode_batch
from fanlog.format.messages import Subscribe
from fanlog.format.record_views import FRAME_BYTES_MAX
from fanlog.format.web_filters import Filter, make_filter
from fanlog.format.web_views import ViewKind, views_for
from fanlog.model import KIB, Start
from tests.broker.deletions import delete_records
from tests.broker.stage import Publisher, Stage, stage
from tests.broker.test_compaction import compacted, put
from tests.broker.web_reader import WebPeer, follow
from tests.format.web_frames import documents, events

T = TypeVar("T")
COMPACT: dict[str, Any] = {"cleanup": "compact", "compact_after_bytes": 1}
ROOM = 1 << 20


async def finished(on: Stage, work: Awaitable[T]) -> T:
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        on.run()
    return await task


class Watcher(WebPeer):
    """Keeps the table that a browser would build, and checks that nothing comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, str] = {}
        self.snapshots: list[list[int]] = []
        self.reached: dict[int, int] = {}
        self.changes = 0

    def _read(self, frame: dict[str, Any]) -> None:
        partition = frame["partition"]
        for message in frame["messages"]:
            if frame["type"] == "messages":
                assert message["offset"] >= self.reached[partition]
                self.changes += 1
            if message.get("deleted"):
                self.table.pop(message["key"], None)
            else:
                self.table[message["key"]] = message["text"]
        if "position" in frame:
            self.reached[partition] = int(frame["position"].split(".")[0])
            self.positions[f"{frame['topic']}/{partition}"] = frame["position"]


async def watch(
    on: Stage, tables: LatestTables, name: str = "t", filter: Filter | None = None
) -> Watcher:
    peer = Watcher()
    asked = Subscribe(target=name, start=Start("latest"))
    views = views_for("json", name, filter)
    topic = on.core.catalog.get(name)
    use = tables.open(topic)
    subscription, _ = await finished(
        on, on.core.subscriptions.add(1, asked, peer, peer, views=views)
    )
    pieces = await finished(on, use.begin(subscription))
    for piece in pieces:
        for frame in documents(piece):
            assert frame["type"] == "snapshot"
            peer.snapshots.append([m["offset"] for m in frame["messages"]])
            peer._read(frame)
    peer.subscription = subscription
    on.core.subscriptions.start(subscription)
    return peer


def table_of(on: Stage, topic: str = "t") -> dict[str, str]:
    """By reading all of the log."""
    table: dict[str, str] = {}
    for partition in on.core.catalog.get(topic).partitions:
        offset = partition.log.start_offset
        while offset < partition.visible_end:
            for batch in on.fetch(topic, offset, partition.index):
                for key, value in zip(batch.keys, batch.values, strict=True):
                    assert key is not None
                    if value is None:
                        table.pop(key.decode(), None)
                    else:
                        table[key.decode()] = value.decode()
                offset = batch.next_offset
    return table


async def test_first_the_latest_value_of_each_key_and_then_changes(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        put(on, "t", (b"c", b"1"), (b"b", None))
        tables = LatestTables(on.core, ROOM)
        peer = await watch(on, tables)
        assert peer.table == {"a": "2", "c": "1"}
        assert peer.snapshots == [[2, 3]]
        assert peer.changes == 0
        put(on, "t", (b"a", b"3"), (b"c", None))
        assert peer.table == {"a": "3"}
        assert peer.changes == 2
        back = await follow(on, "t", positions=peer.positions)
        assert back.seen == []


async def test_an_empty_topic_has_an_empty_snapshot_with_a_position(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        on.core.open_topic("t", create=True)
        peer = await watch(on, LatestTables(on.core, ROOM))
        assert peer.snapshots == [[]]
        put(on, "t", (b"a", b"1"))
        assert peer.table == {"a": "1"}


async def test_all_who_come_at_the_same_offset_share_the_rendered_snapshot(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", *((b"k%d" % i, b"x" * 1000) for i in range(1000)))
        tables = LatestTables(on.core, 10 * ROOM)
        topic = on.core.catalog.get("t")
        pieces: list[list[bytes]] = []
        for _ in range(3):
            peer = WebPeer()
            asked = Subscribe(target="t")
            subscription, _ = await on.core.subscriptions.add(
                1, asked, peer, peer, views=views_for("json", "t")
            )
            pieces.append(await finished(on, tables.open(topic).begin(subscription)))
        assert len({tuple(map(id, shown)) for shown in pieces}) == 1
        shown = [frame for piece in pieces[0] for frame in documents(piece)]
        assert [frame["more"] for frame in shown] == [True] * (len(shown) - 1) + [False]
        assert ["position" in frame for frame in shown] == [False] * (len(shown) - 1) + [True]
        assert len(shown) > 3
        assert all(len(piece) < FRAME_BYTES_MAX + 2000 for piece in pieces[0])


@pytest.mark.parametrize("kind", ["sse", "binary"])
async def test_other_kinds_of_readers_get_it_too(data: Path, kind: ViewKind) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", (b"a", b"1"), (b"b", b"2\n"))
        peer = WebPeer()
        subscription, _ = await on.core.subscriptions.add(
            1, Subscribe(target="t"), peer, peer, views=views_for(kind, "t")
        )
        use = LatestTables(on.core, ROOM).open(on.core.catalog.get("t"))
        (piece,) = await finished(on, use.begin(subscription))
        if kind == "binary":
            assert [frame["type"] for frame in documents(piece)] == ["snapshot"]
            return
        shown = events(piece)
        assert [event["event"] for event in shown] == ["snapshot", "snapshot", "snapshot-end"]
        assert ["id" in event for event in shown] == [False, False, True]


async def test_a_filter_applies_to_the_snapshot_too(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", (b"a1", b"1"), (b"b1", b"1"), (b"a2", b"1"))
        peer = await watch(on, LatestTables(on.core, ROOM), filter=make_filter({"key": "a*"}))
        assert sorted(peer.table) == ["a1", "a2"]


async def test_what_retention_took_is_not_in_a_snapshot(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        tables = LatestTables(on.core, ROOM)
        put(on, "t", (b"a", b"1"))
        put(on, "t", (b"b", b"1"))
        assert (await watch(on, tables)).table == {"a": "1", "b": "1"}
        delete_records(on.core, "t", {0: 1})
        assert (await watch(on, tables)).table == {"b": "1"}


async def test_only_compacted_topics_have_latest_values(data: Path) -> None:
    with stage(data) as on, pytest.raises(InvalidArgumentError, match="not compacted"):
        LatestTables(on.core, ROOM).open(on.core.open_topic("t", create=True))


async def test_a_table_that_is_too_large_is_an_error_that_names_the_limit(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", *((b"k%d" % i, b"x" * 100) for i in range(100)))
        tables = LatestTables(on.core, 10_000)
        with pytest.raises(LimitError, match=r"web\.latest_bytes_max"):
            await watch(on, tables)
        assert tables.bytes == 0
        put(on, "u", (b"k", b"1"))
        assert (await watch(on, tables, "u")).table == {"k": "1"}


async def test_a_table_that_outgrows_the_limit_harms_no_reader_that_has_it(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", (b"a", b"1"))
        tables = LatestTables(on.core, 10_000)
        peer = await watch(on, tables)
        put(on, "t", *((b"k%d" % i, b"x" * 100) for i in range(100)))
        assert tables.bytes == 0
        assert len(peer.table) == 101
        with pytest.raises(LimitError):
            await watch(on, tables)


async def test_bytes_go_up_and_down_with_the_keys_and_nothing_is_left(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        put(on, "t", (b"a", b"1"), (b"b", b"x" * 1000))
        tables = LatestTables(on.core, ROOM)
        topic = on.core.catalog.get("t")
        uses = [tables.open(topic), tables.open(topic)]
        await finished(on, uses[0].ready())
        full = tables.bytes
        put(on, "t", (b"b", None))
        assert tables.bytes < full - 1000
        uses[0].close()
        uses[0].close()
        assert tables.bytes > 0
        assert topic.partitions[0].readers == 1
        uses[1].close()
        on.run()
        assert tables.bytes == 0
        assert topic.partitions[0].readers == 0
        audience = topic.partitions[0].audience
        assert audience is not None
        assert not audience.count()


async def test_a_topic_that_goes_while_it_is_read_is_an_error(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        for i in range(50):
            put(on, "t", (b"%d" % i, b"x" * 1000))
    with stage(data, **COMPACT) as on:
        tables = LatestTables(on.core, ROOM)
        use = tables.open(on.core.catalog.get("t"))
        waiting = asyncio.ensure_future(use.ready())
        await asyncio.sleep(0)
        on.core.delete_topic("t")
        with pytest.raises(TopicDeletedError):
            await finished(on, waiting)
        use.close()
        assert tables.bytes == 0


@pytest.mark.parametrize("seed", range(8))
async def test_under_publishing_tombstones_and_compaction_every_reader_has_the_table(
    data: Path, seed: int
) -> None:
    rng = random.Random(seed)
    options = BrokerOptions(unpack_loop_bytes_max=rng.choice([0, 2000, 256 * KIB]))
    with stage(data, options=options, partitions=2, tail_bytes=4 * KIB, **COMPACT) as on:
        on.core.open_topic("t", create=True)
        tables = LatestTables(on.core, 10 * ROOM)
        peers: list[Watcher] = []
        count = 0

        def publish() -> None:
            nonlocal count
            size = rng.randrange(1, 30)
            keys = [b"k%d" % rng.randrange(60) for _ in range(size)]
            values = [None if rng.random() < 0.2 else b"%d" % (count + i) for i in range(size)]
            count += size
            # The same partition for the same key, as clients do it.
            for partition in range(2):
                mine = [i for i in range(size) if int(keys[i][1:]) % 2 == partition]
                if mine:
                    data = encode_batch(
                        [values[i] for i in mine],
                        keys=[keys[i] for i in mine],
                        topic=on.core.catalog.get("t").number,
                        partition=partition,
                    )
                    on.core.take(data, 0, Publisher())

        real_run = on.run

        def run() -> None:
            # Others publish while a reader waits for its snapshot.
            if rng.random() < 0.3:
                publish()
            real_run()

        on.run = run  # type: ignore[method-assign]
        for step in range(60):
            match rng.randrange(6):
                case 0:
                    peers.append(await watch(on, tables))
                case 1 if peers:
                    rng.choice(peers).resume(on, rng.choice([None, 1, 2000]))
                case 2 if step % 20 == 0:
                    await compacted(on, "t")
                case _:
                    publish()
                    real_run()
        for peer in peers:
            peer.resume(on)
        real_run()
        on.run = real_run  # type: ignore[method-assign]
        expected = table_of(on)
        assert peers
        for peer in peers:
            assert peer.table == expected
            assert peer.gaps == []


# The last messages


async def test_last_begins_so_many_messages_before_the_end(data: Path) -> None:
    with stage(data) as on:
        on.publish("t", [b"%d" % i for i in range(10)])
        on.run()
        for count in (1, 3, 10, 50):
            peer = await follow(on, "t", start=Start("last", count))
            on.run()
            assert peer.values == [str(i) for i in range(max(0, 10 - count), 10)]
        for count in (0, -1, 1 << 40):
            with pytest.raises(InvalidArgumentError, match="last"):
                await follow(on, "t", start=Start("last", count))


async def test_last_counts_over_partitions_in_the_order_of_time(data: Path) -> None:
    with stage(data, partitions=3) as on:
        for i in range(30):
            on.runtime.time_us += 1_000_000
            on.publish("t", [b"%d" % i], partition=i % 2)
            on.run()
        for count in (1, 7, 30, 100):
            peer = await follow(on, "t", start=Start("last", count))
            on.run()
            assert sorted(map(int, peer.values)) == list(range(max(0, 30 - count), 30))
        wild = await follow(on, "*", start=Start("last", 4))
        assert sorted(map(int, wild.values)) == [26, 27, 28, 29]


async def test_last_finds_records_that_compaction_left_far_apart(data: Path) -> None:
    with stage(data, **COMPACT) as on:
        for i in range(5):
            put(on, "t", (b"keep%d" % i, b"%d" % i))
            for _ in range(100):
                put(on, "t", (b"x", b""))
        await compacted(on, "t")
        put(on, "t", (b"end", b"end"))
        peer = await follow(on, "t", start=Start("last", 4))
        on.run()
        assert peer.values == ["3", "4", "", "end"]
