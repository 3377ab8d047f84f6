"""One Chromium for all tests of a process, and a context of its own for each visitor of a page.

Law: the browser is Debian's, is stopped by its own process id, and asks nothing of the network.
Where it is missing the test is skipped, saying why; with CI=true it fails. The headless shell has
the same engine without what is around a page (profiles, extensions), and takes half of the time.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext

from tests.browser.driver import Driver
from tests.servers import find_program

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
# What a slow and busy machine may take to show what a test waits for.
PATIENCE_MS = 120_000
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--remote-debugging-port=0",
    "about:blank",
)


@dataclass(frozen=True, slots=True)
class Chromium:
    """A running Chromium. `endpoint` is where it can be driven, `driver` runs tests that do so."""

    endpoint: str
    pid: int
    driver: Driver

    @asynccontextmanager
    async def driven(self) -> AsyncIterator[Browser]:
        """`async with chromium.driven() as browser:`, then `await new_context(browser)` for each
        visitor."""
        async with self.driver.playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(self.endpoint, timeout=PATIENCE_MS)
            try:
                yield browser
            finally:
                for context in browser.contexts[1:]:
                    await context.close()
                await browser.close()


async def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """A visitor who knows nothing yet, and is as patient as the test."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@contextmanager
def running_chromium(folder: Path) -> Iterator[Chromium]:
    """A Chromium whose profile is in this folder, until the block ends."""
    program = shutil.which("chromium-headless-shell") or find_program(
        "chromium", "Debian's package chromium-headless-shell has it, as chromium does"
    )
    log_path = folder / "chromium.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [program, f"--user-data-dir={folder / 'profile'}", *FLAGS],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        endpoint = _endpoint(process, folder / "profile", log_path)
        with closing(Driver()) as driver:
            yield Chromium(endpoint, process.pid, driver)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _endpoint(process: subprocess.Popen[bytes], profile: Path, log_path: Path) -> str:
    written = profile / "DevToolsActivePort"
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        lines = written.read_text().splitlines() if written.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    pytest.fail(f"Chromium did not start. It said:\n{log_path.read_text(errors='replace')}")
