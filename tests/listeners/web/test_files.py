"""What the listener serves as files: the browser client, and a folder of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.errors import ConfigError
from tests.listeners.web.conftest import Serving


async def test_the_browser_client_is_served_and_cached(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.get("/fanlog.js") as answer:
            text = await answer.text()
            assert answer.content_type == "text/javascript"
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
            assert answer.headers["Content-Encoding"] == "gzip"
            etag = answer.headers["ETag"]
        assert "export function connect(" in text
        async with site.http.get("/fanlog.js", headers={"If-None-Match": etag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with site.http.get("/fanlog.js", headers={"Accept-Encoding": "identity"}) as answer:
            assert await answer.text() == text
            assert answer.headers["Vary"] == "Accept-Encoding"
        async with site.http.get("/fanlog.d.ts") as answer:
            assert "export declare function connect(" in await answer.text()


async def test_pages_of_any_host_may_load_the_browser_client(serving: Serving) -> None:
    page = {"Origin": "https://elsewhere.example"}
    async with serving() as site:
        async with site.http.get("/fanlog.js", headers=page) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "*")
        async with site.http.get("/v1/status", headers=page) as answer:
            assert answer.status == 403


async def test_without_a_folder_the_front_page_is_the_brokers(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.get("/", headers={"Accept": "text/html"}) as answer:
            assert "/v1/reference" in await answer.text()
        async with site.http.get("/") as answer:
            assert (await answer.json())["openapi"] == "/v1/openapi.json"


async def test_a_folder_is_served_and_nothing_beside_it(serving: Serving, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    (folder / "images").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Hello</h1>")
    (folder / "images" / "a.svg").write_text("<svg/>")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    async with serving(folder=str(folder)) as site:
        async with site.http.get("/") as answer:
            assert (answer.content_type, await answer.text()) == ("text/html", "<h1>Hello</h1>")
        async with site.http.get("/images/a.svg") as answer:
            assert answer.content_type == "image/svg+xml"
        for path in ("/missing", "/images", "/link.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt"):
            async with site.http.get(path) as answer:
                assert answer.status in (403, 404), path
                assert "secret" not in (await answer.text()).replace("/secret.txt", ""), path
        async with site.http.get("/v1/status") as answer:
            assert answer.status == 200
        async with site.http.get("/fanlog.js") as answer:
            assert answer.status == 200


async def test_a_missing_folder_is_named(serving: Serving, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"web\.folder"):
        async with serving(folder=str(tmp_path / "missing")):
            pass
