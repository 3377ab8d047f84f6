"""The pages of the dashboard, read from its own list, with the data of tests/dashboard/flowing.py
behind each: a page that is added there is swept here."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Page, expect

import fanlog
from tests.dashboard.flowing import LOBBY

DASHBOARD = Path(fanlog.__file__).parent / "listeners" / "web" / "dashboard"
# One entry of each page that has a page for one of its entries.
ENTRIES = {
    "topic": "orders",
    "group": "archive",
    "queue": "mailers",
    "dead_topic": "dead.emails",
    "rooms": LOBBY,
}
# What makes a page show something.
CHOSEN = {"/explorer": "/explorer?topic=orders"}


@dataclass(frozen=True)
class Listed:
    """One page. `module` is the file that shows it."""

    path: str
    title: str
    module: str
    keys: str

    @property
    def exists(self) -> bool:
        return (DASHBOARD / "pages" / f"{self.module}.js").exists()


def listed_pages() -> list[Listed]:
    """All pages, as core/pages.js lists them."""
    text = (DASHBOARD / "core" / "pages.js").read_text()
    lines = re.findall(r"^\s*\{ (path: .*) \},$", text, re.MULTILINE)
    found = [dict(re.findall(r'(\w+): "([^"]*)"', line)) for line in lines]
    assert len(found) > 10, "core/pages.js has another form now"
    return [Listed(one["path"], one["title"], one["module"], one["keys"]) for one in found]


def detail_pages() -> list[Listed]:
    """The pages of one entry each."""
    text = (DASHBOARD / "core" / "pages.js").read_text()
    found = re.findall(r'path: "([^"]*)".*?detail: "([^"]*)".*?keys: "([^"]*)"', text)
    return [
        Listed(f"{path}/{ENTRIES[module]}", ENTRIES[module], module, keys)
        for path, module, keys in found
    ]


def swept_pages() -> list[str]:
    """The addresses of all of them."""
    return [CHOSEN.get(page.path, page.path) for page in (*listed_pages(), *detail_pages())]


async def press_keys(page: Page, keys: str) -> None:
    """Presses keys such as `g t` as quickly as people do: a test on a busy machine that waited for
    each of them would be too slow for two in a row."""
    await asyncio.gather(*(page.keyboard.press(key) for key in keys.split()))


# Ends when the dashboard has seen that the address has changed.
_GO = """
link => new Promise(done => {
  const before = location.href;
  addEventListener("hashchange", () => setTimeout(done), { once: true });
  location.hash = link;
  if (location.href === before) done();
})
"""


async def go_to(page: Page, link: str) -> None:
    """Goes on to a page of the dashboard, such as `#/topics`, without loading it all again."""
    await page.evaluate(_GO, link)
    await settled(page)


async def settled(page: Page) -> None:
    """Waits until a page has its heading and what it shows first."""
    await expect(page.locator("main h1").first).to_be_visible()
    await page.wait_for_function("() => !document.querySelector('main [aria-busy=true]')")
