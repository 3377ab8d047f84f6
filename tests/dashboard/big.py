"""`python -m tests.dashboard.big`: every page of the dashboard of a big broker in Chromium, and the
time until each is usable.

A page counts as usable when it has its heading and its first content, from the moment at which a
browser that knows nothing yet asks for it. Beside it stands how late the broker's event loop was
meanwhile, as the broker measures it; Chromium has the same cores. With `--keep` the broker stays
until Enter, to be looked at. With `--folder` its data stays, and the next run with it is quicker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from playwright.async_api import Browser, Error, expect
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tests.browser.conftest import running_chromium
from tests.dashboard.big_state import (
    DEAD,
    QUEUE,
    ROOM,
    BigBroker,
    Progress,
    Size,
    connect_client,
    connected,
    fill,
    in_rooms,
    serving,
    topic_name,
    wait_until_quiet,
)
from tests.dashboard.page_list import detail_pages, listed_pages

GOAL_SECONDS = 2.0
PATIENCE_MS = 60_000
ENTRIES = {
    "topic": topic_name(1),
    "group": "group-1",
    "queue": QUEUE,
    "dead_topic": DEAD,
    "rooms": ROOM,
}
QUIET_SECONDS = 1.0


@dataclass(frozen=True)
class Visited:
    """`usable_s` is None if it never was. `late` are upper bounds of the loop's delay, in ms: how
    often it was late by more than 5 ms, and the highest."""

    path: str
    usable_s: float | None
    late_count: int
    late_max_ms: float
    faults: tuple[str, ...]


def big_pages() -> list[str]:
    """All pages, on something that is big."""
    listed = [page.path for page in listed_pages()]
    chosen = {"/explorer": f"/explorer?topic={topic_name(1)}"}
    details = [f"{page.path.rpartition('/')[0]}/{ENTRIES[page.module]}" for page in detail_pages()]
    return [chosen.get(path, path) for path in listed] + details


async def loop_delays(http: aiohttp.ClientSession) -> dict[float, float]:
    """How often the loop was late by at most so many seconds."""
    async with http.get("/metrics") as answer:
        text = await answer.text()
    found = re.findall(r'fanlog_loop_delay_seconds_bucket\{le="([^"]+)"\} (\S+)', text)
    return {float(bound): float(count) for bound, count in found}


def lateness(before: dict[float, float], after: dict[float, float]) -> tuple[int, float]:
    """How often the loop was late by more than 5 ms in between, and the highest bound."""
    upto = {bound: after[bound] - before[bound] for bound in after}
    total = upto[float("inf")]
    highest = next((bound for bound, count in upto.items() if count >= total), 0.0)
    return round(total - upto[0.005]), highest * 1000


async def visit(browser: Browser, http: aiohttp.ClientSession, site: str, path: str) -> Visited:
    faults: list[str] = []
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = await context.new_page()
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on(
            "response",
            lambda got: faults.append(f"{got.status} {got.url}") if got.status >= 400 else None,
        )
        before = await loop_delays(http)
        await asyncio.sleep(QUIET_SECONDS)
        began = time.perf_counter()
        usable: float | None = None
        try:
            await page.goto(f"{site}/#{path}", timeout=PATIENCE_MS)
            await expect(page.locator("main h1").first).to_be_visible(timeout=PATIENCE_MS)
            quiet = "() => !document.querySelector('main [aria-busy=true]')"
            await page.wait_for_function(quiet, timeout=PATIENCE_MS)
            usable = time.perf_counter() - began
        except (AssertionError, Error) as fault:
            faults.append(str(fault).splitlines()[0])
        await asyncio.sleep(QUIET_SECONDS)
        late = lateness(before, await loop_delays(http))
        return Visited(path, usable, *late, tuple(faults))
    finally:
        await context.close()


async def visit_all(broker: BigBroker, folder: Path, progress: Progress) -> list[Visited]:
    """Each page once before, so that what is measured is the broker and not Chromium's start."""
    found: list[Visited] = []
    pages = big_pages()
    with (
        tempfile.TemporaryDirectory(dir=folder) as profile,
        running_chromium(Path(profile)) as chromium,
    ):
        async with chromium.driven() as browser, aiohttp.ClientSession(broker.site) as http:
            await visit(browser, http, broker.site, "/cluster")
            for number, path in enumerate(pages):
                found.append(await visit(browser, http, broker.site, path))
                progress("pages", number + 1, len(pages))
    return found


def show(console: Console, found: list[Visited]) -> None:
    table = Table(title="Pages of a big broker")
    table.add_column("page", no_wrap=True)
    for name in ("usable after", "loop late > 5 ms", "at most", ""):
        table.add_column(name, justify="right")
    for one in found:
        slow = one.usable_s is None or one.usable_s > GOAL_SECONDS
        usable = "never" if one.usable_s is None else f"{one.usable_s:.2f} s"
        late = f"{one.late_max_ms:.0f} ms"
        table.add_row(
            one.path,
            f"[red]{usable}[/]" if slow else usable,
            f"{one.late_count}",
            f"[red]{late}[/]" if one.late_max_ms > 25 else late,
            "; ".join(one.faults)[:80],
        )
    console.print(table)


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done)

        yield progress


async def run(size: Size, folder: Path, progress: Progress, *, keep: bool = False) -> list[Visited]:
    filled = folder / "filled"
    with serving(folder) as broker:
        if not filled.exists():
            async with await connect_client(broker) as client:
                await fill(client, size, progress)
            filled.touch()
        with connected(broker, size.connections, progress):
            async with in_rooms(broker, size.rooms):
                await wait_until_quiet(broker.site)
                found = await visit_all(broker, folder, progress)
                if keep:
                    print(f"The broker: {broker.site}/ (Enter ends it)", file=sys.stderr)
                    await asyncio.to_thread(sys.stdin.readline)
        slow = [line for line in broker.log.read_text().splitlines() if "stood still" in line]
    if slow:
        print("What the broker logged of its loop:", *slow[-40:], sep="\n  ", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    size = Size()
    for name in Size.__dataclass_fields__:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(size, name), metavar="N")
    parser.add_argument("--keep", action="store_true", help="keep the broker until Enter")
    parser.add_argument("--folder", type=Path, help="a folder for its data, which stays there")
    given = vars(parser.parse_args())
    keep, where = given.pop("keep"), given.pop("folder")
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(bars())
        if where is None:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where.mkdir(exist_ok=True)
        found = asyncio.run(run(Size(**given), where, progress, keep=keep))
    show(Console(), found)


if __name__ == "__main__":
    main()
