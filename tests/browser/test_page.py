"""A page of the user's own, in a real browser: the broker serves it, and the client's module."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.release import VERSION
from tests.browser.conftest import PATIENCE_MS, Chromium, new_context
from tests.listeners.web.conftest import serving

__all__ = ["serving"]

PAGE = """<!doctype html><title>Page</title><script type="module">
import { connect, VERSION } from "/fanlog.js";
window.connect = connect;
document.title = `loaded ${VERSION}`;
</script>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(PAGE)
    return tmp_path


async def test_a_page_imports_the_client_from_the_broker(
    serving, chromium: Chromium, folder: Path
) -> None:
    async with serving(folder=str(folder)) as site, chromium.driven() as browser:
        context = await new_context(browser)
        page = await context.new_page()
        await page.goto(site.url)
        await page.wait_for_function("document.title.startsWith('loaded ')", timeout=PATIENCE_MS)
        assert await page.title() == f"loaded {VERSION}"
