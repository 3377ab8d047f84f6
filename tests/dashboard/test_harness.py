"""The fixtures themselves: what they put into a broker, and which faults of a page they find."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest

from fanlog.identity import Role
from tests.dashboard.boards import Faults, axe
from tests.dashboard.conftest import Dashboard

_INLINE = "Object.assign(document.createElement('script'), {textContent: '1'})"
PAGE = "<!doctype html><html lang='en'><title>Page</title><body><h1>Page</h1>"


async def test_data_flows(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board:
        assert board.data is not None
        names = {topic.name for topic in await board.broker.topics()}
        assert names >= {"orders", "payments", "emails", "dead.emails", "chat.room.lobby"}
        groups = {group.name: group for group in await board.broker.groups.list()}
        assert groups.keys() >= {"billing", "archive", "mailers"}
        people = await board.broker.web.presence("chat.room.lobby")
        assert people.count == 4
        async with board.client() as client:
            before = board.data.published
            async with client.subscribe("orders") as orders:
                await anext(aiter(orders))
            assert board.data.published >= before


async def test_visitors_are_logged_in(dashboard: Dashboard) -> None:
    async with dashboard(auth=True, flowing=True) as board:
        await board.user("ann", Role.VIEWER)
        for name in ("admin", "ann"):
            async with board.visit("/", wait=False, login=name) as page:
                who = await page.evaluate("async () => (await fetch('/v1/whoami')).json()")
                assert (who["user"], who["auth"]) == (name, True)
        async with board.client() as client:
            assert (await client.describe_topic("orders")).name == "orders"


@pytest.mark.parametrize(
    ("script", "event", "fault"),
    [
        ("console.error('no')", "console", "console: no"),
        ("setTimeout(() => { throw new Error('thrown') })", "pageerror", "error: thrown"),
        ("fetch('https://example.com/').catch(() => 0)", "console", "Connecting to .https://exa"),
        ("fetch('/v1/topics/none').catch(() => 0)", "console", "404"),
        (f"document.head.append({_INLINE})", "console", "Content Security Policy"),
    ],
)
async def test_faults_of_a_page_are_found(
    dashboard: Dashboard, script: str, event: Literal["console", "pageerror"], fault: str
) -> None:
    async with dashboard() as board:
        with pytest.raises(AssertionError, match=fault):
            async with board.visit("/", wait=False) as page, page.expect_event(event):
                await page.evaluate(f"() => {{ {script}; }}")


async def test_axe_finds_what_is_wrong(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        page = await board.browser.new_page()
        await page.set_content(PAGE)
        await axe(page)
        await page.set_content(PAGE + "<button></button><img src='data:,'>")
        with pytest.raises(AssertionError, match="button-name"):
            await axe(page)
        await page.close()


@pytest.mark.parametrize("colours_only", [False, True])
async def test_axe_finds_the_one_text_that_is_pale(
    dashboard: Dashboard, colours_only: bool
) -> None:
    rows = "<p>A row</p>" * 500
    pale = [
        "<p style='color: #ccc'>A row</p>",
        "<div style='background: #444'><p>A row</p></div>",
        "<div style='opacity: 0.3'><p>A row</p></div>",
        "<div style='color: #ccc'>" + "<b>A row</b>" * 500 + "</div>",
    ]
    async with dashboard() as board:
        page = await board.browser.new_page()
        await page.set_content(f"{PAGE}<main>{rows}</main>")
        await axe(page, colours_only=colours_only)
        for one in pale:
            await page.set_content(f"{PAGE}<main>{rows}{one}{rows}</main>")
            with pytest.raises(AssertionError, match="color-contrast"):
                await axe(page, colours_only=colours_only)
        await page.close()


def test_answers_that_a_test_expects_are_no_faults() -> None:
    heard: dict[str, list] = {}

    class Page:
        def on(self, event: str, call: object) -> None:
            heard.setdefault(event, []).append(call)

    class Message:
        type = "error"
        location: ClassVar = {"url": "http://host/"}
        text = "Failed to load resource: the server responded with a status of 403 (Forbidden)"

    faults = Faults()
    faults.watch(Page(), "host", {403}, allow_lost=False)  # type: ignore[arg-type]
    heard["console"][0](Message())
    assert faults == []
    Message.text = Message.text.replace("403", "404")
    heard["console"][0](Message())
    assert len(faults) == 1
