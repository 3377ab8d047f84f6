"""Publishing over REST: what each kind of body becomes, and retries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.config import Config
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.wire import raw

URL = "/v1/topics/orders/messages"
# What `curl -d` says.
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def stored(site: Site, topic: str = "orders") -> list[dict[str, Any]]:
    async with site.http.get(f"/v1/topics/{topic}/messages?limit=1000") as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["messages"]


def fields(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what the broker has added."""
    return {n: v for n, v in message.items() if n not in ("topic", "partition", "offset", "time")}


@pytest.mark.parametrize(
    ("body", "sent", "expected"),
    [
        (b"hello", FORM, {"text": "hello"}),
        (
            b'{"json":{"tea":1}}',
            FORM,
            {"json": {"tea": 1}, "headers": {"content-type": "application/json"}},
        ),
        (
            b'{"key":"a","text":"x","headers":{"b":"c"}}',
            {"Content-Type": "application/json; charset=utf-8"},
            {"key": "a", "text": "x", "headers": {"b": "c"}},
        ),
        (b'{"key_base64":"/w==","base64":"/w=="}', FORM, {"key_base64": "/w==", "base64": "/w=="}),
        (b'{"key":"a","deleted":true}', FORM, {"key": "a", "deleted": True}),
        (
            b"\xff\x00",
            {"Content-Type": "application/octet-stream", "Fanlog-Key": "k\u00e9"},
            {
                "key": "ké",
                "base64": "/wA=",
                "headers": {"content-type": "application/octet-stream"},
            },
        ),
        (
            b'{"text":"x"}',
            {"Content-Type": "text/plain", "Fanlog-Header-Trace": "t1"},
            {"text": '{"text":"x"}', "headers": {"content-type": "text/plain", "trace": "t1"}},
        ),
    ],
    ids=["form", "form json", "json", "base64", "tombstone", "octets", "plain"],
)
async def test_a_body_becomes_a_message(
    serving: Serving, body: bytes, sent: dict[str, str], expected: dict[str, Any]
) -> None:
    async with serving() as site:
        async with site.http.post(URL, data=body, headers=sent) as answer:
            assert answer.status == 200, await answer.text()
            (told,) = (await answer.json())["published"]
            assert (told["topic"], told["partition"], told["offset"]) == ("orders", 0, 0)
        assert [fields(message) for message in await stored(site)] == [expected]


async def test_raw_takes_json_as_it_is(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.post(f"{URL}?raw=true", json={"id": 1}) as answer:
            assert answer.status == 200
        async with site.http.post(f"{URL}?raw=true", data=b"") as answer:
            assert answer.status == 200
        found = [fields(message) for message in await stored(site)]
        assert found[0] == {"json": {"id": 1}, "headers": {"content-type": "application/json"}}
        assert found[1]["text"] == ""


async def test_many_messages_keep_their_order(serving: Serving) -> None:
    async with serving() as site:
        body = {"messages": [{"text": str(number)} for number in range(500)]}
        async with site.http.post(URL, json=body) as answer:
            told = (await answer.json())["published"]
        assert [one["offset"] for one in told] == list(range(500))
        assert [message["text"] for message in await stored(site)] == list(map(str, range(500)))


async def test_several_topics_at_once(serving: Serving) -> None:
    async with serving() as site:
        body = {
            "publish": [
                {"topic": "a", "text": "1"},
                {"topic": "b", "messages": [{"text": "2"}, {"text": "3"}]},
                {"topic": "a", "text": "4"},
            ]
        }
        async with site.http.post("/v1/publish", json=body) as answer:
            told = [(one["topic"], one["offset"]) for one in (await answer.json())["published"]]
        assert told == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
        assert [message["text"] for message in await stored(site, "a")] == ["1", "4"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"key":"order-1","payload":"hello"}', "payload"),
        (b'{"id":1}', "?raw=true"),
        (b'[{"text":"a"}]', "messages"),
        (b'{"text":"a","json":1}', "exactly one"),
        (b'{"text":"a","messages":[{"text":"b"}]}', "into the list"),
        (b'{"messages":[]}', "empty"),
        (b"{", "not JSON"),
        (b"", "empty"),
    ],
)
async def test_a_wrong_body_says_how_it_is_right(serving: Serving, body: bytes, said: str) -> None:
    async with serving() as site:
        async with site.http.post(URL, data=body, headers=FORM) as answer:
            assert answer.status == 400
            assert said in (await answer.json(content_type=None))["detail"]
        async with site.http.get("/v1/topics/orders") as answer:
            assert answer.status == 404


async def test_of_a_wrong_list_nothing_is_published(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.create_topic("orders", message_bytes_max=100)
        body = {"messages": [{"text": "a"}, {"text": "b" * 200}, {"text": "c"}]}
        for headers in ({}, {"Idempotency-Key": "k"}):
            async with site.http.post(URL, json=body, headers=headers) as answer:
                assert answer.status == 413, await answer.text()
        async with site.http.post(f"{URL}?partition=1", data="x") as answer:
            assert answer.status == 404
        assert await stored(site) == []


async def test_a_retry_publishes_nothing_again(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.create_topic("orders", partitions=4)
        body = {"messages": [{"key": f"k{number}", "text": str(number)} for number in range(20)]}
        body["messages"].append({"text": "no key"})
        told: list[Any] = []
        for _ in range(3):
            async with site.http.post(URL, json=body, headers={"Idempotency-Key": "u-1"}) as answer:
                assert answer.status == 200, await answer.text()
                told.append(await answer.json())
        assert told[0] == told[1] == told[2]
        assert len(await stored(site)) == 21


async def test_another_body_under_a_key_is_refused(serving: Serving) -> None:
    async with serving() as site:
        key = {"Idempotency-Key": '"u-1"'}
        first = {"messages": [{"text": "a"}, {"text": "b"}]}
        async with site.http.post(URL, json=first, headers=key) as answer:
            assert answer.status == 200
        for other in (
            {"text": "x"},
            {"text": "a"},
            {"messages": [{"text": "a"}, {"text": "b"}, {"text": "c"}]},
            {"messages": [{"text": "a"}, {"key": "k", "text": "b"}]},
            {"messages": [{"text": "a"}, {"text": "b", "headers": {"h": "1"}}]},
        ):
            async with site.http.post(URL, json=other, headers=key) as answer:
                assert answer.status == 422, other
                assert (await answer.json(content_type=None))["code"] == "key_reused"
        assert len(await stored(site)) == 2


async def test_retries_at_the_same_time_store_one(serving: Serving) -> None:
    # With TLS, so many first shake hands, all in this process.
    async with serving(header_timeout_seconds=90) as site:

        async def post() -> Any:
            headers = {"Idempotency-Key": "u-1"}
            async with site.http.post(URL, data=b"hello", headers=headers) as answer:
                return answer.status, await answer.text()

        told = await asyncio.gather(*(post() for _ in range(80)))
        assert len(set(told)) == 1
        assert told[0][0] == 200
        assert len(await stored(site)) == 1


async def test_a_retry_after_a_restart_publishes_nothing_again(tmp_path: Path) -> None:
    config = Config()
    config = msgspec.structs.replace(config, web=msgspec.structs.replace(config.web, port=0))
    told: list[Any] = []
    for _ in range(3):
        async with fanlog.Broker(tmp_path / "data", config) as broker:
            listener = await broker.listen_web()
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
                headers = {"Idempotency-Key": "u-1"}
                async with http.post(URL, data="hello", headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    told.append(await answer.json())
                async with http.get(URL) as answer:
                    assert len((await answer.json())["messages"]) == 1
    assert told[0] == told[1] == told[2]


async def test_a_bad_idempotency_key_is_refused(serving: Serving) -> None:
    async with serving() as site:
        for key in ('""', "x" * 256):
            headers = {"Idempotency-Key": key}
            async with site.http.post(URL, data="hello", headers=headers) as answer:
                assert answer.status == 400


async def test_a_topic_that_was_deleted_is_created_again(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        await client.told("welcome")
        path = "/v1/topics/t/messages"
        for number in range(3):
            async with site.http.post(path, data=str(number)) as answer:
                assert answer.status == 200
            async with site.http.get(path) as answer:
                assert [one["text"] for one in (await answer.json())["messages"]] == [str(number)]
            await site.broker.delete_topic("t")
        assert "ok" in await client.ask(op="publish", topic="t", text="a")


@pytest.mark.plain
async def test_a_content_type_may_be_any_bytes(serving: Serving) -> None:
    async with serving() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.listener.port)
        writer.write(
            b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: h\r\nContent-Type: text/\xff\r\n"
            b"Connection: close\r\nContent-Length: 2\r\n\r\nhi"
        )
        assert b" 200 " in await reader.readline()
        writer.close()
        async with site.http.get("/v1/topics/t/messages") as answer:
            (message,) = (await answer.json())["messages"]
        assert message["headers_base64"] == {"content-type": "dGV4dC//"}
