"""Server-sent events: ids that continue exactly, and streams of several topics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fanlog.format.web_positions import Vectors
from tests.client.ways import until
from tests.listeners.web.conftest import Serving
from tests.listeners.web.event_source import following
from tests.listeners.web.wire import raw
from tests.servers import find_program


async def test_an_id_continues_exactly_behind_its_event(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("t")
        async with following(site.http, "/v1/topics/t/stream") as source:
            await source.next("subscribed")
            begin = source.id
            await site.broker.publish("t", b"1")
            assert await source.text() == "1"
            first = source.id
        await site.broker.publish("t", b"2")
        async with following(site.http, "/v1/topics/t/stream", first) as source:
            assert await source.text() == "2"
            await site.broker.publish("t", b"3")
            assert await source.text() == "3"
        async with following(site.http, f"/v1/topics/t/stream?last_event_id={begin}") as source:
            assert [await source.text() for _ in range(3)] == ["1", "2", "3"]


async def test_the_answer_is_meant_for_proxies_too(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/topics/t/stream") as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["Connection"] == "close"
        assert "Transfer-Encoding" not in answer.headers


async def test_several_topics_and_patterns_share_one_id(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("one", partitions=3)
        path = "/v1/stream?topic=one&topic=room.*&topic=room.a"
        async with following(site.http, path) as source:
            told = await source.next("subscribed")
            assert told.data["targets"] == ["one", "room.*"]
            await site.broker.publish("one", b"1", partition=2)
            assert await source.text() == "1"
            await site.broker.publish("room.a", b"2")
            assert (await source.next("joined")).data["topic"] == "room.a"
            assert await source.text() == "2"
        await site.broker.publish("one", b"3", partition=0)
        await site.broker.publish("one", b"4", partition=2)
        await site.broker.publish("room.a", b"5")
        await site.broker.publish("room.b", b"6")
        async with following(site.http, path, source.id) as source:
            got = [await source.text() for _ in range(4)]
            assert sorted(got) == ["3", "4", "5", "6"]


async def test_one_stream_refuses_targets_that_overlap_in_part(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/stream?topic=a.*&topic=*.b") as answer:
        assert answer.status == 400
        assert "share topics" in (await answer.json(content_type=None))["detail"]


async def test_an_id_from_before_the_topic_misses_nothing(serving: Serving) -> None:
    async with serving() as site:
        async with following(site.http, "/v1/topics/later/stream") as source:
            await source.next("subscribed")
            assert source.id == "-"
            assert (await source.next("notice")).data["kind"] == "missing"
        await site.broker.publish("later", b"first")
        async with following(site.http, "/v1/topics/later/stream", source.id) as source:
            assert await source.text() == "first"


async def test_a_topic_that_grows_sends_its_readers_back_once(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("t", b"0")
        async with following(site.http, "/v1/topics/t/stream?start=earliest") as source:
            assert await source.text() == "0"
            await site.broker.grow_topic("t", 2)
            await source.next("reconnect")
            with pytest.raises(EOFError):
                await source.next()
        await site.broker.publish("t", b"1", partition=1)
        async with following(site.http, "/v1/topics/t/stream", source.id) as source:
            assert await source.text() == "1"
            await site.broker.publish("t", b"2", partition=0)
            assert await source.text() == "2"


async def test_a_topic_made_again_is_one_gap(serving: Serving) -> None:
    async with serving() as site:
        for i in range(3):
            await site.broker.publish("t", str(i).encode())
        path = "/v1/topics/t/stream?start=earliest"
        async with following(site.http, path) as source:
            assert [await source.text() for _ in range(3)] == ["0", "1", "2"]
            await site.broker.delete_topic("t")
            await source.next("left")
        await site.broker.create_topic("t")
        await site.broker.publish("t", b"new")
        async with following(site.http, path, source.id) as source:
            gap = (await source.next("gap")).data
            assert (gap["reason"], gap["from"].split(".")[0], gap["to"].split(".")[0]) == (
                "reset",
                "3",
                "0",
            )
            assert await source.text() == "new"
            end = source.id
        async with following(site.http, path, end) as source:
            await site.broker.publish("t", b"newer")
            event = await source.next("message")
            assert event.data["text"] == "newer"


async def test_filters_stand_in_the_address(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("t")
        path = "/v1/topics/t/stream?key=a*&header.kind=x&header.kind=y"
        async with following(site.http, path) as source:
            await source.next("subscribed")
            await site.broker.publish("t", b"1", key=b"a", headers={"kind": b"z"})
            await site.broker.publish("t", b"2", key=b"b", headers={"kind": b"x"})
            await site.broker.publish("t", b"3", key=b"ab", headers={"kind": b"y"})
            assert await source.text() == "3"


@pytest.mark.plain
async def test_what_is_wrong_has_a_status(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("t")
        for path, status in (
            ("/v1/topics/t/stream?start=never", 400),
            ("/v1/topics/t/stream?start=live&offset=1", 400),
            ("/v1/topics/t/stream?offset=5", 416),
            ("/v1/topics/t/stream?last_event_id=nonsense", 400),
            ("/v1/topics/t/stream?positions=[]", 400),
            ("/v1/topics/t/stream?unknown=1", 400),
            ("/v1/topics/none/stream?missing=fail", 404),
            ("/v1/stream", 400),
            ("/v1/stream?topic=a&topic=b&position=1.1.1", 400),
            ("/v1/topics/$user/stream", 400),
        ):
            async with site.http.get(path) as answer:
                assert answer.status == status, path


async def test_too_many_topics_for_an_id_are_refused(serving: Serving) -> None:
    async with serving(header_bytes_max=2048) as site:
        for i in range(60):
            await site.broker.create_topic(f"many.{i:04}")
        async with site.http.get("/v1/stream?topic=many.*") as answer:
            assert answer.status == 429
            assert "WebSocket" in (await answer.json(content_type=None))["detail"]


async def test_a_stream_of_one_topic_is_a_websocket_too(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("t", b"0")
        path = "/v1/topics/t/stream?start=earliest&user=bob"
        async with raw(site.listener.port, path) as client:
            assert (await client.told("welcome"))["user"] == "bob"
            assert list((await client.told())["ok"]["positions"]) == ["t/0"]
            assert (await client.told("messages"))["messages"][0]["text"] == "0"
            assert "ok" in await client.ask(op="publish", topic="other", text="x")


async def test_pages_of_allowed_origins_may_read(serving: Serving) -> None:
    origin = "https://app.example.com"
    async with serving(origins=f"{origin} https://b.example.com") as site:
        async with site.http.get("/v1/topics/t/stream", headers={"Origin": origin}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == origin
        async with site.http.get("/v1/status", headers={"Origin": origin}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            assert answer.headers["Vary"] == "Origin"
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "idempotency-key",
        }
        async with site.http.options("/v1/topics/t/messages", headers=asked) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Headers"] == "idempotency-key"
            assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        for path in ("/v1/status", "/v1/topics/t/stream"):
            async with site.http.get(path, headers={"Origin": "https://evil.com"}) as answer:
                assert answer.status == 403
                assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.plain
async def test_curl_follows_a_topic(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("t", b'{"a": 1}')
        curl = await asyncio.create_subprocess_exec(
            find_program("curl", "apt-get install curl"),
            "-sN",
            f"{site.url}/v1/topics/t/stream?start=earliest",
            stdout=asyncio.subprocess.PIPE,
        )
        assert curl.stdout is not None
        while not (line := await curl.stdout.readline()).startswith(b'data: {"topic"'):
            assert line
        assert json.loads(line.removeprefix(b"data: "))["json"] == {"a": 1}
        curl.kill()
        await curl.wait()


async def test_events_begin_with_the_latest_values(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("prices", cleanup="compact", partitions=2)
        for i in range(10):
            key = i % 4
            await site.broker.publish("prices", str(i).encode(), key=str(key).encode())
        async with following(site.http, "/v1/topics/prices/stream?latest=true") as source:
            seen: dict[str, str] = {}
            ends = 0
            while ends < 2:
                event = await source.next()
                if event.kind == "snapshot":
                    seen[event.data["key"]] = event.data["text"]
                ends += event.kind == "snapshot-end"
            assert seen == {"0": "8", "1": "9", "2": "6", "3": "7"}
        await site.broker.publish("prices", b"new", key=b"2")
        path = "/v1/topics/prices/stream?latest=true"
        async with following(site.http, path, source.id) as source:
            assert await source.text() == "new"


@pytest.mark.plain
async def test_an_origin_of_any_bytes_leaves_nothing_behind(serving: Serving) -> None:
    async with serving(origins="*") as site:
        before = len(site.listener.core.subscriptions)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.listener.port)
        writer.write(
            b"GET /v1/topics/t/stream HTTP/1.1\r\nHost: h\r\nOrigin: http://\xff\r\n"
            b"Connection: close\r\n\r\n"
        )
        assert b" 200 " in await reader.readline()
        writer.close()
        await until(lambda: site.listener.connection_count() == 0)
        assert len(site.listener.core.subscriptions) == before


async def test_a_reader_that_is_behind_has_its_ids_made_for_many_batches_at_once(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, stamped = 200, 0
    stamp = vars(Vectors)["_stamp"]

    def count(self: Vectors, *given: Any) -> Any:
        nonlocal stamped
        stamped += 1
        return stamp(self, *given)

    async with serving() as site:
        await site.broker.create_topic("t", partitions=2)
        for i in range(batches):
            # Each is a batch of its own.
            await site.broker.publish("t", str(i).encode(), partition=i % 2)
        monkeypatch.setattr(Vectors, "_stamp", count)
        path = "/v1/topics/t/stream?start=earliest"
        async with following(site.http, path) as source:
            got = [await source.next("message") for _ in range(batches)]
        assert sorted(int(event.data["text"]) for event in got) == list(range(batches))
        assert stamped < batches / 10
        # Every id in the middle continues exactly behind its event.
        for at in (batches // 4, batches // 2 + 1, batches - 3):
            async with following(site.http, path, got[at].id) as source:
                rest = [await source.text() for _ in got[at + 1 :]]
            assert sorted(rest) == sorted(event.data["text"] for event in got[at + 1 :])
