"""`python -m tests.dashboard.pictures`: the pictures of the dashboard in docs/pictures, made in
Chromium from a broker of a small shop that has been busy for a while, on a quiet machine. Look at
them before you commit them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Page
from rich.console import Console
from rich.progress import track

import fanlog
from fanlog.client.aio import Client
from tests.browser.conftest import running_chromium
from tests.dashboard.boards import Board, open_board
from tests.dashboard.flowing import flowing, order
from tests.dashboard.page_list import settled

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
WARM_SECONDS = 90
SERVICES = ("cart", "catalog", "checkout", "delivery", "invoices", "search", "stock", "users")
EVENTS = ("created", "changed", "viewed", "failed")
# Who reads orders, how long each message takes, and how many share the work.
GROUPS = (("analytics", 0.0, 1), ("invoices", 0.004, 2), ("search-index", 0.001, 1))


@dataclass(frozen=True)
class Picture:
    name: str
    path: str
    dark: bool = False
    phone: bool = False
    # The row of a table that a person has opened.
    row: int = 0


PICTURES = (
    Picture("overview", "/"),
    Picture("overview-dark", "/", dark=True),
    Picture("topics", "/topics?sort=rate&order=down"),
    Picture("explorer", "/explorer?topic=orders", row=4),
    Picture("groups", "/groups"),
    Picture("dead-letters", "/dead/dead.emails"),
    Picture("metrics", "/metrics?range=5m"),
    Picture("phone", "/", dark=True, phone=True),
)


async def services(client: Client, dice: random.Random) -> None:
    """Events of many services, with a rate that goes up and down."""
    names = [f"shop.{service}.{event}" for service in SERVICES for event in EVENTS]
    weights = [dice.paretovariate(1.2) for _ in names]
    for name in names:
        await client.create_topic(name, exist_ok=True)
    for moment in range(1 << 30):
        busy = 1.0 + 0.6 * math.sin(moment / 40) + dice.uniform(-0.1, 0.1)
        for name in dice.choices(names, weights, k=max(1, round(12 * busy))):
            await client.send(name, {"id": moment, "user": dice.randrange(5000)})
        for _ in range(max(1, round(8 * busy))):
            one = order(moment, dice)
            await client.send("orders", one, key=one["customer"], headers={"source": "shop"})
        await asyncio.sleep(0.05)


async def reading(client: Client, group: str, seconds: float) -> None:
    async def handle(message: fanlog.Message) -> None:
        del message
        await asyncio.sleep(seconds)

    await client.consume("orders", handle, group=group, reset="earliest", concurrency=4)


@contextlib.asynccontextmanager
async def shop(board: Board) -> AsyncIterator[None]:
    """A small shop, with clients that have names."""
    async with flowing(board.broker, board.url), contextlib.AsyncExitStack() as stack:
        tasks: list[asyncio.Task[None]] = []
        publisher = await stack.enter_async_context(board.client(name="shop-web"))
        tasks.append(asyncio.create_task(services(publisher, random.Random(7))))
        for group, seconds, members in GROUPS:
            for number in range(members):
                name = f"{group}-{number + 1}"
                client = await stack.enter_async_context(board.client(name=name))
                tasks.append(asyncio.create_task(reading(client, group, seconds)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def take(board: Board, picture: Picture, folder: Path) -> Path:
    async with board.visit(picture.path, dark=picture.dark, phone=picture.phone) as page:
        tools = await page.context.new_cdp_session(page)
        await tools.send("Emulation.setScrollbarsHidden", {"hidden": True})
        await settled(page)
        # Charts and lists that follow have their second answer.
        await page.wait_for_timeout(6000)
        if picture.row:
            # Paused, so that rows stay where they are.
            await page.keyboard.press("p")
            await page.get_by_role("row").nth(picture.row).click()
            await page.evaluate("() => window.scrollTo(0, 0)")
            await settled(page)
            await page.wait_for_timeout(500)
        return await _save(page, folder / f"dashboard-{picture.name}.png")


async def _save(page: Page, file: Path) -> Path:
    await page.evaluate("() => document.activeElement?.blur()")
    await page.mouse.move(0, 0)
    await page.screenshot(path=file)
    return file


async def make(folder: Path, warm_seconds: float, only: list[str]) -> None:
    console = Console(stderr=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, running_chromium(Path(name)) as chromium:
        async with (
            chromium.driven() as browser,
            open_board(Path(name) / "data", browser) as board,
            shop(board),
        ):
            for _ in track(range(round(warm_seconds)), "The shop is busy", console=console):
                await asyncio.sleep(1)
            for picture in PICTURES:
                if not only or picture.name in only:
                    console.print(await take(board, picture, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("names", nargs="*", help="some of them alone, such as overview")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--seconds", type=float, default=WARM_SECONDS, help="before the first")
    given = parser.parse_args()
    asyncio.run(make(given.folder, given.seconds, given.names))


if __name__ == "__main__":
    main()
