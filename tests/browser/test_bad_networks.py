"""What a real browser gets through bad networks: tabs that sleep, proxies without WebSocket."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from tests.browser.blocking_proxy import blocking_proxy
from tests.browser.conftest import PATIENCE_MS, Chromium, new_context
from tests.listeners.web.conftest import Serving, serving

__all__ = ["serving"]

PAGE = """<!doctype html><title>Page</title><script type="module">
import { connect } from "/fanlog.js";
window.connect = connect;
window.follow = (options, subscribe = {}) => {
  window.client = connect(options);
  window.seen = [];
  window.gaps = [];
  window.states = [];
  client.addEventListener("statechange", (event) => states.push(event.detail.state));
  client.addEventListener("gap", (event) => gaps.push(event.detail));
  window.news = client.subscribe("news", subscribe, (message) => seen.push(message.value));
  return news.ready.then(() => client.transport);
};
</script>"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "index.html").write_text(PAGE)
    return str(tmp_path)


async def opened(browser: Browser, url: str) -> Page:
    context = await new_context(browser)
    page = await context.new_page()
    await page.goto(url)
    await until(page, "() => !!window.follow")
    return page


async def until(page: Page, condition: str, given: object = None) -> None:
    await page.wait_for_function(condition, arg=given, timeout=PATIENCE_MS)


async def seen(page: Page, count: int) -> list[object]:
    await until(page, "count => seen.length >= count", count)
    return await page.evaluate("seen")


async def test_a_tab_that_slept_gets_what_it_missed(
    serving: Serving, chromium: Chromium, folder: str
) -> None:
    async with (
        serving(folder=folder) as site,
        chromium.driven() as browser,
        blocking_proxy(site.listener.port) as proxy,
    ):
        proxy.blocks = False
        page = await opened(browser, proxy.url)
        assert await page.evaluate("follow({ wakeTimeoutMs: 500, backoffMinMs: 50 })") == (
            "websocket"
        )
        await site.broker.publish("news", b"1")
        assert await seen(page, 1) == ["1"]
        tools = await page.context.new_cdp_session(page)
        await tools.send("Page.setWebLifecycleState", {"state": "frozen"})
        for i in range(2, 50):
            await site.broker.publish("news", str(i).encode())
        # The laptop was closed for so long that the server gave up on the connection.
        await page.context.set_offline(True)
        proxy.cut()
        await site.broker.publish("news", b"50")
        await page.context.set_offline(False)
        await tools.send("Page.setWebLifecycleState", {"state": "active"})
        assert await seen(page, 50) == [str(i) for i in range(1, 51)]
        assert await page.evaluate("gaps") == []


async def test_without_websocket_a_page_uses_events_and_posts(
    serving: Serving, chromium: Chromium, folder: str
) -> None:
    async with (
        serving(folder=folder) as site,
        chromium.driven() as browser,
        blocking_proxy(site.listener.port) as proxy,
    ):
        page = await opened(browser, proxy.url)
        assert await page.evaluate("follow({ backoffMinMs: 50, upgradeMs: 200 })") == "sse"
        await site.broker.publish("news", b'{"n": 1}')
        assert await seen(page, 1) == [{"n": 1}]
        published = await page.evaluate("client.publish('news', { n: 2 })")
        assert published["offset"] == 1
        await seen(page, 2)
        proxy.cut()
        await site.broker.publish("news", b'{"n": 3}')
        assert await seen(page, 3) == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert proxy.refused > 0
        proxy.blocks = False
        await until(page, "() => client.transport === 'websocket'")
        await site.broker.publish("news", b'{"n": 4}')
        assert await seen(page, 4) == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
        assert await page.evaluate("gaps") == []


async def test_an_event_source_continues_by_itself(
    serving: Serving, chromium: Chromium, folder: str
) -> None:
    async with (
        serving(folder=folder) as site,
        chromium.driven() as browser,
        blocking_proxy(site.listener.port) as proxy,
    ):
        await site.broker.publish("news", b"1")
        page = await opened(browser, proxy.url)
        await page.evaluate(
            "() => { window.seen = []; window.source = new EventSource("
            "'/v1/topics/news/stream?start=earliest');"
            "source.onmessage = e => seen.push(JSON.parse(e.data).text) }"
        )
        assert await seen(page, 1) == ["1"]
        for i in range(2, 4):
            proxy.cut()
            await site.broker.publish("news", str(i).encode())
            assert await seen(page, i) == [str(n) for n in range(1, i + 1)]
