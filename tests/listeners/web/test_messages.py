"""Reading over REST."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import zstandard

from fanlog.format.batch import Batch
from fanlog.format.web import messages_json
from fanlog.listeners.web import message_pages
from tests.awaited import awaited
from tests.format.crafted import column, crafted
from tests.listeners.web.conftest import Serving, Site

URL = "/v1/topics/orders/messages"
DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data),
}


async def get(site: Site, path: str, status: int = 200) -> Any:
    async with site.http.get(path) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json(content_type=None)


async def fill(site: Site, count: int, **settings: Any) -> None:
    client = site.broker
    await client.create_topic("orders", **settings)
    for number in range(count):
        await client.publish("orders", str(number), key=f"k{number}")


async def test_pages_have_each_message_once_in_the_order_of_time(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 100, partitions=4)
        path, found = f"{URL}?limit=7", []
        while True:
            page = await get(site, path)
            found += [message["text"] for message in page["messages"]]
            path = page["next"]
            if page["at_end"]:
                break
            assert len(page["messages"]) == 7
        assert found == [str(number) for number in range(100)]
        assert (await get(site, path))["messages"] == []


async def test_a_page_begins_where_it_is_asked_to(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 10)
        parted = "/v1/topics/orders/partitions/0/messages"
        for path, first in (
            (f"{URL}?offset=4", 4),
            (f"{parted}?offset=4&limit=10", 4),
            (f"{URL}?start=earliest", 0),
            (f"{URL}?time=10m", 0),
            (f"{URL}?time=2020-01-01T00:00:00Z", 0),
            (f"{URL}?last=3", 7),
            (f"{URL}?partition=0&offset=9", 9),
        ):
            page = await get(site, path)
            assert page["messages"][0]["offset"] == first, path
        assert (await get(site, f"{URL}?start=latest"))["messages"] == []
        assert (await get(site, f"{URL}?offset=10"))["messages"] == []
        assert (await get(site, f"{URL}?offset=11", 416))["code"] == "offset_out_of_range"
        assert (await get(site, f"{URL}?partition=1", 404))["code"] == "partition_not_found"
        for wrong in ("offset=-1", "time=x", "time=5", "time=0.5", "start=x", "position=x"):
            assert (await get(site, f"{URL}?{wrong}", 400))["code"] == "invalid_argument", wrong


async def test_the_last_messages_are_those_of_all_partitions(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 40, partitions=4)
        page = await get(site, f"{URL}?last=5")
        assert [message["text"] for message in page["messages"]] == ["35", "36", "37", "38", "39"]
        assert len((await get(site, f"{URL}?last=5&partition=1"))["messages"]) == 5


async def test_a_long_poll_ends_with_the_message_it_waits_for(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 3, partitions=2)
        end = (await get(site, f"{URL}?start=latest"))["next"]
        waiting = asyncio.ensure_future(get(site, f"{end}&wait_seconds=30"))
        core = site.listener.bus.core
        while not any(awaited(p) for p in core.catalog.get("orders").partitions):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with site.http.post(URL, data="new") as answer:
            assert answer.status == 200
        page = await waiting
        assert [message["text"] for message in page["messages"]] == ["new"]
        assert "wait_seconds" in page["next"]
        assert not any(awaited(p) for p in core.catalog.get("orders").partitions)


async def test_a_long_poll_without_messages_ends(serving: Serving) -> None:
    async with serving(wait_seconds_max=0.05) as site:
        await fill(site, 1)
        page = await get(site, f"{URL}?start=latest&wait_seconds=3000")
        assert page["messages"] == []
        assert page["at_end"]


async def test_a_position_of_a_topic_that_was_made_again_is_a_gap(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 5)
        end = (await get(site, URL))["next"]
        async with site.http.delete("/v1/topics/orders"):
            pass
        await fill(site, 2)
        page = await get(site, end)
        assert page["gaps"] == [{"partition": 0, "from": 5, "to": 0, "reason": "reset"}]
        assert len(page["messages"]) == 2


async def test_what_has_not_changed_is_not_sent_again(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 5)
        async with site.http.get(URL) as answer:
            tag = answer.headers["ETag"]
            assert answer.headers["Cache-Control"] == "private, no-cache"
        async with site.http.get(URL, headers={"If-None-Match": f'"x", {tag}'}) as answer:
            assert answer.status == 304
            assert await answer.read() == b""
        async with site.http.post(URL, data="new"):
            pass
        async with site.http.get(URL, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 200


async def test_a_large_message_comes_alone(serving: Serving) -> None:
    async with serving(read_bytes_max=4096) as site:
        client = site.broker
        for size in (10, 500_000, 10):
            await client.publish("orders", "x" * size)
        page = await get(site, URL)
        sizes = [len(message["text"]) for message in page["messages"]]
        assert sizes == [10, 500_000]
        page = await get(site, page["next"])
        assert [len(message["text"]) for message in page["messages"]] == [10]


async def test_answers_are_compressed_for_who_asks(serving: Serving) -> None:
    async with (
        serving() as site,
        aiohttp.ClientSession(site.url, auto_decompress=False) as as_sent,
    ):
        client = site.broker
        await client.publish("orders", "x" * 2000)
        await client.publish("large", "y" * 200_000)
        for topic in ("orders", "large"):
            path = f"/v1/topics/{topic}/messages"
            plain = await get(site, path)
            for encoding, decode in DECODERS.items():
                headers = {"Accept-Encoding": encoding}
                async with as_sent.get(path, headers=headers) as answer:
                    assert answer.headers["Content-Encoding"] == encoding
                    assert answer.headers["Vary"] == "Accept-Encoding"
                    data = await answer.read()
                    assert len(data) < 1000
                    assert msgspec.json.decode(decode(data)) == plain
            async with site.http.get(path, headers={"Accept-Encoding": "br"}) as answer:
                assert "Content-Encoding" not in answer.headers
        async with site.http.get("/v1/status", headers={"Accept-Encoding": "gzip"}) as answer:
            assert "Content-Encoding" not in answer.headers


async def test_a_page_that_can_not_change_may_be_kept(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        await fill(site, 10, durability="fsync")
        first = await get(site, f"{URL}?limit=3")
        for path, kept in ((f"{URL}?limit=3", False), (first["next"], True)):
            async with site.http.get(path) as answer:
                assert ("immutable" in answer.headers["Cache-Control"]) == kept
        await site.broker.alter_topic("orders", cleanup="compact")
        async with site.http.get(first["next"]) as answer:
            assert "immutable" not in answer.headers["Cache-Control"]


async def test_a_large_batch_is_rendered_once_for_all_its_pages(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []

    def count(batch: Batch, **options: Any) -> list[bytes]:
        rendered.append(batch.base_offset)
        return messages_json(batch, **options)

    monkeypatch.setattr(message_pages, "messages_json", count)
    async with serving() as site:
        body = {"messages": [{"text": str(number)} for number in range(1000)]}
        async with site.http.post(URL, json=body, headers={"Idempotency-Key": "one-batch"}):
            pass
        path, found = f"{URL}?limit=30", []
        while True:
            page = await get(site, path)
            found += [int(message["text"]) for message in page["messages"]]
            path = page["next"]
            if page["at_end"]:
                break
        assert found == list(range(1000))
        assert rendered == [0]


async def test_what_can_not_be_read_is_a_gap_in_its_place(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 3)
        topic = site.listener.core.catalog.get("orders")
        site.broker.write(crafted(column([0, 9, 2], b"xy"), count=2, topic=topic.number))
        await site.broker.publish("orders", "last")
        page = await get(site, URL)
        assert page["gaps"] == [{"partition": 0, "from": 3, "to": 5, "reason": "unreadable"}]
        assert [message["text"] for message in page["messages"]] == ["0", "1", "2", "last"]
        page = await get(site, f"{URL}?limit=3")
        assert "gaps" not in page
        page = await get(site, page["next"])
        assert len(page["gaps"]) == len(page["messages"]) == 1
