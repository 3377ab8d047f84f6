"""The OpenAPI document, the reference page, and the status."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import msgspec
import pytest

from fanlog.listeners.web import pages
from fanlog.listeners.web.app import ROUTES
from fanlog.listeners.web.compression import choose_encoding
from fanlog.listeners.web.openapi import TAGS, make_document, operation_id
from tests.awaited import awaited
from tests.listeners.web.conftest import Serving


def refs(schema: Any) -> list[str]:
    """All references in a document."""
    if isinstance(schema, dict):
        found = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
        return found + [ref for entry in schema.values() for ref in refs(entry)]
    if isinstance(schema, list):
        return [ref for entry in schema for ref in refs(entry)]
    return []


def test_the_document_is_whole() -> None:
    document = make_document(ROUTES)
    ids = [operation_id(route) for route in ROUTES]
    assert len(ids) == len(set(ids))
    for ref in refs(document):
        found: Any = document
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert "400" in operation["responses"], (method, path)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    assert parameter.get("description"), (path, parameter["name"])


async def test_the_document_is_made_once_and_only_if_somebody_asks(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []

    def make(*given: Any, **named: Any) -> Any:
        made.append(threading.current_thread())
        return make_document(*given, **named)

    monkeypatch.setattr(pages, "make_document", make)
    async with serving() as site:
        assert (await site.http.get("/v1/status")).status == 200
        assert not made
        answers = await asyncio.gather(
            *(site.http.get(f"/v1/{path}") for path in ("openapi.json", "reference") * 3)
        )
        assert {answer.status for answer in answers} == {200}
        (thread,) = made
        assert thread is not threading.main_thread()


async def test_tools_and_people_find_the_same(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.get("/v1/openapi.json") as answer:
            document = await answer.json()
            tag = answer.headers["ETag"]
        assert document["openapi"] == "3.1.0"
        async with site.http.get("/v1/openapi.json", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        async with site.http.get("/v1/reference") as answer:
            page = await answer.text()
            policy = answer.headers["Content-Security-Policy"]
        for route in ROUTES:
            assert f'id="{operation_id(route)}"' in page
        assert f"curl http://127.0.0.1:{site.listener.port}/v1/status" in page
        # It loads nothing from elsewhere, and holds nothing that its own policy forbids.
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert re.findall(r'(?:src|href)="(?!#|/)([^"]*)"', page) == ["data:,"]
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", page)
        for name in re.findall(r'(?:src|href)="(/v1/reference\.\w+)"', page):
            async with site.http.get(name) as answer:
                assert answer.status == 200


async def test_a_page_shows_the_host_and_no_tags_of_it(serving: Serving) -> None:
    headers = {"Host": 'x"><b>'}
    async with serving() as site, site.http.get("/v1/reference", headers=headers) as answer:
        assert "<b>" not in await answer.text()


async def test_status_and_health_say_503_while_draining(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.get("/v1/status") as answer:
            told = await answer.json()
            assert (answer.status, told["state"]) == (200, "ok")
            assert told["broker"]["release"] == told["release"]
        async with site.http.get("/v1/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"state": "ok"})
        site.listener.core.draining = True
        for path in ("/v1/status", "/v1/health"):
            async with site.http.get(path) as answer:
                assert (answer.status, (await answer.json())["state"]) == (503, "draining")
                assert answer.headers["Retry-After"]


async def test_a_long_poll_does_not_hold_up_a_drain(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders")

        async def poll() -> int:
            url = "/v1/topics/orders/messages?wait_seconds=30"
            async with site.http.get(url) as answer:
                return answer.status

        polling = asyncio.ensure_future(poll())
        partition = site.listener.core.catalog.get("orders").partitions[0]
        while not awaited(partition):  # noqa: ASYNC110 - a counter, no event
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        await site.listener.drain(loop.time() + 3600)
        assert await polling == 200


async def test_what_is_no_http_gets_a_problem(serving: Serving) -> None:
    async with serving(header_bytes_max=1024) as site:
        for sent in (b"\x16\x03\x01garbage\r\n\r\n", b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.listener.port)
            writer.write(sent)
            said = await reader.read()
            assert b"400 Bad Request" in said
            problem = msgspec.json.decode(said.partition(b"\r\n\r\n")[2])
            assert problem["code"] == "bad_http"
            writer.close()


async def test_a_bus_that_is_not_fanlog_says_what_it_can_not_do(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        with monkeypatch.context() as patched:
            patched.setattr(site.listener.bus, "client", None)
            for path in ("/v1/topics", "/v1/topics/orders/messages"):
                async with site.http.get(path) as answer:
                    assert answer.status == 501
                    problem = await answer.json(content_type=None)
                    assert problem["code"] == "not_supported"
                    assert "ask a Fanlog broker" in problem["detail"]
            async with site.http.get("/v1/status") as answer:
                assert (answer.status, (await answer.json())["broker"]) == (200, None)


def test_every_chapter_of_the_reference_says_what_it_is_about() -> None:
    assert {route.tag for route in ROUTES} <= set(TAGS)


async def test_head_answers_as_get_does_without_a_body(serving: Serving) -> None:
    async with serving() as site, site.http.head("/v1/topics") as answer:
        assert answer.status == 200
        assert int(answer.headers["Content-Length"]) > 0
        assert await answer.read() == b""


def test_the_encoding_that_a_client_likes_best_is_used() -> None:
    assert choose_encoding("") == ""
    assert choose_encoding("identity") == ""
    assert choose_encoding("gzip;q=0") == ""
    assert choose_encoding("*") == "zstd"
    assert choose_encoding("deflate, gzip;q=0.8") == "deflate"
    assert choose_encoding("gzip;q=x, deflate;q=0.1") == "deflate"
