"""HTTP itself: what is no request of ours, and who does not finish one."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from fanlog.listeners.web.origins import Origins
from tests.listeners.web.conftest import Serving


async def test_status_says_who_answers(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/status") as answer:
        assert answer.status == 200
        told = await answer.json()
        assert told["bus"] == "fanlog"
        assert told["up"] is True


async def test_a_path_that_is_not_there_is_a_problem(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/nothing") as answer:
        assert answer.status == 404
        assert answer.content_type == "application/problem+json"
        assert "/v1/openapi.json" in (await answer.json(content_type=None))["detail"]


async def test_a_wrong_method_names_the_right_ones(serving: Serving) -> None:
    async with serving() as site, site.http.delete("/v1/status") as answer:
        assert answer.status == 405
        assert "GET" in answer.headers["Allow"]


async def test_an_unknown_parameter_is_answered_with_the_known_ones(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/status?verbose=1") as answer:
        assert answer.status == 400
        assert "'verbose'" in (await answer.json(content_type=None))["detail"]


async def test_a_wrong_value_is_answered_with_the_known_ones(serving: Serving) -> None:
    path = "/v1/topics/orders/messages?start=never"
    async with serving() as site, site.http.get(path) as answer:
        assert answer.status == 400
        detail = (await answer.json(content_type=None))["detail"]
        assert detail.endswith("invalid value 'never'; known: earliest, latest.")


async def test_an_unknown_field_is_answered_with_the_known_ones(serving: Serving) -> None:
    body = '{"retention": 5}'
    async with serving() as site, site.http.patch("/v1/topics/orders", data=body) as answer:
        assert answer.status == 400
        detail = (await answer.json(content_type=None))["detail"]
        assert "unknown field retention; known: " in detail
        assert "retention_seconds" in detail


async def test_a_body_that_is_not_json_names_the_reference(serving: Serving) -> None:
    async with (
        serving() as site,
        site.http.post("/v1/users/ann/messages", data="hi") as answer,
    ):
        assert answer.status == 400
        assert "/v1/reference" in (await answer.json(content_type=None))["detail"]


async def test_who_never_finishes_a_request_is_closed(serving: Serving) -> None:
    async with serving(header_timeout_seconds=0.2) as site:
        port = site.listener.port
        for begin in (b"", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert site.listener.connection_count() <= 1


async def test_one_connection_too_many_is_told_so(serving: Serving) -> None:
    async with serving(connections_max=1) as site:
        port = site.listener.port
        _, first = await asyncio.open_connection("127.0.0.1", port)
        while not site.listener.connection_count():  # noqa: ASYNC110 - a counter, no event
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = await reader.read()
        assert b"503" in said
        assert b"web.connections_max" in said
        first.close()
        writer.close()


@pytest.mark.parametrize("path", ["/v1/status", "/v1/topics/t/messages", "/v1/ws"])
async def test_a_page_whose_name_leads_to_this_machine_is_refused(
    serving: Serving, path: str
) -> None:
    """Of a host whose owner lets its name point to 127.0.0.1 for a while: for the browser it is
    the page's own host."""
    async with serving() as site:
        host = f"evil.example:{site.listener.port}"
        for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
            async with site.http.get(path, headers=headers) as answer:
                assert answer.status == 403
                assert "web.origins" in (await answer.json(content_type=None))["detail"]


async def test_names_of_this_machine_and_of_a_proxy_are_let_in(serving: Serving) -> None:
    async with serving() as site:
        port = site.listener.port
        for host in (f"localhost:{port}", f"a.localhost:{port}", f"[::1]:{port}", "chat.example"):
            headers = {"Host": host, "Origin": f"http://{host}"}
            async with site.http.get("/v1/status", headers=headers) as answer:
                assert answer.status == 200
    async with serving(origins="*") as site:
        headers = {"Host": f"broker.lan:{site.listener.port}"}
        async with site.http.get("/v1/status", headers=headers) as answer:
            assert answer.status == 200


def test_a_name_that_is_listed_is_let_in() -> None:
    origins = Origins("http://broker.lan:7422")
    origins.listens_on("127.0.0.1", 7422)
    assert origins.allow_host("Broker.lan:7422")
    assert not origins.allow_host("other.lan:7422")
    origins.listens_on("0.0.0.0", 7422)
    assert origins.allow_host("other.lan:7422")
