"""Every page with data flowing: in light and dark, on a desktop and a phone, for screen readers,
and with links that lead somewhere. `board.visit` looks for errors besides."""

from __future__ import annotations

from functools import partial
from typing import Literal
from urllib.parse import urljoin

import pytest
from playwright.async_api import Page, ViewportSize, expect

from fanlog.identity import Role
from tests.dashboard.boards import DESKTOP, PHONE, Board, axe, fits
from tests.dashboard.conftest import Dashboard
from tests.dashboard.page_list import DASHBOARD, go_to, listed_pages, settled, swept_pages

Colours = Literal["light", "dark"]
LOOKS: list[tuple[Colours, ViewportSize]] = [
    ("light", DESKTOP),
    ("dark", DESKTOP),
    ("dark", PHONE),
    ("light", PHONE),
]


def test_every_page_of_the_list_has_its_module() -> None:
    assert [page.path for page in listed_pages() if not page.exists] == []


def test_every_module_of_a_page_is_used() -> None:
    """A page that nothing leads to would not be swept."""
    sources = "".join(file.read_text() for file in DASHBOARD.rglob("*.js"))
    listed = (DASHBOARD / "core" / "pages.js").read_text()
    for file in (DASHBOARD / "pages").glob("*.js"):
        used = f"pages/{file.name}" in sources or f'"{file.stem}"' in listed + sources
        assert used, f"{file.name} is used nowhere"


@pytest.mark.parametrize("path", swept_pages())
async def test_a_page_can_be_read_in_every_look_and_leads_somewhere(
    dashboard: Dashboard, path: str
) -> None:
    """Both with one broker and one page: to fill a broker takes longer than to look at it."""
    async with dashboard(flowing=True) as board, board.visit(path) as page:
        faults = [fault for look in LOOKS for fault in await _faults(page, path, look)]
        assert not faults, "\n".join(faults)
        await page.emulate_media(color_scheme="light")
        await page.set_viewport_size(DESKTOP)
        await settled(page)
        await _follow_links(board, page)


async def _faults(page: Page, path: str, look: tuple[Colours, ViewportSize]) -> list[str]:
    """What keeps somebody from reading the page with these colours on such a screen. On the second
    look at a screen only the colours are others."""
    colours, size = look
    seen = any(size == other for _, other in LOOKS[: LOOKS.index(look)])
    faults: list[str] = []
    await page.emulate_media(color_scheme=colours)
    await page.set_viewport_size(size)
    await settled(page)
    for check in (fits, partial(axe, colours_only=seen)):
        try:
            await check(page)
        except AssertionError as fault:
            faults.append(f"{path}, {colours}, {size['width']} px wide: {fault}")
    return faults


async def _follow_links(board: Board, page: Page) -> None:
    links = await page.eval_on_selector_all(
        "a[href]", "links => links.map(link => link.getAttribute('href'))"
    )
    assert links
    for link in _one_of_each_kind(links):
        if link.startswith("#/"):
            await _leads_somewhere(page, link)
        else:
            await _answers(board, link)


def _one_of_each_kind(links: list[str]) -> list[str]:
    """Of links that differ in the entry alone, such as topics of a list, three are enough."""
    seen: dict[tuple[str, int], int] = {}
    chosen: list[str] = []
    for link in dict.fromkeys(links):
        parts = link.split("?")[0].split("/")
        kind = ("/".join(parts[:2]), len(parts))
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 3 and link != "#main":
            chosen.append(link)
    return chosen


async def _leads_somewhere(page: Page, link: str) -> None:
    try:
        await go_to(page, link)
        await expect(page.get_by_text("There is no such page")).to_have_count(0)
    except AssertionError as fault:
        fault.add_note(f"the link {link}")
        raise


async def _answers(board: Board, link: str) -> None:
    async with board.http.get(urljoin("/", link), headers={"Accept": "text/html"}) as answer:
        assert answer.status < 400, f"{link}: {answer.status}"


@pytest.mark.parametrize("path", ["/nothing", "/topics/none/none", "/%zz", "/topics/no%20such"])
async def test_an_address_that_is_wrong_says_so(dashboard: Dashboard, path: str) -> None:
    async with dashboard(flowing=True) as board, board.visit(path, wait=False, allow={404}) as page:
        text = page.get_by_text("no such").or_(page.get_by_text("does not exist"))
        await expect(text.first).to_be_visible()
        await axe(page)


async def test_a_viewer_sees_every_page_or_why_not(dashboard: Dashboard) -> None:
    """No page breaks for somebody who may not do what it is for."""
    async with dashboard(flowing=True, auth=True) as board:
        await board.user("ann", Role.VIEWER)
        first, *others = swept_pages()
        async with board.visit(first, login="ann", allow={403}) as page:
            await axe(page)
            for path in others:
                await _leads_somewhere(page, f"#{path}")
                await axe(page)
