"""The dashboard by keyboard alone: every page by its keys, the list of pages, search, rows of a
table, dialogs and the palette."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.dashboard.conftest import Dashboard
from tests.dashboard.page_list import go_to, listed_pages, press_keys, settled, swept_pages

# More than any page has before its content.
TABS_MAX = 80


async def focused(page: Page) -> str:
    """What has the focus, for people: its role by tag, and its name."""
    return await page.evaluate(
        """() => { const e = document.activeElement;
          return `${e.tagName.toLowerCase()} ${e.getAttribute('aria-label') || e.innerText || ''}`
            .trim().replace(/\\s+/g, ' '); }"""
    )


async def tab_to(page: Page, wanted: str) -> None:
    """Presses Tab until the focus is on it."""
    seen: list[str] = []
    for _ in range(TABS_MAX):
        await page.keyboard.press("Tab")
        seen.append(await focused(page))
        if wanted in seen[-1]:
            return
    raise AssertionError(f"Tab never came to {wanted!r}, but to {seen}")


async def test_every_page_has_its_keys(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        for one in listed_pages():
            await press_keys(page, one.keys)
            await page.wait_for_function(
                "path => location.hash.startsWith('#' + path)", arg=one.path
            )
            await expect(page).to_have_title(re.compile(re.escape(one.title)))
            await settled(page)


async def test_tab_reaches_the_list_of_pages_and_the_page(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        await settled(page)
        await page.keyboard.press("Tab")
        assert "Skip to the page" in await focused(page)
        await tab_to(page, "Topics")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.evaluate("document.activeElement.blur()")


async def test_the_skip_link_leads_to_the_page(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/topics") as page:
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        assert await page.evaluate("location.hash") == "#/topics"


async def test_slash_searches_and_rows_open_by_enter(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/topics") as page:
        await settled(page)
        await page.keyboard.press("/")
        await page.keyboard.type("orders")
        row = page.locator("tbody tr[data-row]")
        await expect(row).to_have_count(1)
        await tab_to(page, "tr orders")
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => location.hash.startsWith('#/topics/orders')")


async def test_j_and_k_walk_through_a_table(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/topics") as page:
        await settled(page)
        await page.locator("tbody tr[data-row]").first.focus()
        first = await focused(page)
        await page.keyboard.press("j")
        second = await focused(page)
        assert second != first
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("k")
        assert await focused(page) == second
        await page.keyboard.press("ArrowUp")
        assert await focused(page) == first


async def test_j_leads_into_the_table_from_anywhere(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        await press_keys(page, "g t")
        row = page.locator("tbody tr[data-row]").first
        await expect(row).to_be_visible()
        await page.keyboard.press("j")
        await expect(row).to_be_focused()
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => location.hash.startsWith('#/topics/')")


async def test_the_palette_leads_to_pages_and_topics(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.type("dead let")
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => location.hash === '#/dead'")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.keyboard.press("Control+k")
        await page.keyboard.type("payments")
        await expect(page.get_by_role("option", name="payments")).to_be_visible()
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => location.hash === '#/topics/payments'")


async def test_the_list_of_keys_opens_and_closes(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/topics") as page:
        await settled(page)
        await page.locator("tbody tr[data-row]").first.focus()
        before = await focused(page)
        await page.keyboard.press("?")
        dialog = page.get_by_role("dialog", name="Keys")
        await expect(dialog).to_be_visible()
        for one in listed_pages():
            await expect(dialog).to_contain_text(f"Go to {one.title}")
        # Behind a dialog keys do nothing, and Tab stays in it.
        await press_keys(page, "g o")
        for _ in range(4):
            await page.keyboard.press("Tab")
            inside = (
                "() => document.activeElement === document.body || "
                "Boolean(document.activeElement.closest('dialog'))"
            )
            assert await page.evaluate(inside)
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        assert await page.evaluate("location.hash") == "#/topics"
        assert await focused(page) == before


async def test_tab_reaches_everything_and_shows_where_it_is(dashboard: Dashboard) -> None:
    """No trap: Tab leaves every element, and each that has the focus is seen to have it."""
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        assert board.data is not None
        await settled(page)
        board.data.pause()
        for path in swept_pages():
            await go_to(page, f"#{path}")
            await _tab_through(page, path)


async def _tab_through(page: Page, path: str) -> None:
    # The first that Tab comes to on a new page.
    await page.evaluate("window.reached = new Set(); document.querySelector('a.skip').focus()")
    for _ in range(TABS_MAX):
        found = await page.evaluate(
            """() => { const e = document.activeElement;
              if (!e || e === document.body) return null;
              const style = getComputedStyle(e), box = e.getBoundingClientRect();
              window.reached.add(e);
              return {html: e.outerHTML.slice(0, 160),
                shown: style.outlineStyle !== 'none' || style.boxShadow !== 'none',
                size: box.width * box.height}; }"""
        )
        if found is None:
            # At least the list of pages.
            assert await page.evaluate("window.reached.size") > len(listed_pages()), path
            return
        assert found["shown"], f"{path}: no outline: {found['html']}"
        assert found["size"] > 0, f"{path}: not to be seen: {found['html']}"
        await page.keyboard.press("Tab")
    count = await page.evaluate("window.reached.size")
    assert count > TABS_MAX // 2, f"{path}: Tab went round among {count} elements"
