"""Batches whose checksums fit and whose columns do not decode, as the broker meets them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanlog.errors import UnreadableError
from fanlog.format.batch import encode_batch, stamp
from fanlog.format.codecs import Codec
from fanlog.format.columns import HEADERS, KEYS
from tests.broker.deletions import delete_records
from tests.broker.stage import Publisher, Stage, stage
from tests.format.crafted import column, crafted, squeezed

GOOD = column([0, 1, 2], b"ab")
# Values and keys can be read, headers can't.
BODY = GOOD + GOOD + column([0, 9, 2]) + GOOD + GOOD


COMPACT: dict[str, int | str] = {"cleanup": "compact", "durability": "os"}


def malformed(topic: int, **given: int) -> bytes:
    """A batch of two records for a compacted topic."""
    return crafted(BODY, count=2, flags=KEYS | HEADERS, topic=topic, **given)


def keyed(topic: int, key: bytes, value: bytes) -> bytes:
    return encode_batch([value], keys=[key], topic=topic)


def store(on: Stage, topic: str, data: bytes, count: int) -> None:
    """Puts a batch into the log as an earlier release would have taken it."""
    found = on.core.open_topic(topic, create=True)
    partition = found.partitions[0]
    base, now_us = partition.next_offset, on.core.now_us()
    data = stamp(data, base_offset=base, append_time_us=now_us, leader_epoch=1, topic=found.number)
    partition.log.append(data, base + count, now_us, now_us)
    partition.next_offset = partition.visible_end = base + count


async def compacted(on: Stage, topic: str) -> None:
    task = asyncio.ensure_future(on.core.compact(topic))
    while not task.done():
        await asyncio.sleep(0)
        on.run()
    await task


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_compacted_topic_takes_only_what_decodes(tmp_path: Path, codec: Codec) -> None:
    with stage(tmp_path) as on:
        number = on.core.create_topic("t", COMPACT).number
        body = BODY if codec is Codec.NONE else squeezed(codec, BODY)
        bad = crafted(body, count=2, flags=KEYS | HEADERS, codec=codec, topic=number)
        by = Publisher()
        on.core.take(keyed(number, b"a", b"1") + bad + keyed(number, b"b", b"2"), 0, by)
        on.run()
        assert [ack.base_offset for ack in by.acks] == [0, 1]
        ((_, _, error),) = by.refusals
        assert isinstance(error, UnreadableError)
        assert "compacted" in str(error)
        # Elsewhere nobody looks at records.
        other = on.core.open_topic("other", create=True).number
        on.core.take(crafted(BODY, count=2, flags=KEYS | HEADERS, topic=other), 0, by)
        on.run()
        assert len(by.acks) == 3


def test_a_refused_batch_takes_none_of_its_producers_numbers(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        number = on.core.create_topic("t", COMPACT).number
        by = Publisher(7)
        on.core.take(malformed(number, producer_id=7, first_sequence=0), 0, by)
        good = encode_batch([b"v"], keys=[b"k"], topic=number, producer_id=7)
        on.core.take(good + good, 0, by)
        on.run()
        assert [(ack.base_offset, ack.duplicate) for ack in by.acks] == [(0, 0), (0, 1)]


async def test_compaction_goes_on_behind_a_stored_one_and_health_says_so(tmp_path: Path) -> None:
    with stage(tmp_path, cleanup="compact") as on:
        number = on.core.open_topic("t", create=True).number
        store(on, "t", malformed(number), 2)
        for i in range(10):
            on.core.take(keyed(number, b"k", b"%d" % i), 0, Publisher())
            on.run()
        await compacted(on, "t")
        assert on.core.catalog.get("t").partitions[0].log.bytes < 400
        status = on.core.status()
        assert status.state == "degraded"
        (problem,) = status.problems
        assert problem.startswith("t/0: offsets 0 to 1 do not decode; compaction leaves them")
        delete_records(on.core, "t", {0: 2})
        assert on.core.status().state == "ok"
