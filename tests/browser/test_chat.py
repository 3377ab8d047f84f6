"""The chat example in a real browser, on one process."""

from __future__ import annotations

from playwright.async_api import Browser

from tests.browser.conftest import Chromium, new_context
from tests.browser.visitors import EXAMPLE, published, visit
from tests.listeners.web.conftest import Serving, serving

__all__ = ["serving"]

# Who leaves a room is gone soon.
SETTINGS = {"folder": str(EXAMPLE / "page"), "presence_grace_seconds": 0.2}
PHONE = {"width": 390, "height": 780}


def lines(first: int, last: int) -> list[object]:
    return [{"id": f"old-{i}", "name": "Old", "text": f"line {i}"} for i in range(first, last)]


async def test_two_people_chat(serving: Serving, chromium: Chromium) -> None:
    async with (
        serving(**SETTINGS) as site,
        chromium.driven() as browser,
    ):
        async with (
            visit(browser, site.url, "Ann") as ann,
            visit(browser, site.url, "Bob", PHONE) as bob,  # pyright: ignore[reportArgumentType]
        ):
            await ann.sees_online("Ann", "Bob")
            await bob.sees_online("Ann", "Bob")
            await ann.say("Hello Bob")
            await bob.sees("Hello Bob")
            await bob.say("Hello Ann\n<b>not bold</b>")
            await ann.sees("Hello Bob", "Hello Ann\n<b>not bold</b>")
            await bob.sees("Hello Bob", "Hello Ann\n<b>not bold</b>")
            await ann.page.locator("#text").press_sequentially("I am")
            await bob.until("() => document.querySelector('#typing').innerText === 'Ann is typing'")
            await bob.page.click("[data-open=rooms]")
            await bob.page.click("text=random")
            await ann.until(
                "() => document.querySelector('#online-count').textContent.trim() === '1'"
            )
            await bob.say("Nobody here")
            await ann.until("() => document.querySelector('.badge')?.textContent === '1'")
            await ann.page.get_by_role("button", name="random").click()
            await ann.sees("Nobody here")
        async with visit(browser, site.url, "Cleo") as cleo:
            await cleo.sees("Hello Bob", "Hello Ann\n<b>not bold</b>")


async def test_older_messages_come_on_scroll(serving: Serving, chromium: Chromium) -> None:
    async with (
        serving(**SETTINGS) as site,
        chromium.driven() as browser,
    ):
        async with visit(browser, site.url, "Ann") as ann:
            await published(ann, "chat.room.lobby", lines(0, 100))
        async with visit(browser, site.url, "Bob") as bob:
            await bob.sees("line 98", "line 99")
            while len(await bob.said()) < 100:
                count = len(await bob.said())
                await bob.page.evaluate("document.querySelector('#scroller').scrollTop = 0")
                await bob.until(
                    "count => document.querySelectorAll('.message').length > count", count
                )
            assert await bob.said() == [f"line {i}" for i in range(100)]


async def test_the_page_works_with_the_keyboard_and_names_what_it_has(
    serving: Serving, chromium: Chromium
) -> None:
    async with (
        serving(**SETTINGS) as site,
        chromium.driven() as browser,
    ):
        context = await new_context(browser)
        page = await context.new_page()
        await page.goto(site.url)
        await page.get_by_role("textbox", name="Your name").fill("Ann")
        await page.keyboard.press("Enter")
        await page.wait_for_function("window.chat?.client.state === 'open'")
        await page.get_by_role("textbox", name="Name of a new room").fill("Coffee Break")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="coffee-break").wait_for()
        await page.get_by_role("textbox", name="Message").fill("By keyboard")
        await page.keyboard.press("Enter")
        await page.locator("[role=log] .bubble", has_text="By keyboard").wait_for()
        nameless = await page.eval_on_selector_all(
            "button, input, textarea",
            "nodes => nodes.filter(n => !(n.innerText?.trim() || n.ariaLabel || n.labels?.length))"
            ".map(n => n.outerHTML)",
        )
        assert nameless == []
        assert await elsewhere(browser, site.url) == []


async def elsewhere(browser: Browser, url: str) -> list[str]:
    """What the page loads from other hosts."""
    context = await new_context(browser)
    page = await context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{url}/?name=Ann")
    await page.wait_for_function("window.chat?.client.state === 'open'")
    return [one for one in asked if not one.startswith((url, "data:"))]
