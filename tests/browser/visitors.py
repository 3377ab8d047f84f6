"""People in the chat of `examples/chat`, each with a browser context of their own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playwright.async_api import Browser, CDPSession, Page, ViewportSize

from tests.browser.conftest import PATIENCE_MS, new_context
from tests.servers import find_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat"
STOP_S = 60.0
# Who is gone is noticed soon, so that tests need not wait.
QUICK_PRESENCE = {
    "FANLOG_WEB_PRESENCE_HEARTBEAT_SECONDS": "1",
    "FANLOG_WEB_PRESENCE_TIMEOUT_SECONDS": "8",
    "FANLOG_WEB_PRESENCE_GRACE_SECONDS": "2",
}


@dataclass(frozen=True)
class Visitor:
    """One page of the chat, as its user sees it."""

    name: str
    page: Page
    faults: list[str]

    async def say(self, text: str) -> None:
        await self.page.fill("#text", text)
        await self.page.press("#text", "Enter")

    async def said(self) -> list[str]:
        """All lines of the room that are stored, from the first to the last."""
        return await self.page.eval_on_selector_all(
            ".message:not(.waiting) .bubble", "nodes => nodes.map(node => node.textContent)"
        )

    async def sees(self, *texts: str) -> None:
        """Waits until these lines are the last ones."""
        await self.until(
            "texts => { const seen = [...document.querySelectorAll('.message:not(.waiting) "
            ".bubble')].map(node => node.textContent); return JSON.stringify(seen.slice("
            "-texts.length)) === JSON.stringify(texts) }",
            list(texts),
        )

    async def sees_online(self, *names: str) -> None:
        """Waits until exactly these people are in the list."""
        await self.until(
            "names => JSON.stringify([...document.querySelectorAll('.person span:last-child')]"
            ".map(node => node.firstChild.textContent).sort()) === JSON.stringify(names)",
            sorted(names),
        )

    async def is_connected(self, url: str = "") -> None:
        await self.until("() => window.chat?.client.state === 'open'")
        if url:
            await self.until("url => chat.client.url === url + '/'", url)

    async def until(self, condition: str, given: object = None) -> None:
        try:
            await self.page.wait_for_function(condition, arg=given, timeout=PATIENCE_MS)
        except Exception as fault:
            text = await self.page.inner_text("body")
            fault.add_note(f"{self.name} waited for {given!r} and sees:\n{text}\n{self.faults}")
            raise

    async def tools(self) -> CDPSession:
        return await self.page.context.new_cdp_session(self.page)


@asynccontextmanager
async def visit(
    browser: Browser, url: str, name: str, viewport: ViewportSize | None = None
) -> AsyncIterator[Visitor]:
    """A person who opens the chat, in a browser that knows nothing yet."""
    context = await new_context(browser, viewport=viewport)
    try:
        page = await context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        await page.goto(f"{url}/?name={quote(name)}")
        visitor = Visitor(name, page, faults)
        await visitor.is_connected()
        yield visitor
        assert not faults
    finally:
        await context.close()


@dataclass(frozen=True)
class Edge:
    url: str
    pid: int


@contextmanager
def chat_on_edges(edges: int, bus: str) -> Iterator[list[Edge]]:
    """`examples/chat/run.py`, as a user starts it."""
    if bus != "fanlog":
        find_program(f"{bus}-server", "see docs/dependencies.md")
    command = [sys.executable, str(EXAMPLE / "run.py"), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--edges", str(edges), "--bus", bus],
        env=os.environ | QUICK_PRESENCE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        started: list[Edge] = []
        for line in process.stdout:
            found = re.match(r"Chat: (\S+) +\(process (\d+)\)", line)
            if found:
                started.append(Edge(found[1], int(found[2])))
            if len(started) == edges:
                break
        assert len(started) == edges, "the example ended before it was ready"
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_S)


async def published(visitor: Visitor, topic: str, values: list[object]) -> None:
    """Publishes from the visitor's page, and returns when all are stored."""
    await visitor.page.evaluate(
        "([topic, values]) => Promise.all(values.map(one => chat.client.publish(topic, one)))",
        [topic, values],
    )
    await asyncio.sleep(0)
