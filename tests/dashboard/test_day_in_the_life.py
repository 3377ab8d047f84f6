"""A day in the life of somebody who runs a broker, from `fanlog init` to the last dead letter, in
one test: with the commands, clients and pages that such a person uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

import fanlog
from fanlog.client.aio import Client
from tests.browser.conftest import Chromium
from tests.dashboard.boards import axe, visited
from tests.dashboard.page_list import settled

COMMAND = (sys.executable, "-m", "fanlog")
BROKEN = 12
REASON = "no address for this customer"


@dataclass(frozen=True)
class Shop:
    """A folder as `fanlog init` leaves it, and the broker that runs in it."""

    folder: Path
    url: str
    site: str

    def key(self, name: str) -> str:
        return (self.folder / f"{name}.key").read_text().strip()

    async def run(self, *arguments: str, key: str = "admin") -> str:
        """A command in another terminal."""
        return await asyncio.to_thread(command, self.folder, *arguments, url=self.url, key=key)


def command(folder: Path, *arguments: str, url: str = "", key: str = "") -> str:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FANLOG_")}
    given = {"FANLOG_URL": url} if url else {}
    if key:
        given["FANLOG_KEY_FILE"] = str(folder / f"{key}.key")
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=ours | given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Shop]:
    """`fanlog serve` in a folder where `fanlog init` was."""
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", "--http-port", "0", "--redis-port", "-1"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        lines = "".join(process.stdout.readline() for _ in range(7))
        native, site = re.search(r"fanlog://\S+", lines), re.search(r"http://[^/]+", lines)
        assert native is not None, (folder / "serve.log").read_text()
        assert site is not None
        assert "is the dashboard" in lines
        yield Shop(folder, native[0], site[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


class Mailer:
    """A worker that a mistake breaks, and a new release repairs."""

    def __init__(self) -> None:
        self.broken = False
        self.sent: list[int] = []

    async def send(self, job: fanlog.Job) -> None:
        if self.broken:
            raise ValueError(REASON)
        self.sent.append(job.json()["order"])


@contextlib.asynccontextmanager
async def working(client: Client, mailer: Mailer) -> AsyncIterator[None]:
    """The queue's worker, for as long as the block runs."""
    retry = fanlog.Backoff(first_seconds=0.05, factor=1)
    until = asyncio.Event()
    task = asyncio.create_task(
        client.work(
            "orders", mailer.send, queue="mailers", until=until, max_deliveries=2, retry=retry
        )
    )
    try:
        yield
    finally:
        until.set()
        await task


@contextlib.asynccontextmanager
async def billing(client: Client, billed: list[int]) -> AsyncIterator[None]:
    """A member of the group that writes invoices."""
    until = asyncio.Event()

    async def bill(message: fanlog.Message) -> None:
        billed.append(message.json()["order"])

    task = asyncio.create_task(
        client.consume("orders", bill, group="billing", reset="earliest", until=until)
    )
    try:
        yield
    finally:
        until.set()
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - the handlers of clients fill lists
            await asyncio.sleep(0.05)


async def go(page: Page, path: str) -> None:
    await page.evaluate("path => { location.hash = path }", path)
    await settled(page)


@pytest.mark.timeout(600)
async def test_a_day_in_the_life(chromium: Chromium, tmp_path: Path) -> None:
    # Morning: a broker with logins, and a key for each program.
    command(tmp_path, "init", "--yes", "--auth", "key", "--data", "data")
    with serving(tmp_path) as shop:
        await shop.run("topic", "create", "orders", "--partitions", "2")
        await shop.run(
            *("key", "create", "shop", "--role", "producer", "--publish", "orders"),
            *("--out", "shop.key"),
        )
        await shop.run(
            *("key", "create", "worker", "--role", "consumer", "--subscribe", "orders"),
            *("--groups", "billing", "--queues", "mailers", "--out", "worker.key"),
        )
        async with (
            chromium.driven() as browser,
            fanlog.connect(shop.url, key=shop.key("shop")) as publisher,
            fanlog.connect(shop.url, key=shop.key("worker")) as worker,
            visited(browser, shop.site, "/", allow={401}) as page,
        ):
            await _log_in(page, shop.key("admin"))
            await _watch_in_the_explorer(page, shop)
            mailer, billed = Mailer(), list[int]()
            async with working(worker, mailer):
                async with billing(worker, billed):
                    await publisher.publish("orders", {"order": 2}, key="bob")
                    await until(lambda: mailer.sent == [1, 2] == billed)
                await _break(page, publisher, mailer)
                await _find_out_why(page)
                mailer.broken = False
                async with billing(worker, billed):
                    await _replay(page)
                    await until(lambda: len(mailer.sent) == 2 + BROKEN)
                    await until(lambda: len(billed) == 2 + 2 * BROKEN)
                    await _see_zero(page)
            assert sorted(mailer.sent) == list(range(1, 3 + BROKEN))
            async with fanlog.connect(shop.url, key=shop.key("admin")) as admin:
                assert (await admin.groups.describe("billing")).lag == 0
                assert await admin.dead_letters.list("dead.orders") == []


async def _log_in(page: Page, key: str) -> None:
    await expect(page.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()
    await page.get_by_role("tab", name="Key").click()
    await page.locator("form").get_by_label("Key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


async def _watch_in_the_explorer(page: Page, shop: Shop) -> None:
    """A message that is published in a terminal is seen at once."""
    await go(page, "/explorer?topic=orders")
    await shop.run("publish", "orders", '{"order": 1}', "--key", "ann", key="shop")
    row = page.get_by_role("row").filter(has_text='{"order": 1}')
    await expect(row).to_be_visible()
    await row.click()
    await expect(page.get_by_text("ann").first).to_be_visible()
    await axe(page)


async def _break(page: Page, publisher: Client, mailer: Mailer) -> None:
    """A bad release: the worker fails, and nobody bills. The overview says both."""
    mailer.broken = True
    for number in range(3, 3 + BROKEN):
        await publisher.publish("orders", {"order": number}, key=f"customer-{number}")
    await go(page, "/")
    attention = page.get_by_role("list", name="What needs attention")
    await expect(attention.get_by_text(f"{BROKEN} dead letters wait")).to_be_visible()
    await expect(attention.get_by_role("listitem").filter(has_text="billing")).to_be_visible()
    await expect(attention.get_by_role("listitem").filter(has_text="billing")).to_contain_text(
        f"{BROKEN}"
    )
    await axe(page)
    # The finding leads to who lags.
    await attention.get_by_role("link", name="Open billing").click()
    await settled(page)
    await expect(page.get_by_role("heading", level=1, name="billing")).to_be_visible()
    await expect(page.get_by_text(f"{BROKEN}").first).to_be_visible()


async def _find_out_why(page: Page) -> None:
    await go(page, "/")
    attention = page.get_by_role("list", name="What needs attention")
    await attention.get_by_role("link", name=re.compile("See (why|the dead letters)")).first.click()
    await settled(page)
    await expect(page.get_by_role("heading", level=1, name="dead.orders")).to_be_visible()
    reasons = page.get_by_role("table", name="Reasons")
    await expect(reasons.get_by_role("row").filter(has_text=REASON)).to_contain_text(f"{BROKEN}")
    await axe(page)


async def _replay(page: Page) -> None:
    await page.get_by_role("button", name="Replay all", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=f"Replay {BROKEN}").click()
    await expect(dialog).to_have_count(0)
    none = page.get_by_text("No dead letters: all were replayed or deleted.")
    await expect(none).to_be_visible()


async def _see_zero(page: Page) -> None:
    """Nothing waits any more, on every page that has said so."""
    await go(page, "/groups")
    await expect(page.get_by_text("Every group keeps up.")).to_be_visible()
    await go(page, "/dead")
    await expect(page.get_by_text("No dead letters: no job has failed for good.")).to_be_visible()
    await go(page, "/")
    await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
    await expect(page.get_by_text("Looking…")).to_have_count(0)
    # A busy machine makes the event loop late, which is no fault of the shop.
    findings = page.locator(".finding").filter(has_not_text="the event loop was")
    await expect(findings).to_have_count(0)
