"""The dashboard's files: where they are, what the browser is told, and whether they are npm's."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from fanlog.listeners.web import dashboard_files
from tests.listeners.web.conftest import Serving

FOLDER = Path(dashboard_files.__file__).parent / "dashboard"
PAGE = {"Accept": "text/html"}


@pytest.mark.parametrize("path", ["/", "/dashboard/", "/dashboard/index.html"])
async def test_the_page_is_at_the_root_and_below_dashboard(serving: Serving, path: str) -> None:
    async with serving() as site, site.http.get(path, headers=PAGE) as answer:
        assert answer.status == 200
        assert '<script type="module" src="/dashboard/app.js">' in await answer.text()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_page_of_the_users_own_keeps_the_root(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    async with serving(folder=str(tmp_path)) as site:
        async with site.http.get("/", headers=PAGE) as answer:
            assert await answer.text() == "mine"
        async with site.http.get("/dashboard", headers=PAGE) as answer:
            assert "/dashboard/app.js" in await answer.text()


async def test_files_are_not_sent_again_if_they_have_not_changed(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.get("/dashboard/app.js") as answer:
            assert (answer.status, answer.content_type) == (200, "text/javascript")
            assert await answer.read() == (FOLDER / "app.js").read_bytes()
            tag = answer.headers["ETag"]
        async with site.http.get("/dashboard/app.js", headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/dashboard/nothing.js",
        "/dashboard/../app.py",
        "/dashboard/%2e%2e/app.py",
        "/dashboard/core",
        "/dashboard/core/",
        "/dashboard//etc/passwd",
        "/dashboard/..%2f..%2f__init__.py",
    ],
)
async def test_nothing_but_the_files_can_be_asked_for(serving: Serving, path: str) -> None:
    import yarl  # noqa: PLC0415 - a path as it is

    async with serving() as site:
        url = yarl.URL(site.url + path, encoded=True)
        async with site.http.get(url) as answer:
            assert answer.status == 404
            assert (await answer.json(content_type=None))["code"] == "no_such_path"


def test_what_is_vendored_is_what_its_list_says() -> None:
    listed = json.loads((FOLDER / "vendor" / "vendored.json").read_text())
    found = {path.name for path in (FOLDER / "vendor").iterdir()}
    named = {"vendored.json"}
    for package in listed["packages"]:
        assert package["licence"]
        for file in package["files"]:
            data = (FOLDER / "vendor" / file["as"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file["sha256"], file["as"]
            named.add(file["as"])
    assert found == named


def test_modules_import_only_files_that_are_there() -> None:
    """Nothing checks it before a browser does."""
    for module in FOLDER.rglob("*.js"):
        if module.parent.name == "vendor":
            continue
        text = module.read_text()
        for wanted in re.findall(r"""(?:from|import)\s+["']([^"']+)["']""", text):
            assert wanted.startswith("/"), f"{module.name} imports {wanted}"
            if wanted.startswith("/dashboard/"):
                there = FOLDER / wanted.removeprefix("/dashboard/")
                assert there.is_file(), f"{module.name} imports {wanted}"


def test_the_dashboard_names_no_other_host() -> None:
    for file in FOLDER.rglob("*"):
        if file.is_file() and file.parent.name != "vendor":
            hosts = re.findall(r"https?://[\w.-]+", file.read_text())
            allowed = {"http://www.w3.org", "http://127.0.0.1", "https://www.w3.org"}
            assert set(hosts) <= allowed, f"{file.name}: {hosts}"


async def test_files_are_packed_in_a_thread(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    compress = gzip.compress

    def noted(data: bytes, **options: Any) -> bytes:
        threads.add(threading.current_thread())
        return compress(data, **options)

    monkeypatch.setattr(dashboard_files.gzip, "compress", noted)
    dashboard_files._files.cache_clear()
    async with serving() as site, site.http.get("/dashboard/app.js") as answer:
        assert answer.status == 200
    assert threads
    assert threading.current_thread() not in threads
