"""Many people look at dead letters at once: none of them ends what another one does, and what the
broker remembers for them is bounded."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec
from fanlog.format.dead_letters import Death, death_headers
from fanlog.listeners.web import dead_browse, dead_index, dead_reading, overview
from fanlog.listeners.web.dead_index import DeadLetterIndex
from fanlog.listeners.web.dead_matches import DeadLetterFilter
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.dead import BEGIN, DEAD, complete, ended, kill_many, letters
from tests.listeners.web.test_overview import until
from tests.listeners.web.test_work import get


def _index(site: Site) -> DeadLetterIndex:
    topic = site.listener.core.catalog.get("dead.jobs")
    return site.listener.dead_letters.of(topic)


async def _search_at_once(site: Site, name: str) -> list[Any]:
    paths = [f"{DEAD}/browse?text={name}{number}" for number in range(20)]
    return await asyncio.gather(*(get(site, path) for path in paths))


async def test_twenty_searches_at_once_all_get_an_answer(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 3000, lambda n: f"reason {n}")
        for answer in await _search_at_once(site, "some"):
            assert answer["total"] == 0


async def test_searches_of_others_do_not_end_a_task(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 3000, lambda n: f"reason {n}")
        wanted = {"where": {"text": '"number":7}'}, "background": True}
        async with site.http.post(f"{DEAD}/delete", json=wanted) as answer:
            task = (await answer.json())["task"]
        await _search_at_once(site, "other")
        found = await ended(site, task)
        assert (found["state"], found["done"]) == ("done", 1)


async def test_two_wait_while_more_dead_letters_come(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        await kill_many(site.broker, 10, lambda n: f"reason {n}")
        index, held = _index(site), asyncio.Event()
        read_partition = DeadLetterIndex._read_partition

        async def slowly(self: DeadLetterIndex, *about: Any) -> None:
            await read_partition(self, *about)
            await held.wait()

        monkeypatch.setattr(DeadLetterIndex, "_read_partition", slowly)
        first = asyncio.create_task(index.ready())
        await asyncio.sleep(0.05)
        await kill_many(site.broker, 10, lambda n: f"later {n}")
        others = [asyncio.create_task(index.ready(10.0)) for _ in range(3)]
        await asyncio.sleep(0.05)
        held.set()
        assert await asyncio.gather(first, *others) == [True] * 4


async def test_the_broker_keeps_something_of_so_many_topics_only(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_index, "TOPICS_MAX", 5)
    async with serving() as site:
        catalog, known = site.listener.core.catalog, site.listener.dead_letters
        for number in range(12):
            await site.broker.create_topic(f"dead.t{number}")
        needed = known.of(catalog.get("dead.t0"))
        async with needed.settling:
            for number in range(12):
                known.of(catalog.get(f"dead.t{number}"))
            assert len(known._indexes) == 5
            assert known.of(catalog.get("dead.t0")) is needed


async def test_an_index_that_is_forgotten_leaves_nobody_without_an_answer(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 2000, lambda n: f"reason {n}")
        index = _index(site)
        search = asyncio.create_task(index.match(DeadLetterFilter(text="nothing"), 10.0))
        await asyncio.sleep(0.005)
        index.close()
        _, complete = await search
        assert not complete


async def test_the_overview_reads_so_many_dead_letters_only(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_COUNTED_IN_ALL_MAX", 25)
    async with serving() as site:
        for topic in ("a", "b", "c"):
            await kill_many(site.broker, 9, lambda n: f"reason {n}", topic)
        assert (await get(site, "/v1/overview"))["counts"]["dead_letters"] == 30
        assert len(site.listener.dead_letters._indexes) == 2


async def test_what_is_read_at_once_is_bounded_in_records(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_reading, "_SCAN_RECORDS", 1000)
    async with serving() as site:
        await site.broker.create_topic("dead.jobs")
        core = site.listener.core
        partition = core.catalog.get("dead.jobs").partitions[0]
        for _ in range(5):
            await site.broker.publish_many("dead.jobs", [b"x"] * 700)
        stretch = await dead_reading.read_stretch(core, partition, 0)
        assert (len(stretch.records), stretch.next_offset) == (1400, 1400)
        assert await _index(site).ready(10.0)


async def test_dead_letters_that_unpack_to_much_are_unpacked_one_by_one(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 1, lambda n: f"reason {n}")
        number = site.listener.core.catalog.get("dead.jobs").number
        for offset in range(60):
            death = Death(
                topic="jobs",
                partition=0,
                offset=100 + offset,
                queue="workers",
                reason="too much",
                deliveries=1,
                time=BEGIN,
                key=b"k",
                log="other",
            )
            batch = encode_batch(
                [bytes(1_000_000)],
                keys=[death.letter_key],
                headers=[death_headers(death)],
                topic=number,
                codec=Codec.ZSTD,
            )
            site.broker.write(batch)
        await letters(site.broker, "dead.jobs", 62)
        tracemalloc.start()
        try:
            answer = await complete(site, f"{DEAD}/reasons")
            assert answer["total"] == 62
            await complete(site, f"{DEAD}/browse?text=nothing")
            assert tracemalloc.get_traced_memory()[1] < 25_000_000
        finally:
            tracemalloc.stop()


async def test_exports_that_nobody_takes_make_room_for_others(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_browse, "_SEND_SECONDS", 0.2)
    async with serving() as site:
        await kill_many(site.broker, 10, lambda n: f"reason {n}")
        with monkeypatch.context() as patch:
            patch.setattr(dead_browse, "_line", lambda _: bytes(4_000_000))
            stuck = [await asyncio.open_connection("127.0.0.1", site.listener.port) for _ in "four"]
            for reader, writer in stuck:
                # So that it stops to read, with little of it in memory.
                reader._limit = 1  # pyright: ignore[reportAttributeAccessIssue]
                writer.write(f"GET {DEAD}/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await until(lambda: site.listener.dead_letters.exports == 4)
            await until(lambda: site.listener.dead_letters.exports == 0)
        async with site.http.get(f"{DEAD}/export") as answer:
            assert (await answer.text()).count("\n") == 11
        for _, writer in stuck:
            writer.close()
