"""Batches that a subscriber can't read, or must not unpack: a gap that names its place, and the
reader goes on behind it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fanlog
import fanlog.sync
from fanlog.errors import MessagesLostError, UnreadableError
from fanlog.format.codecs import Codec
from fanlog.format.columns import HEADERS, SIZES
from fanlog.model import KIB, Gap, GapReason
from tests.format.crafted import bomb, column, crafted
from tests.listeners.peers import PATIENCE_SECONDS, Serving, one_message, serving

GOOD = column([0, 1, 2], b"ab")
MALFORMED = {
    "values": (column([0, 9, 2], b"xy"), 0, Codec.NONE),
    "headers": (GOOD + column([0, 9, 2]) + GOOD + GOOD, HEADERS, Codec.NONE),
    "packed": (SIZES.pack(64, 64) + random.Random(1).randbytes(64), 0, Codec.ZSTD),
    "too short": (column([0, 1, 2]), 0, Codec.NONE),
}


@asynccontextmanager
async def published(what: str = "headers", folder: Path | None = None) -> AsyncIterator[Serving]:
    """A topic with a good message, two that do not decode, and a good one."""
    async with serving(folder) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="memory" if folder is None else "os")
        body, flags, codec = MALFORMED[what]
        await peer.publish(one_message(number, b"before"))
        await peer.publish(crafted(body, count=2, flags=flags, codec=codec, topic=number))
        await peer.publish(one_message(number, b"behind"))
        yield served


def check_gap(lost: MessagesLostError) -> None:
    assert (lost.topic, lost.partition, lost.first, lost.next) == ("t", 0, 1, 3)
    assert lost.reason == "unreadable"
    assert isinstance(lost.__cause__, UnreadableError)


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_subscriber_is_told_and_goes_on(what: str) -> None:
    async with published(what) as served, served.client() as client:
        async with client.subscribe("t", start="earliest") as reader:
            assert (await reader.next(PATIENCE_SECONDS)).value == b"before"
            with pytest.raises(MessagesLostError) as caught:
                await reader.next(PATIENCE_SECONDS)
            check_gap(caught.value)
            assert (await reader.next(PATIENCE_SECONDS)).value == b"behind"
            assert (reader.gaps, reader.missed) == (1, 2)
        async with client.subscribe("t", start="earliest") as reader:
            assert (await reader.next_batch(PATIENCE_SECONDS)).values == [b"before"]
            with pytest.raises(MessagesLostError):
                await reader.next_batch(PATIENCE_SECONDS)
            async for batch in reader.batches():
                assert batch.values == [b"behind"]
                break


async def test_who_asked_for_gaps_is_told_there(caplog: pytest.LogCaptureFixture) -> None:
    gaps: list[Gap] = []
    async with published() as served, served.client() as client:
        async with client.subscribe("t", start="earliest", on_gap=gaps.append) as reader:
            got = [(await reader.next(PATIENCE_SECONDS)).value for _ in range(2)]
        assert got == [b"before", b"behind"]
        assert gaps == [Gap("t", 0, 1, 3, GapReason.UNREADABLE)]


async def test_a_groups_member_commits_past_it(tmp_path: Path) -> None:
    async with published(folder=tmp_path) as served, served.client() as client:
        async with client.consume("t", group="g", reset="earliest", commit="manual") as member:
            assert (await member.next(PATIENCE_SECONDS)).value == b"before"
            with pytest.raises(MessagesLostError) as caught:
                await member.next(PATIENCE_SECONDS)
            check_gap(caught.value)
            assert (await member.next(PATIENCE_SECONDS)).value == b"behind"
            await member.commit()
        async with client.consume("t", group="g", commit="manual") as member:
            peer = await served.greeted()
            await peer.publish(one_message(await peer.open_topic("t", durability="os"), b"new"))
            assert (await member.next(PATIENCE_SECONDS)).value == b"new"


async def test_a_transformation_goes_on_behind_it(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    async with published(folder=tmp_path) as served, served.client() as client:
        done = await client.transform(
            "t",
            "made",
            lambda message: message.value.upper(),
            group="g",
            reset="earliest",
            idle_seconds=1,
            on_gap=gaps.append,
        )
        assert done == 2
        assert [gap.reason for gap in gaps] == [GapReason.UNREADABLE]


async def test_a_worker_rejects_jobs_that_it_can_not_read(tmp_path: Path) -> None:
    async with published(folder=tmp_path) as served, served.client() as client:
        async with client.work("t", queue="q", reset="earliest") as worker:
            for wanted in (b"before", b"behind"):
                job = await worker.next(PATIENCE_SECONDS)
                assert job.value == wanted
                await job.ack()
        letters = await client.dead_letters.list("dead.t")
        assert [letter.death.offset for letter in letters] == [1, 2]
        assert "can't be read" in letters[0].death.reason


async def test_a_bomb_is_not_unpacked_by_a_client_with_a_smaller_limit() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(bomb(900 * KIB, topic=number))
        await peer.publish(one_message(number, b"behind"))
        async with (
            served.client(batch_unpacked_bytes_max=500 * KIB) as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            with pytest.raises(MessagesLostError) as caught:
                await reader.next(PATIENCE_SECONDS)
            assert "limit is 512000" in str(caught.value.__cause__)
            assert (await reader.next(PATIENCE_SECONDS)).value == b"behind"
            (first, second) = (await client.fetch("t", 0, 0)).batches
            with pytest.raises(UnreadableError, match="Offsets 0 to 0 of partition 0 of 't'"):
                first.check()
            assert second.values == [b"behind"]


async def test_what_is_kept_for_other_subscriptions_counts_as_it_is_unpacked() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        for _ in range(12):
            await peer.publish(bomb(900 * KIB, topic=number))
        async with served.client() as client, client.subscribe("t", start="earliest") as reader:
            for _ in range(12):
                await reader.next(PATIENCE_SECONDS)
            kept = client._decoded._batches.values()
            assert sum(len(found.batch.values[0] or b"") for found in kept) <= 4 << 20


async def test_dead_letters_that_can_not_be_read_are_left_out(tmp_path: Path) -> None:
    async with published(folder=tmp_path) as served, served.client() as client:
        assert await client.dead_letters.list("t") == []
        letters = [letter async for letter in client.dead_letters.scan("t")]
        assert letters == []
        assert fanlog.MessagesLostError is MessagesLostError
